"""Which gridcoll this is, as ranks tell each other."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import gridcoll
from gridcoll.comm.settings import VERSION, digest_sources

PACKAGE = Path(gridcoll.__file__).parent


def test_it_names_the_version() -> None:
    assert f"{gridcoll.__version__}, sources {digest_sources(str(PACKAGE))}" == VERSION


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The same sources elsewhere."""
    without = shutil.ignore_patterns("*.so", "__pycache__")
    return Path(shutil.copytree(PACKAGE, tmp_path / "gridcoll", ignore=without))


def test_where_they_are_does_not_matter(other: Path) -> None:
    before = digest_sources(str(PACKAGE))
    (other / "engine" / "_compiled.so").write_bytes(b"built here")
    (other / "cli" / "more.py").write_text("decides nothing")
    assert digest_sources(str(other)) == before


@pytest.mark.parametrize("room", ["topology", "model", "schedule", "plan", "engine", "comm"])
def test_what_decides_matters(other: Path, room: str) -> None:
    before = digest_sources(str(PACKAGE))
    source = min((other / room).rglob("*.py"))
    source.write_bytes(source.read_bytes()[:-1] + b"#")
    assert digest_sources(str(other)) != before
    source.unlink()
    assert digest_sources(str(other)) != before
