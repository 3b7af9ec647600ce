"""Every benchmark that is a program answers ``--help``, and then runs nothing."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.benchmarks.conftest import BENCHMARKS

FOLDERS = (BENCHMARKS, BENCHMARKS / "placement")
PROGRAMS = [
    path.relative_to(BENCHMARKS)
    for folder in FOLDERS
    for path in sorted(folder.glob("*.py"))
    if "\ndef main(" in path.read_text()
]


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_help_names_the_options(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = BENCHMARKS / program
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")
