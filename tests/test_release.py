"""Tests of `make release-check` and of the other checks in .ci."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
METADATA = """\
Metadata-Version: 2.4
Name: gridcoll
Version: 0.2.0
Summary: collectives
Author: somebody
License-Expression: MIT
Keywords: MPI
Requires-Python: >=3.10
Classifier: Typing :: Typed
Project-URL: Homepage, somewhere

Name: of nothing
"""
PACKAGES = [
    "gridcoll-0.2.0.tar.gz",
    "gridcoll-0.2.0-py3-none-any.whl",
    "gridcoll-0.2.0-py3-none-manylinux_2_17_x86_64.whl",
]


def load(name: str) -> ModuleType:
    """Load the script ``name`` of .ci as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f".ci/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def check() -> ModuleType:
    return load("check_release")


def test_the_version_is_stated_once(check: ModuleType) -> None:
    import gridcoll

    text = (ROOT / "gridcoll/release.py").read_text(encoding="utf-8")
    assert check.version_of(text) == gridcoll.__version__
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_this_changelog_has_the_form(check: ModuleType) -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert check.faults_of_form(text) == []
    assert text.count("\n- ") > 50


OLDER = "## [0.1.0] - 2025-12-01\n\n### Added\n- All of it.\n"
MINE = "## [0.2.0] - 2026-01-31\n\n### Added\n#### Learning\n- Much.\n\n### Fixed\n- Little.\n\n"


@pytest.mark.parametrize(
    "text", [MINE, MINE + OLDER, "# Changelog\n\n## [Unreleased]\n\n" + MINE + OLDER]
)
def test_changelogs_of_a_release(check: ModuleType, text: str) -> None:
    assert check.faults_of_changelog(text, "0.2.0") == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no section of a release"),
        (OLDER, "no section '## [0.2.0]"),
        ("## [0.3.0] - 2026-02-28\n### Added\n- A.\n\n" + MINE, "0.3.0 stands above 0.2.0"),
        ("## [Unreleased]\n### Added\n- More.\n\n" + MINE, "[Unreleased] has entries"),
        (MINE + "## [Unreleased]\n", "must stand above all releases"),
        (MINE.replace("[0.2.0] - 2026-01-31", "0.2.0 (unreleased)"), "must be [Unreleased] or"),
        (MINE.replace("[0.2.0]", "0.2.0"), "must be [Unreleased] or"),
        (MINE.replace(" - 2026-01-31", ""), "must be [Unreleased] or"),
        (MINE.replace("2026-01-31", "2026-02-31"), "must be [Unreleased] or"),
        (MINE.replace("2026-01-31", "January"), "must be [Unreleased] or"),
        (MINE + MINE, "a version stands twice"),
        (OLDER + MINE, "newest first"),
        (MINE.replace("Added", "Learning"), "### Learning: must be one of"),
        (MINE.replace("Fixed", "Added"), "### Added: stands twice"),
        (MINE.replace("- Little.\n", ""), "### Fixed: says nothing"),
        (MINE.replace("### Added\n#### Learning\n", ""), "above its first section"),
        (MINE.replace("### Added\n", ""), "above its first section"),
        ("## [0.2.0] - 2026-01-31\n\n" + OLDER, "says nothing"),
    ],
)
def test_changelogs_that_are_refused(check: ModuleType, text: str, fault: str) -> None:
    assert any(fault in each for each in check.faults_of_changelog(text, "0.2.0"))


def test_ten_comes_after_nine(check: ModuleType) -> None:
    assert check.faults_of_form(MINE.replace("0.2.0", "0.10.0") + OLDER.replace("1.0", "9.0")) == []


def test_metadata_is_complete(check: ModuleType) -> None:
    assert check.faults_of_metadata(METADATA) == []
    for line in METADATA.split("\n\n")[0].splitlines()[1:]:
        name = line.split(":")[0]
        without = METADATA.replace(line + "\n", "", 1)
        (fault,) = check.faults_of_metadata(without)
        assert fault.startswith(f"metadata: no {name}")


def test_the_address_of_a_paper_is_no_homepage(check: ModuleType) -> None:
    paper = METADATA.replace("URL: Homepage", "URL: Paper")
    assert check.faults_of_metadata(paper) == [
        "metadata: no Project-URL named Homepage or Repository"
    ]


def test_packages_are_all_there(check: ModuleType) -> None:
    assert check.faults_of_packages(PACKAGES, "0.2.0") == []
    assert len(check.faults_of_packages(PACKAGES, "0.2.1")) == 3
    assert len(check.faults_of_packages(PACKAGES[:2], "0.2.0")) == 1
    local = [*PACKAGES[:2], "gridcoll-0.2.0-py3-none-linux_x86_64.whl"]
    assert len(check.faults_of_packages(local, "0.2.0")) == 1


AUDIT = {
    "wheel": "gridcoll-0.2.0-py3-none-manylinux_2_17_x86_64.whl",
    "overall_tag": "manylinux_2_17_x86_64",
    "external_libs": {},
}


@pytest.mark.parametrize(
    ("different", "fault"),
    [
        ({"overall_tag": "manylinux_2_34_x86_64"}, "must be manylinux_2_17"),
        ({"overall_tag": "linux_x86_64"}, "must be manylinux_2_17"),
        ({"wheel": "gridcoll-0.2.0-py3-none-manylinux_2_17_aarch64.whl"}, "another platform"),
        ({"wheel": "gridcoll-0.2.0-cp311-cp311-manylinux_2_17_x86_64.whl"}, "needs a Python"),
        ({"external_libs": {"libmpi.so.40": None}}, "libmpi.so.40"),
        ({"overall_tag": None}, "must be"),
    ],
)
def test_wheels_that_do_not_fit_are_refused(different: dict[str, Any], fault: str) -> None:
    audit = load("check_audit")
    assert audit.faults_of_audit(json.dumps(AUDIT)) == []
    assert any(fault in each for each in audit.faults_of_audit(json.dumps(AUDIT | different)))
    assert len(audit.faults_of_audit("Traceback")) == 1
    assert len(audit.faults_of_audit("")) == 1


def test_make_dist_looks_at_the_audit() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert (
        "auditwheel show --json dist/*-manylinux_*.whl | \\\n\t\t$(PYTHON) .ci/check_audit" in text
    )


def test_wheels_are_tried_with_an_application_that_passes_only_under_gridcoll(
    launch: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(load("check_wheels").APPLICATION)
    swapped, plain = launch(3, "-m", "gridcoll", "run", "app.py"), launch(3, "app.py")
    assert swapped.returncode == 0, swapped.stderr
    assert plain.returncode != 0


def page(*severities: str, **different: Any) -> str:
    """Return the JSON that ``gridcoll doctor`` prints for a job of three ranks."""
    findings = [{"code": "any", "severity": severity} for severity in severities]
    ok = all(severity == "note" for severity in severities)
    return json.dumps({"ok": ok, "findings": findings, "n_ranks": 3, **different}, indent=2)


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (page(), 0),
        (page("note"), 0),
        (page("warning", "note"), 1),
        ("mpirun says hello\n" + page("warning") + "\nmpirun: a process ended with code 1\n", 1),
    ],
)
def test_pages_of_the_doctor(said: str, code: int) -> None:
    assert load("check_wheels").faults_of_doctor(said, code, 3) == []


@pytest.mark.parametrize(
    ("said", "code", "fault"),
    [
        ("", 1, "no page"),
        ("Traceback (most recent call last):\nKeyError: 'x'\n", 1, "no page"),
        (page()[:-9], 0, "no page"),
        ('{\n "ok": true}', 0, "no page"),
        (page("error"), 1, "found the error any"),
        (page("warning"), 0, "exit code 0"),
        (page(), 1, "exit code 1"),
        (page("note"), 1, "exit code 1"),
        (page(ok=False), 0, "exit code 0, ok False"),
        (page(n_ranks=1), 0, "looked at 1 ranks of 3"),
    ],
)
def test_doctors_that_are_not_well(said: str, code: int, fault: str) -> None:
    assert any(fault in each for each in load("check_wheels").faults_of_doctor(said, code, 3))
