"""What others' programs print must be the same both ways, up to the rounding of sums."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Script = Callable[[str], ModuleType]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("r2norm 1.2345e+02 ok", "r2norm 1.2345e+02 ok", True),
        ("r2norm 1.234567e+02", "r2norm 1.234568e+02", True),
        ("r2norm 1.234e+02", "r2norm 1.334e+02", False),
        ("Distr == Local True", "Distr == Local False", False),
        ("one line", "one line more", False),
    ],
)
def test_same_results(script: Script, left: str, right: str, same: bool) -> None:
    assert script("theirs").same_results(left, right) is same


PRINTED = (
    "[    0.12] Entering\nstep 2 of 5.0\nTotal time (s) = 3.1\n Current iteration: 3 (1s left)\n"
)


def test_results_are_what_a_program_printed_without_times(script: Script) -> None:
    assert script("theirs").results(PRINTED) == "Entering\nstep 2 of 5.0"


class Runs:
    """Programs that print ``printed[way]``; None: they go on for ever. Keeps their commands."""

    def __init__(self, printed: dict[str, str | None]) -> None:
        self.printed = printed
        self.ways: list[str] = []

    def __call__(self, command: list[str]) -> tuple[float, str] | None:
        way = "start" if "-c" in command else "gridcoll" if "gridcoll" in command else "native"
        self.ways.append(way)
        text = self.printed.get(way, "")
        return None if text is None else (float(len(self.ways)), text)


def rows(theirs: ModuleType, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    monkeypatch.setattr(theirs, "run_here", lambda n_ranks, limit_s: runs)
    monkeypatch.setattr(theirs, "compile_dir", lambda folder, quiet: None)
    theirs.time_them(
        ["dns"],
        Path("there"),
        grid=Path("three-sites.toml"),
        mpi="mpich",
        local_ranks=4,
        n_runs=2,
        limit_s=60.0,
        keep=kept.append,
    )
    return kept


def test_a_first_run_is_told_apart_from_those_that_take_turns(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs({"native": "same 1.0", "gridcoll": "same 1.0"})
    (row,) = rows(script("theirs"), runs, monkeypatch)
    assert runs.ways == ["start", "gridcoll", *["native", "gridcoll"] * 2]
    assert (row["start_s"], row["first_s"]) == (1.0, 2.0)
    assert (row["native_each_s"], row["gridcoll_each_s"]) == ([3.0, 5.0], [4.0, 6.0])


def test_a_way_that_does_not_end_is_tried_once_and_told(
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    theirs, runs = script("theirs"), Runs({"native": None, "gridcoll": "same"})
    (row,) = rows(theirs, runs, monkeypatch)
    assert runs.ways.count("native") == 1
    capsys.readouterr()
    theirs.keep_in(tmp_path / "theirs-three-sites-mpich.json")(row)
    theirs.print_markdown(tmp_path)
    line = capsys.readouterr().out.splitlines()[-1]
    assert (
        "| three-sites | mpich | 1.0 s | ended after 60 s | 4.5 s (4.0 – 5.0) | - | 2.0 s |" in line
    )


def test_other_results_are_an_error(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs({"native": "energy 0.5", "gridcoll": "energy 0.6"})
    with pytest.raises(SystemExit, match="dns: results differ"):
        rows(script("theirs"), runs, monkeypatch)


def test_what_does_not_end_is_ended(script: Script) -> None:
    with subprocess.Popen(["tail", "-f", "/dev/null"]) as process:
        assert not script("theirs").ended_within(process, 0.01)
    assert process.returncode


def test_a_row_replaces_that_of_its_program(script: Script, tmp_path: Path) -> None:
    keep = script("theirs").keep_in(tmp_path / "rows.json")
    for row in ({"what": "farmer", "n": 1}, {"what": "dns", "n": 2}, {"what": "farmer", "n": 3}):
        keep(row)
    kept = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["what"], row["n"]) for row in kept] == [("dns", 2), ("farmer", 3)]
