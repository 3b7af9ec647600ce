"""Is this ready to be released? Says everything that is missing, and fails if anything is.

    python .ci/check_release.py [dist]

Without a folder of packages, what can be told from the sources alone.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HEADING = re.compile(r"^## (?P<version>\S+)(?: \((?P<state>[^)]*)\))?(?: - (?P<date>\S+))?$", re.M)
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
"""Those of *Keep a Changelog*."""


def version_of(release: str) -> str:
    """The version that ``release`` (the text of gridcoll/release.py) states; empty if none."""
    found = re.search(r'^__version__ = "([^"]+)"$', release, re.M)
    return found[1] if found else ""


def faults_of_changelog(text: str, version: str) -> list[str]:
    """What keeps ``text`` from being the changelog of a release of ``version``."""
    headings = list(HEADING.finditer(text))
    mine = next((heading for heading in headings if heading["version"] == version), None)
    if mine is None:
        return [f"CHANGELOG.md: has no section '## {version} - DATE'"]
    faults = []
    if not DATE.fullmatch(mine["date"] or ""):
        faults.append(f"CHANGELOG.md: the section of {version} has no date, as '- 2026-01-31'")
    if mine is not headings[0]:
        faults.append(f"CHANGELOG.md: {headings[0]['version']} stands above {version}")
    return faults


def faults_of_metadata(metadata: str) -> list[str]:
    """What is missing in ``metadata``, the text of a wheel's METADATA file."""
    head = metadata.split("\n\n", 1)[0]
    wanted = ("Name", "Version", "Summary", "Author", "License-Expression", "Keywords")
    wanted += ("Requires-Python", "Classifier", "Project-URL")
    return [f"metadata: no {name}" for name in wanted if not re.search(f"^{name}: .", head, re.M)]


def faults_of_packages(names: list[str], version: str) -> list[str]:
    """Which of the packages of ``version`` are not among the files ``names``."""
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
    """What git says against a release."""
    faults = []
    if said("status", "--porcelain"):
        faults.append("git: there are changes that are not committed")
    if said("tag", "--list", f"v{version}"):
        faults.append(f"git: v{version} is a tag already; raise the version in gridcoll/release.py")
    return faults


def said(*arguments: str) -> str:
    """What ``git ARGUMENTS`` prints."""
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
