"""Who is told what at a start, and where."""

from __future__ import annotations

import contextlib
import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridcoll.measure import report
from gridcoll.measure.clusters import Progress, silent

ROOT = Path(report.__file__).parents[2]
ASK = "from gridcoll.measure.report import is_on_terminal; print(is_on_terminal(), end='')"


@pytest.mark.parametrize(
    ("quiet", "terminal", "speaks"),
    [("", True, True), ("", False, False), ("1", True, False), ("0", False, True)],
)
def test_a_line_on_a_terminal_and_none_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    quiet: str,
    terminal: bool,
    speaks: bool,
) -> None:
    monkeypatch.setenv("GRIDCOLL_QUIET", quiet)
    monkeypatch.setattr(report, "is_on_terminal", lambda: terminal)
    report.Report(True).say("known")
    report.Report(False).say("another rank")
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == (
        ["gridcoll: known"] if speaks else []
    )


def test_warnings_go_anywhere_unless_we_are_to_be_quiet(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(report, "is_on_terminal", lambda: False)
    for quiet, n in (("", 1), ("1", 0)):
        caplog.clear()
        monkeypatch.setenv("GRIDCOLL_QUIET", quiet)
        report.Report(True).warn("damaged")
        report.Report(True).warn("")
        report.Report(False).warn("damaged")
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == n


def test_bars_come_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    @contextlib.contextmanager
    def bars() -> Iterator[Progress]:
        yield lambda what, _done, _of: shown.append(what)

    monkeypatch.setenv("GRIDCOLL_QUIET", "0")
    monkeypatch.setattr(report, "_open_bars", [])
    report.show_progress_with(bars)
    for long_s, seen in ((1e9, []), (-1.0, ["links"])):
        monkeypatch.setattr(report, "LONG_S", long_s)
        with report.Report(True).progress() as progress:
            progress("links", 1, 2)
        assert shown == seen
    with report.Report(False).progress() as progress:
        assert progress is silent


@pytest.mark.long
@pytest.mark.parametrize(
    ("launcher", "ending", "answer"),
    [
        ("mpiexec", "", "True"),
        ("mpiexec", "2>/dev/null", "False"),
        ("another", "", "False"),
    ],
)
def test_a_launcher_on_a_terminal_is_one(
    tmp_path: Path, launcher: str, ending: str, answer: str
) -> None:
    """Its ranks have pipes for standard error; a program that is none keeps what it reads."""
    script = tmp_path / launcher
    script.write_text(f'#!/bin/sh\n"{sys.executable}" -c "{ASK}" 2>&1 >"{tmp_path}/said" | cat\n')
    script.chmod(0o755)
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        ["sh", "-c", f"{script} {ending}"], stderr=theirs, stdout=theirs, env=env, check=True
    )
    os.close(theirs)
    os.close(ours)
    assert (tmp_path / "said").read_text() == answer
