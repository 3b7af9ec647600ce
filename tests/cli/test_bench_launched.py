"""``gridcoll bench`` under mpiexec."""

from __future__ import annotations

import json

import pytest

from gridcoll.model import read_model

pytestmark = pytest.mark.long

GRID = """
version = 1
name = "duo"
clusters = [{ name = "a", ranks = 2 }, { name = "b", ranks = 1 }]
links = [{ between = ["a", "b"], latency = "7 ms" }]
"""
BENCH = ("-m", "gridcoll", "bench", "barrier", "--repeats", "3")
BCAST = ("-m", "gridcoll", "bench", "bcast", "--repeats", "3", "--sizes", "8,64K")


@pytest.fixture
def declared(tmp_path, monkeypatch):
    """What ranks use as their grid; nothing is measured then."""
    path = tmp_path / "duo.toml"
    path.write_text(GRID)
    monkeypatch.setenv("GRIDCOLL_GRID", str(path))
    return path


def test_rows_are_printed_and_kept_and_the_model_is_reused(launch, tmp_path, monkeypatch):
    (tmp_path / "duo.toml").write_text(GRID)
    monkeypatch.setenv("GRIDCOLL_GRID", str(tmp_path / "duo.toml"))
    options = ("--sizes", "0", "--output", "rows.json", "--model", "m.json")
    done = launch(3, *BENCH, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("native-nonblocking") == 1  # one rank speaks
    variants = [row["variant"] for row in json.loads((tmp_path / "rows.json").read_text())]
    assert variants == ["native", "native-nonblocking", "gridcoll"]
    assert read_model(tmp_path / "m.json").origin == "declared"

    monkeypatch.delenv("GRIDCOLL_GRID")
    done = launch(3, *BENCH, *options)
    assert done.returncode == 0, done.stderr
    assert "pLogP" not in done.stderr  # nothing was measured


def test_several_collectives_with_sizes_of_their_own(launch, tmp_path, declared):
    calls = ("bcast:8,64", "barrier", "allreduce:16")
    how = ("--repeats", "3", "--sizes", "8", "--output", "rows.json")
    done = launch(3, "-m", "gridcoll", "bench", *calls, *how)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    timed = [(row["collective"], row["bytes"]) for row in rows if row["variant"] == "gridcoll"]
    assert timed == [("bcast", 8), ("bcast", 64), ("barrier", 8), ("allreduce", 16)]


def test_one_machine_has_no_limit(launch, tmp_path):
    done = launch(2, *BENCH, "--sizes", "8", "--output", "rows.json")
    assert done.returncode == 0, done.stderr
    assert {row["limit_s"] for row in json.loads((tmp_path / "rows.json").read_text())} == {0.0}


def test_a_mistake_is_said_once_and_nothing_is_measured(launch, tmp_path):
    for options, said in (
        (("--output", "nowhere/rows.json"), "cannot write nowhere/rows.json"),
        (("--model", "nowhere/m.json"), "cannot write nowhere/m.json"),
        (("--sizes", "8,many"), "many"),
    ):
        done = launch(3, *BENCH, *options)
        assert done.returncode == 2
        assert done.stderr.count(said) == 1, done.stderr
        assert "latency" not in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("brcast",), "collective 'brcast': benchmarks exist for bcast, "),
        (("bcast", "brcast:8"), "collective 'brcast': benchmarks exist for bcast, "),
        (("bcast:8", "bcast:64"), "bcast: is named twice"),
        (("bcast", "--root", "99"), "--root 99: must be in [0, 3)"),
        (("bcast", "--algorithm", "flat,typo"), "bcast algorithm 'typo': known are "),
        (("bcast", "--grid", "nowhere.toml"), "grid 'nowhere.toml': no such file"),
        (("barrier", "--trace-plot", "t"), "--trace-plot: bcast is traced, barrier is not"),
        (
            ("bcast", "barrier", "--trace-plot", "t"),
            "--trace-plot: bcast is traced, barrier is not",
        ),
        (("bcast", "--trace-plot", "nowhere/t"), "cannot write nowhere/t-traced.svg"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_found_before_measuring(launch, tmp_path, arguments, said):
    """Nor is a model kept, which is what is done first once all is well."""
    options = ("--sizes", "8", "--model", "m.json", "--output", "rows.json")
    done = launch(3, "-m", "gridcoll", "bench", *arguments, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count(said) == done.stderr.count("gridcoll: ") == 1, done.stderr
    assert not list(tmp_path.iterdir())


def test_the_limit_is_that_of_a_grid_by_its_name(launch, tmp_path, declared):
    (tmp_path / "hostfiles").mkdir()
    (tmp_path / "hostfiles" / "slower.toml").write_text(GRID.replace("7 ms", "9 ms"))
    done = launch(3, *BCAST, "--grid", "slower", "--output", "rows.json")
    assert done.returncode == 0, done.stderr
    assert "limits of slower" in done.stdout
    limits = [row["limit_s"] for row in json.loads((tmp_path / "rows.json").read_text())]
    assert min(limits) == pytest.approx(9e-3, rel=1e-3)


def test_a_trace_is_two_pictures(launch, tmp_path, declared):
    done = launch(3, *BCAST, "--trace-plot", "t")
    assert done.returncode == 0, done.stderr
    for name in ("predicted", "traced"):
        assert done.stdout.count(f"ms: t-{name}.svg") == 1  # one rank speaks
        assert (tmp_path / f"t-{name}.svg").read_text().count("<svg") == 1
    assert done.stdout.count("sends to another cluster") == 2
    assert {path.name for path in tmp_path.iterdir()} == {
        "duo.toml", "t-predicted.svg", "t-traced.svg",
    }  # fmt: skip


def test_the_native_collective_cannot_be_traced(launch, tmp_path, declared, monkeypatch):
    monkeypatch.setenv("GRIDCOLL_BCAST", "native")
    done = launch(3, *BCAST, "--trace-plot", "t")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("# 65536 bytes: the native collective was chosen") == 1
    assert not list(tmp_path.glob("*.svg"))


def test_what_only_one_rank_stumbles_over_ends_the_job(launch):
    program = """
import sys
from mpi4py import MPI
from gridcoll.cli import main
from gridcoll.bench import runs as benchmark
if MPI.COMM_WORLD.Get_rank() == 1:
    benchmark._take_turns = None
sys.argv = ["gridcoll", "bench", "barrier", "--sizes", "8"]
main()
"""
    done = launch(2, "-c", program)
    assert done.returncode != 0
    assert "TypeError: 'NoneType' object is not callable" in done.stderr


def test_what_was_measured_before_a_failure_is_kept(launch, tmp_path):
    (tmp_path / "duo.toml").write_text(GRID)
    program = """
import os, sys
from gridcoll.cli import main
from gridcoll.bench import runs as benchmark
from gridcoll.errors import UsageError
verify = benchmark._take_turns
def fail_at_the_second(*arguments, seen=[]):
    seen.append(1)
    if len(seen) == 2:
        raise UsageError("ended here")
    return verify(*arguments)
benchmark._take_turns = fail_at_the_second
os.environ["GRIDCOLL_GRID"] = "duo.toml"
sys.argv = ["gridcoll", "bench", "bcast", "--repeats", "3", "--sizes", "8,64", "--output", "r.json"]
main()
"""
    done = launch(3, "-c", program)
    assert (done.returncode, done.stderr.count("ended here")) == (2, 1)
    assert {row["bytes"] for row in json.loads((tmp_path / "r.json").read_text())} == {8}
