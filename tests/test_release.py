"""What `make release-check` refuses."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

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
Project-URL: Home, somewhere

Name: of nothing
"""
PACKAGES = [
    "gridcoll-0.2.0.tar.gz",
    "gridcoll-0.2.0-py3-none-any.whl",
    "gridcoll-0.2.0-py3-none-manylinux_2_17_x86_64.whl",
]


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_release", ROOT / ".ci/check_release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_version_is_stated_once(check: ModuleType) -> None:
    import gridcoll

    text = (ROOT / "gridcoll/release.py").read_text(encoding="utf-8")
    assert check.version_of(text) == gridcoll.__version__
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_this_changelog_has_a_section_of_this_version(check: ModuleType) -> None:
    import gridcoll

    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    faults = check.faults_of_changelog(text, gridcoll.__version__)
    assert [fault for fault in faults if "no date" not in fault] == []


@pytest.mark.parametrize(
    ("text", "n_faults"),
    [
        ("# Changelog\n\n## 0.2.0 - 2026-01-31\n\n## 0.1.0 - 2025-12-01\n", 0),
        ("## 0.2.0 (unreleased)\n", 1),
        ("## 0.1.0 - 2026-01-31\n", 1),
        ("## 0.3.0 - 2026-02-28\n\n## 0.2.0 - 2026-01-31\n", 1),
        ("## 0.3.0 (unreleased)\n\n## 0.2.0 - January\n", 2),
        ("", 1),
    ],
)
def test_changelogs(check: ModuleType, text: str, n_faults: int) -> None:
    assert len(check.faults_of_changelog(text, "0.2.0")) == n_faults


def test_metadata_is_complete(check: ModuleType) -> None:
    assert check.faults_of_metadata(METADATA) == []
    for line in METADATA.split("\n\n")[0].splitlines()[1:]:
        name = line.split(":")[0]
        without = METADATA.replace(line + "\n", "", 1)
        assert check.faults_of_metadata(without) == [f"metadata: no {name}"]


def test_packages_are_all_there(check: ModuleType) -> None:
    assert check.faults_of_packages(PACKAGES, "0.2.0") == []
    assert len(check.faults_of_packages(PACKAGES, "0.2.1")) == 3
    assert len(check.faults_of_packages(PACKAGES[:2], "0.2.0")) == 1
    local = [*PACKAGES[:2], "gridcoll-0.2.0-py3-none-linux_x86_64.whl"]
    assert len(check.faults_of_packages(local, "0.2.0")) == 1
