"""One run on an emulated grid: which file builds it, and where its rows and models are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import on_grids
from benchmarks.on_grids import RESULTS, ROOT, bench_on, keep_rows, results_folder, slowed
from gridcoll.topology import read_gridfile

GRID = ROOT / "hostfiles" / "three-sites.toml"


def test_a_grid_in_slow_motion() -> None:
    with slowed(GRID, 4) as path:
        spec = read_gridfile(path)
    assert (spec.name, path.stem) == ("three-sites-x4", "three-sites-x4")
    assert spec.latency_s[0, 2] == pytest.approx(4 * read_gridfile(GRID).latency_s[0, 2])
    assert not path.exists()


def test_at_its_own_speed_it_is_the_file_itself() -> None:
    with slowed(GRID, 1) as path:
        assert path == GRID


def test_its_rows_are_kept_apart() -> None:
    assert results_folder(1) == RESULTS
    assert results_folder(4).parent == RESULTS


def test_built_and_limited_by_one_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And a model of the grid at its own speed is not taken for one in slow motion."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> None:
        commands.append(command)
        if "discover" in command:
            Path(command[command.index("--output") + 1]).touch()

    monkeypatch.setattr(on_grids.subprocess, "run", run)
    for dilation in (1, 1, 4):
        rows = tmp_path / "rows.json"
        bench_on("three-sites", "mpich", "bcast", rows, models=str(tmp_path), dilation=dilation)
    # A model is measured once, by a job that does nothing else.
    order = ["discover" if "discover" in command else "bench" for command in commands]
    assert order == ["discover", "bench", "bench", "discover", "bench"]
    benches = [command for command in commands if "bench" in command]
    for command in benches:
        assert command[command.index("--grid") + 1] == command[3]
    assert [command[3] for command in commands[:3]] == [str(GRID)] * 3
    assert all(command[3].endswith("three-sites-x4.toml") for command in commands[3:])
    kept = [Path(command[command.index("--model") + 1]) for command in benches]
    names = ["three-sites-mpich.json", "three-sites-mpich.json", "three-sites-x4-mpich.json"]
    assert [path.name for path in kept] == names
    measured = [Path(c[c.index("--output") + 1]) for c in commands if "discover" in c]
    assert measured == [kept[0], kept[2]]


def test_rows_of_other_sizes_stay(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    keep_rows(path, [{"bytes": 8, "variant": "native"}, {"bytes": 64, "variant": "native"}])
    keep_rows(path, [{"bytes": 16, "variant": "gridcoll"}, {"bytes": 8, "variant": "gridcoll"}])
    found = [(row["bytes"], row["variant"]) for row in json.loads(path.read_text())]
    assert found == [(8, "gridcoll"), (16, "gridcoll"), (64, "native")]
