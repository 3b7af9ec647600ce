"""Commands are run in this process, as ``gridcoll ARGS`` would run them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from gridcoll.cli import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def gridcoll(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """``gridcoll("show", "grid.toml")`` returns exit code, output and error output."""

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["gridcoll", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        code: object = 0
        try:
            main()
        except SystemExit as end:
            code = end.code
        return Ran(code if isinstance(code, int) else int(code is not None), *capsys.readouterr())

    return run
