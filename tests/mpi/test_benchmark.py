"""The benchmark harness: every collective it knows, verified, as rows that JSON takes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from mpi4py import MPI
from msgspec.structs import asdict, replace

from gridcoll.bench import runs as benchmark
from gridcoll.bench.runs import CALLS, RUNS_PER_TURN, Row, mpi_name, run_benchmark
from gridcoll.comm import GridComm
from gridcoll.errors import UsageError
from gridcoll.model import TimesBySize, declared_model
from gridcoll.model.wires import wires_from_model
from gridcoll.topology import parse_gridfile
from tests.mpi.support import count_calls

pytestmark = pytest.mark.mpi(min_size=2)

GRID = """
version = 1
name = "two"
clusters = [{{name = "a", ranks = {first}}}, {{name = "b", ranks = {second}}}]
default_link = {{latency = "1 ms"}}
"""


@pytest.fixture
def comm():
    world = MPI.COMM_WORLD
    size = world.Get_size()
    text = GRID.format(first=size // 2, second=size - size // 2)
    hosts = [f"h{rank}" for rank in range(size)]
    grid_comm = GridComm(world.Dup(), model=declared_model(parse_gridfile(text), hosts))
    yield grid_comm
    grid_comm.Free()


@pytest.mark.parametrize(("fresh_s", "n_compared"), [(0.0, 3), (3600.0, 1)])
def test_clocks_are_compared_again_when_they_may_have_drifted(
    comm, monkeypatch: pytest.MonkeyPatch, fresh_s: float, n_compared: int
) -> None:
    monkeypatch.setattr(benchmark, "CLOCK_VALID_S", fresh_s)
    compared = count_calls(monkeypatch, benchmark, "find_clock")
    run_benchmark(comm, "barrier", [8, 16, 32], wires_from_model(comm.model), repeats=3)
    assert [grid for _, grid in compared] == [comm.grid] * n_compared


def test_what_takes_long_is_timed_once(comm) -> None:
    rows = run_benchmark(
        comm, "barrier", [8], wires_from_model(comm.model), repeats=3, longest_s=0.0
    )
    assert {row.repeats for row in rows} == {1}


@pytest.mark.parametrize("collective", CALLS)
def test_rows_of_every_collective_are_json(comm, collective) -> None:
    seen: list[Row] = []
    wires = wires_from_model(comm.model)
    rows = run_benchmark(
        comm, collective, [8, 4096], wires, repeats=3, enough_s=0.0, on_rows=seen.extend
    )
    assert seen == rows
    read = json.loads(json.dumps([asdict(row) for row in rows]))
    variants = {row["variant"] for row in read}
    assert {"native", "native-nonblocking", "gridcoll"} <= variants
    for row in read:
        assert row["q1_s"] <= row["median_s"] <= row["q3_s"]
        assert type(row["limit_s"]) is float
        assert row["collective"] == collective
        assert row["repeats"] == 3


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS\n", "impi 2021.18.1"),
        ("Intel(R) MPI Library Version 2019 Update 9 for Linux* OS", "impi 2019"),
        ("Open MPI v5.0.8, package: Open MPI x@y Distribution, ident: 5.0.8", "openmpi 5.0.8"),
        ("MPICH Version:      4.3.1\nMPICH Release date: …", "mpich 4.3.1"),
    ],
)
def test_rows_name_the_mpi(monkeypatch: pytest.MonkeyPatch, text: str, name: str) -> None:
    monkeypatch.setattr(MPI, "Get_library_version", lambda: text)
    assert mpi_name() == name


def test_every_plan_tried_is_timed_once(comm) -> None:
    """As many variants as there are different plans, whatever their algorithms are called."""
    rows = run_benchmark(
        comm,
        "bcast",
        [8192],
        wires_from_model(comm.model),
        repeats=3,
        enough_s=0.0,
        algorithms=["candidates", "plain-binomial"],
    )
    timed = [row for row in rows if row.variant.startswith("gridcoll:")]
    choice = comm.explain("bcast", 8192)
    plans = {(c.label, c.predicted_s): c for c in choice.candidates if c.build}
    assert sorted(row.algorithm for row in timed[:-1]) == sorted(c.label for c in plans.values())
    assert timed[-1].variant == "gridcoll:plain-binomial"
    stored = {c.label: c.store_and_forward_s for c in choice.candidates}
    assert [row.store_and_forward_s for row in timed] == [
        stored.get(row.algorithm) for row in timed
    ]


@pytest.mark.parametrize(("collective", "native"), [("bcast", True), ("allreduce", False)])
def test_a_row_says_what_really_ran(comm, collective: str, native: bool) -> None:
    """Sums of doubles are not left to the library, however fast it is: bits may differ."""
    times = TimesBySize((8,), (1e-9,))
    fast = GridComm(MPI.COMM_WORLD, model=replace(comm.model, native={collective: times}))
    before = fast.traffic()
    rows = run_benchmark(fast, collective, [8], wires_from_model(comm.model), repeats=3)
    (row,) = (row for row in rows if row.variant == "gridcoll")
    assert row.algorithm.startswith("native") == native
    assert bool(fast.traffic().since(before).n_inter_messages) == (not native)
    fast.Free()


def test_short_calls_are_repeated_more_often(comm) -> None:
    wires = wires_from_model(comm.model)
    rows = run_benchmark(comm, "barrier", [8], wires, repeats=3, enough_s=1e9)
    assert {row.repeats for row in rows} == {15}


@pytest.mark.parametrize("repeats", [3, 4])
def test_what_pays_for_the_variant_before_does_not_count(
    comm, monkeypatch: pytest.MonkeyPatch, repeats: int
) -> None:
    ran: list[object] = []

    def run_together(_clock: object, step: Callable[[], object]) -> float:
        step()
        ran.append(step)
        return 7.0 if len(ran) % (1 + RUNS_PER_TURN) == 1 else 0.5

    monkeypatch.setattr(benchmark, "run_together", run_together)
    wires = wires_from_model(comm.model)
    rows = run_benchmark(comm, "bcast", [8], wires, repeats=repeats, enough_s=0.0)
    n_turns = -(-repeats // RUNS_PER_TURN)
    assert {(row.median_s, row.q3_s, row.repeats) for row in rows} == {
        (0.5, 0.5, n_turns * RUNS_PER_TURN)
    }
    turns = [ran[k : k + 1 + RUNS_PER_TURN] for k in range(0, len(ran), 1 + RUNS_PER_TURN)]
    assert all(len(set(map(id, turn))) == 1 for turn in turns)
    assert len(turns) == n_turns * len(rows)


def test_who_takes_too_long_gets_no_further_turn(comm, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_together(_clock: object, step: Callable[[], object]) -> float:
        step()
        return 3.0

    monkeypatch.setattr(benchmark, "run_together", run_together)
    rows = run_benchmark(comm, "bcast", [8], wires_from_model(comm.model), repeats=9)
    assert {row.repeats for row in rows} == {RUNS_PER_TURN}


def test_an_unknown_collective_is_refused_everywhere(comm) -> None:
    with pytest.raises(UsageError, match="benchmarks exist for"):
        run_benchmark(comm, "gossip", [8], wires_from_model(comm.model))
