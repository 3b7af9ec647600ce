"""Check whether a release is ready. Prints everything that is missing, and fails if anything is.

    python .ci/check_release.py [dist]

Without a folder of packages, only the sources are checked.
"""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^## (.*)$", re.M)
RELEASE = re.compile(r"\[(?P<version>[^\]\s]+)\] - (?P<date>\d{4}-\d{2}-\d{2})")
UNRELEASED = "[Unreleased]"
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
"""The sections of *Keep a Changelog*."""


def version_of(release: str) -> str:
    """Return the version stated in ``release``, the text of gridcoll/release.py; empty if none."""
    found = re.search(r'^__version__ = "([^"]+)"$', release, re.M)
    return found[1] if found else ""


def faults_of_form(text: str) -> list[str]:
    """Return where ``text`` does not have the form of *Keep a Changelog*, released or not.

    Releases are ``## [1.2.0] - 2026-01-31``, the newest first, below ``## [Unreleased]``. Changes
    are in ``### Added`` and similar sections, grouped by capability (``####``) if there are many.
    """
    faults = []
    titles = HEADING.findall(text)
    if not titles:
        faults.append("has no section of a release")
    for at, title in enumerate(titles):
        if title == UNRELEASED and at > 0:
            faults.append(f"## {UNRELEASED}: must stand above all releases")
        if title != UNRELEASED and not _is_release(title):
            faults.append(f"## {title}: must be {UNRELEASED} or '[1.2.0] - 2026-01-31'")
    releases = [found["version"] for title in titles if (found := RELEASE.fullmatch(title))]
    if len({*releases}) < len(releases):
        faults.append("a version stands twice")
    if releases != sorted(releases, key=_numbers, reverse=True):
        faults.append("releases must stand newest first")
    for title, body in _parts(text, "## "):
        faults += [f"## {title}: {fault}" for fault in _faults_of_sections(title, body)]
    return [f"CHANGELOG.md: {fault}" for fault in faults]


def _is_release(title: str) -> bool:
    found = RELEASE.fullmatch(title)
    if found is None:
        return False
    try:
        date.fromisoformat(found["date"])
    except ValueError:
        return False
    return True


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _faults_of_sections(title: str, body: str) -> list[str]:
    sections = _parts(body, "### ")
    names = [name for name, _ in sections]
    faults = [f"### {name}: must be one of {', '.join(sorted(SECTIONS))}"
              for name in names if name not in SECTIONS]  # fmt: skip
    faults += [f"### {name}: stands twice" for name in {*names} if names.count(name) > 1]
    faults += [f"### {name}: says nothing" for name, text in sections if "\n- " not in text]
    if re.search(r"^(- |#### )", body.split("\n### ")[0], re.M):
        faults.append("says something above its first section")
    if not sections and title != UNRELEASED:
        faults.append("says nothing")
    return faults


def _parts(text: str, mark: str) -> list[tuple[str, str]]:
    """Return the title and the text of each heading that starts with ``mark``."""
    pieces = re.split(f"^{mark}(.*)$", text, flags=re.M)[1:]
    return list(zip(pieces[::2], pieces[1::2], strict=True))


def faults_of_changelog(text: str, version: str) -> list[str]:
    """Return why ``text`` is not the changelog of a release of ``version``."""
    faults = faults_of_form(text)
    titles = HEADING.findall(text)
    releases = [found["version"] for title in titles if (found := RELEASE.fullmatch(title))]
    if version not in releases:
        faults.append(f"CHANGELOG.md: has no section '## [{version}] - DATE'")
    elif releases[0] != version:
        faults.append(f"CHANGELOG.md: {releases[0]} stands above {version}")
    if any(title == UNRELEASED and body.strip() for title, body in _parts(text, "## ")):
        faults.append(f"CHANGELOG.md: {UNRELEASED} has entries: they belong to {version}")
    return faults


def faults_of_metadata(metadata: str) -> list[str]:
    """Return what is missing in ``metadata``, the text of a wheel's METADATA file."""
    head = metadata.split("\n\n", 1)[0]
    wanted = ("Name", "Version", "Summary", "Author", "License-Expression", "Keywords")
    wanted += ("Requires-Python", "Classifier")
    faults = [f"metadata: no {name}" for name in wanted if not re.search(f"^{name}: .", head, re.M)]
    # Addresses of papers do not count.
    if not re.search("^Project-URL: (Homepage|Repository), .", head, re.M):
        faults.append("metadata: no Project-URL named Homepage or Repository")
    return faults


def faults_of_packages(names: list[str], version: str) -> list[str]:
    """Return which packages of ``version`` are not among the files ``names``."""
    faults = []
    for what, pattern in (
        ("source distribution", rf"gridcoll-{re.escape(version)}\.tar\.gz"),
        ("wheel for any machine", rf"gridcoll-{re.escape(version)}-py3-none-any\.whl"),
        ("wheel with the engine in C",
         rf"gridcoll-{re.escape(version)}-py3-none-manylinux_2_(17|28)_\w+\.whl"),
    ):  # fmt: skip
        if not any(re.fullmatch(pattern, name) for name in names):
            faults.append(f"dist: no {what} of {version}")
    return faults


def faults_of_repository(version: str) -> list[str]:
    """Return the reasons in the state of git against a release of ``version``."""
    faults = []
    if git("status", "--porcelain"):
        faults.append("git: there are changes that are not committed")
    if git("tag", "--list", f"v{version}"):
        faults.append(f"git: v{version} is a tag already; raise the version in gridcoll/release.py")
    return faults


def git(*arguments: str) -> str:
    """Return the output of ``git ARGUMENTS``, stripped."""
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def main(folder: str = "") -> None:
    version = version_of((ROOT / "gridcoll/release.py").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    faults = faults_of_changelog(changelog, version) + faults_of_repository(version)
    if folder:
        from zipfile import ZipFile

        packages = sorted(Path(folder).iterdir())
        faults += faults_of_packages([path.name for path in packages], version)
        for path in packages:
            if path.suffix == ".whl":
                name = f"gridcoll-{version}.dist-info/METADATA"
                with ZipFile(path) as wheel:
                    text = wheel.read(name).decode() if name in wheel.namelist() else ""
                faults += [f"{path.name}: {fault}" for fault in faults_of_metadata(text)]
    for fault in faults:
        print(f"not ready: {fault}")
    if faults:
        sys.exit(1)
    print(f"gridcoll {version} is ready to be released")


if __name__ == "__main__":
    main(*sys.argv[1:])
