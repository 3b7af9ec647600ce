"""Shells complete commands and options."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def said(shell: str, words: str = "", at: int = 1) -> str:
    program = "from gridcoll.cli import main; import sys; sys.argv[:] = ['gridcoll']; main()"
    environment = {**os.environ, "_GRIDCOLL_COMPLETE": shell, "COMP_WORDS": words}
    environment["COMP_CWORD"] = str(at)
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True,
        check=False, timeout=60,
    ).stdout  # fmt: skip


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts(shell: str) -> None:
    assert "_GRIDCOLL_COMPLETE" in said(f"{shell}_source")


def test_commands_and_options() -> None:
    assert said("bash_complete", "gridcoll d").split() == ["plain,discover", "plain,doctor"]
    assert "plain,--budget" in said("bash_complete", "gridcoll discover --b", 2).split()
