"""A plan run once with a clock: what the timeline says of it."""

from __future__ import annotations

import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.bench import runs as tracing
from gridcoll.engine.memory import ByteMemory
from gridcoll.measure import clock
from gridcoll.plan import Plan
from gridcoll.plan.cost import Timeline
from gridcoll.plan.ops import Recv, Send
from tests.mpi.support import grid_comm, layouts, pattern

N = 200_000
SKEW_S = 1000.0
CLOSE_S = 100.0
"""Skews are so far from that that no pause of a busy machine matters."""


def traced(world: MPI.Intracomm, layout: str, algorithm: str) -> tuple[Plan, Timeline]:
    """A broadcast from the last rank, planned and as it went; the message came."""
    labels = layouts(world.Get_size()).get(layout, [0] * world.Get_size())
    root = world.Get_size() - 1
    with grid_comm(world, labels) as comm:
        build = comm.forced("bcast", algorithm).explain("bcast", N, root).winner.build
        assert build is not None
        plan = build(N)
        wanted = pattern(N, "u1").tobytes()
        buffer = bytearray(wanted if world.Get_rank() == root else N)
        scratch = memoryview(bytearray(plan.scratch_of(world.Get_rank())))
        memory = ByteMemory(memoryview(buffer), scratch=scratch)
        timeline = tracing.trace_plan(world, comm.grid, plan, memory)
    assert buffer == wanted
    return plan, timeline


def with_clocks_ahead(monkeypatch: pytest.MonkeyPatch, offset_s: float) -> None:
    """This rank's times will be by the host's clock plus ``offset_s``, whatever is measured."""
    find = tracing.find_clock
    monkeypatch.setattr(
        tracing, "find_clock", lambda *arguments: replace(find(*arguments), offset_s=offset_s)
    )


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("layout", ["two", "interleaved", "three interleaved"])
def test_every_op_of_every_rank_has_its_times(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """In seconds after the start, whatever the ranks' own clocks say."""
    real, ahead_s = clock.time.monotonic, SKEW_S * world.Get_rank()
    monkeypatch.setattr(clock.time, "monotonic", lambda: real() + ahead_s)
    plan, timeline = traced(world, layout, "chain")
    assert world.allgather(timeline) == [timeline] * world.Get_size()
    for rank, program in enumerate(plan.programs):
        assert len(timeline.start_s[rank]) == len(timeline.end_s[rank]) == len(program)
        for start_s, end_s in zip(timeline.start_s[rank], timeline.end_s[rank], strict=True):
            assert 0 <= start_s <= end_s
    assert timeline.makespan_s < CLOSE_S


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("layout", ["two", "interleaved"])
@pytest.mark.parametrize("algorithm", ["chain", "flat"])
def test_nothing_is_there_before_it_is_sent(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, layout: str, algorithm: str
) -> None:
    """All ranks are on one host: its clock is the same for all, and exact."""
    with_clocks_ahead(monkeypatch, 0.0)
    plan, timeline = traced(world, layout, algorithm)
    sent_s, came_s = {}, {}
    for rank, program in enumerate(plan.programs):
        for index, op in enumerate(program):
            if isinstance(op, Send):
                sent_s[rank, op.peer, op.tag] = timeline.start_s[rank][index]
            elif isinstance(op, Recv):
                came_s[op.peer, rank, op.tag] = timeline.end_s[rank][index]
    assert len(sent_s) >= world.Get_size() - 1
    assert sent_s.keys() == came_s.keys()
    for message, start_s in sent_s.items():
        assert start_s < came_s[message]


@pytest.mark.mpi(min_size=3)
def test_all_times_are_from_one_start(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where every rank begins a thousand seconds after the one before it, that is seen."""
    with_clocks_ahead(monkeypatch, SKEW_S * world.Get_rank())
    monkeypatch.setattr(tracing, "run_together", lambda _clock, step: step())  # now, by any clock
    _, timeline = traced(world, "two", "chain")
    for rank, starts_s in enumerate(timeline.start_s):
        assert abs(min(starts_s) - SKEW_S * rank) < CLOSE_S
