"""A file of one kind where another is wanted: the error says which it is, and what takes it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import asdict

from gridcoll.bench.runs import Row
from gridcoll.cli.models import load_model
from gridcoll.measure.cache.folder import Folder
from gridcoll.measure.cache.learning import learn_model
from gridcoll.model import GridModel, linear_plogp, write_model
from gridcoll.plan.traces import RankTrace, write_trace
from gridcoll.topology import Grid

Run = Callable[..., Any]

GRID = """
version = 1
name = "duo"
clusters = [{ name = "north", hosts = 2 }, { name = "west", hosts = 2 }]
links = [{ between = ["north", "west"], latency = "7 ms" }]
"""
PROBLEM = """
version = 1
grid = "duo.toml"
n_elements = 1000
phases = [{ name = "solve", alpha_s = 1e-6 }]
"""

WHAT = {
    "duo.toml": "a grid file (.toml), for --grid and gridcoll show",
    "model.json": "a measured model (.json), for --grid and gridcoll show",
    "export.json": "an export of a cache, for gridcoll cache import",
    "entry.json": "an entry of a cache; gridcoll cache show lists them",
    "rank-0.json": "a rank's trace; gridcoll report takes its directory",
    "rows.json": "what gridcoll bench wrote, for gridcoll study",
    "explain.json": "what gridcoll explain --json printed, for scripts",
    "show.json": "what gridcoll show --json printed, for scripts",
    "report.json": "what gridcoll report --json printed, for scripts",
    "list.json": "what gridcoll cache printed, for scripts",
    "problem.toml": "a problem file, for gridcoll select",
    "run.json": "the times of a run, for gridcoll select --correct",
    "hosts": "a hostfile, for MPI's launchers",
    "slots": "a hostfile, for MPI's launchers",
    "bcast.goal": "a schedule that gridcoll export wrote, for LogGOPSim",
    "page.html": "a page of gridcoll report, for a browser",
    "counts": "whole numbers, as gridcoll explain --counts takes",
}
READERS: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "show": (("show", "FILE"), {"duo.toml", "model.json"}),
    "explain": (("explain", "bcast", "--sizes", "8", "--grid", "FILE"), {"duo.toml", "model.json"}),
    "hostfile": (("hostfile", "FILE", "--mpi", "mpich"), {"duo.toml", "model.json"}),
    "testbed": (("testbed", "up", "FILE"), {"duo.toml"}),
    "import": (("cache", "import", "FILE"), {"duo.toml", "model.json", "export.json"}),
    "select": (("select", "FILE"), {"problem.toml"}),
    "correct": (("select", "problem.toml", "--correct", "FILE"), {"run.json"}),
    "counts": (("explain", "alltoallv", "--grid", "duo.toml", "--counts", "FILE"), {"counts"}),
    "study": (("study", "one-cluster", "--figure", "3", "--measured", "FILE"), {"rows.json"}),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gridcoll: Run) -> Path:
    """A directory with a file of each kind, as the commands write them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRIDCOLL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "duo.toml").write_text(GRID)
    (tmp_path / "problem.toml").write_text(PROBLEM)
    write_model(load_model("duo.toml"), "model.json")
    near, far = linear_plogp(50e-6, 12.5e6), linear_plogp(5e-3, 12.5e6)
    grid = Grid.from_labels([0, 1], ["a", "b"])
    known = GridModel(grid, ((near, far), (far, near)), "measured", mpi="MPICH")
    cache = Folder(tmp_path / "cache" / "v1")
    cache.update(lambda here: learn_model(here, known))
    assert gridcoll("cache", "export", "export.json").code == 0
    entry = next((tmp_path / "cache" / "v1" / "links").glob("*.json"))
    (tmp_path / "entry.json").write_bytes(entry.read_bytes())
    write_trace(RankTrace(1, 0, 4, []), tmp_path)
    row = Row("bcast", "duo", "mpich", 8, "native", *(1e-3,) * 3, None, 1e-3, 3, "native")
    (tmp_path / "rows.json").write_text(json.dumps([asdict(row)]))
    for name, *command in (
        ("explain", "explain", "bcast", "--grid", "duo.toml", "--sizes", "8"),
        ("show", "show", "duo.toml"),
        ("report", "report", "duo.toml", "--collectives", "bcast", "--sizes", "8"),
        ("list", "cache", "list"),
    ):
        (tmp_path / f"{name}.json").write_text(gridcoll(*command, "--json").out)
    (tmp_path / "run.json").write_text('{"clusters": ["north"], "iteration_s": [1.0]}')
    for name, mpi in (("hosts", "mpich"), ("slots", "openmpi")):
        assert gridcoll("hostfile", "duo.toml", "--mpi", mpi, "--output", name).code == 0
    goal = ("--sizes", "8", "--format", "goal", "--output", "bcast.goal")
    assert gridcoll("export", "bcast", "--grid", "duo.toml", *goal).code == 0
    page = ("--collectives", "bcast", "--sizes", "8", "--html", "page.html")
    assert gridcoll("report", "duo.toml", *page).code == 0
    (tmp_path / "counts").write_text("8 8 8 8\n" * 4)
    return tmp_path


def test_each_reader_says_what_it_got(place: Path, gridcoll: Run) -> None:
    for command, takes in READERS.values():
        for file, what in WHAT.items():
            if file in takes:
                continue
            ran = gridcoll(*(file if word == "FILE" else word for word in command))
            assert (ran.code, ran.out) == (2, ""), (command, file)
            assert ran.err.endswith(f" {file}: it is {what}\n"), (command, file)
            assert ran.err.count("\n") == 1


def test_what_is_of_the_right_kind_and_wrong_is_said_to_be_wrong(
    place: Path, gridcoll: Run
) -> None:
    (place / "duo.toml").write_text(GRID + "colour = 1\n")
    assert "unknown field `colour`" in gridcoll("show", "duo.toml").err
    (place / "export.json").write_bytes((place / "export.json").read_bytes()[:-1])
    assert "export.json: Input data was truncated" in gridcoll("cache", "import", "export.json").err


def test_a_directory_is_no_grid(place: Path, gridcoll: Run) -> None:
    (place / "traced").mkdir()
    ran = gridcoll("show", "traced")
    assert ran.code == 2
    assert "'traced': a directory; gridcoll report shows what a job left in it" in ran.err


def test_a_hostfile_of_a_measured_model(place: Path, gridcoll: Run) -> None:
    text = "north-0:1\nnorth-1:1\nwest-0:1\n"
    assert gridcoll("hostfile", "model.json", "--mpi", "mpich", "--ranks", "3").out == text
    assert "has 4 slots" in gridcoll("hostfile", "model.json", "--mpi", "mpich", "--ranks", "5").err
