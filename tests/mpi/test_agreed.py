"""What ranks exchange at agreed points: stamps, clocks, and what calls cost."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm import learning
from gridcoll.engine.transport import MPITransport
from gridcoll.measure.learning import agreed
from gridcoll.measure.learning.agreed import WATCH_CALLS, Agreed, Alarm, Point
from gridcoll.measure.learning.learner import Change, Learner, Observation
from gridcoll.measure.learning.offsets import Offset, compare_clocks
from tests.mpi.learned import check_calls, near_model, until

pytestmark = pytest.mark.mpi(min_size=2)


def test_calls_are_seen_only_by_a_clock_that_all_have(world: MPI.Intracomm) -> None:
    own = world.Dup()
    points = Agreed(own, 1e-6, offset=Offset() if world.Get_rank() else None)
    found = [point for call in range(20) if (point := points.end(call, 0.0, 1.0))]
    points.close()
    assert found
    assert not any(point.seen or point.on_clock for point in found)
    assert points.offset is None
    own.Free()


def test_what_calls_lost_is_known_before_there_is_a_clock(world: MPI.Intracomm) -> None:
    """On the rank that lost least: others may have waited for it."""
    own, rank = world.Dup(), world.Get_rank()
    points = Agreed(own, 1e-6, allowed_s=lambda tag: 0.5 if tag == "slow" else math.inf)
    lost = [
        point.lost_s
        for call in range(8)
        if (point := points.end("slow" if call else "first", 0.0, 1.5 + rank))
    ]
    points.close()
    assert lost[0] == pytest.approx(3.0)  # of four calls, the first of which does not count
    own.Free()


@pytest.mark.parametrize("who", ["one slow", "one fast", "all fast"])
def test_what_ranks_say_while_they_watch(world: MPI.Intracomm, who: str) -> None:
    """One of them may be the only one that waits. Calls are faster only if they are for all."""
    own, speaks = world.Dup(), False

    def watch(_: Sequence[object]) -> Alarm:
        mine = speaks and (who == "all fast" or world.Get_rank() == 1)
        return Alarm(slow=mine and who == "one slow", fast=mine and who != "one slow")

    points = Agreed(own, 1e-6, offset=Offset(), watch=watch)
    at: list[int] = []
    for call in range(20 * WATCH_CALLS):
        speaks = call > 10 * WATCH_CALLS
        if points.end("call", float(call), call + 1.0):
            at.append(call)
            points.spend(100.0)
    assert at[0] < 2 * WATCH_CALLS
    assert (at[-1] > 10 * WATCH_CALLS) == (who != "one fast")
    points.close()
    own.Free()


def test_a_call_that_begins_when_its_root_comes(world: MPI.Intracomm) -> None:
    """All know what it took from there, and from when the last rank came."""
    own, rank, last = world.Dup(), world.Get_rank(), world.Get_size() - 1
    points = Agreed(own, 1e-6, offset=Offset(), begins=lambda tag: tag != "from 0" or rank == 0)
    found: list[Point] = []
    for call in range(20):
        tag = "from 0" if call % 2 else "all"
        # The root of every other such call comes before the call before has ended.
        early_s = 100.0 if call % 4 == 3 and rank == 0 else 0.0
        entry_s = 100.0 * call + rank + 1 - early_s
        if point := points.end(tag, entry_s, 100.0 * call + 2 * last + 1):
            found.append(point)
    points.close()
    seen = [each for point in found for each in point.seen]
    assert {each.tag for each in seen} == {"from 0", "all"}
    assert {each.behind_s > last for each in seen} == {False, True}
    for each in seen:
        early_s = max(each.behind_s - last, 0.0)
        assert each.seconds == last
        assert each.skew_s == last + early_s
        assert each.behind_s == (last + early_s if each.tag == "from 0" else 0)
        from_root_s = 100 if early_s else 2 * last
        assert each.whole_s == (from_root_s if each.tag == "from 0" else last)
    own.Free()


def test_how_late_others_are_for_a_broadcast_counts_from_its_root(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an allreduce all have to come."""
    seen: list[Observation] = []
    learn, late_s = Learner.learn, 0.02

    def learning_too(self: Learner, given: Sequence[Observation], *spent_s: float) -> list[Change]:
        seen.extend(given)
        return learn(self, given, *spent_s)

    monkeypatch.setattr(Learner, "learn", learning_too)
    comm = GridComm(world.Dup(), model=near_model(world.Get_size()))
    data, result = np.zeros(8), np.zeros(8)

    def call() -> None:
        for late_rank, run in (
            (1, lambda: comm.Bcast(data, 0)),
            (0, lambda: comm.Bcast(data, 0)),
            (1, lambda: comm.Allreduce(data, result)),
        ):
            if world.Get_rank() == late_rank:
                time.sleep(late_s)
            run()

    while not all(
        any(each.kind.collective == name for each in seen) for name in ("bcast", "allreduce")
    ):
        for _ in range(5):
            call()
    broadcasts = [each for each in seen if each.kind.collective == "bcast"]
    assert any(each.whole_s - each.seconds > late_s / 2 for each in broadcasts)
    assert all(each.whole_s == each.seconds for each in seen if each not in broadcasts)
    comm.Free()


def test_work_costs_what_it_takes_the_last_rank(world: MPI.Intracomm) -> None:
    """All wait for that one; but who waits longer than others waits for a late rank."""
    own, rank = world.Dup(), world.Get_rank()
    points = Agreed(own, 1e-6, offset=Offset())
    points.spend(rank)
    points.spend(100 * rank, waiting=True)
    found = [point for call in range(20) if (point := points.end(call, 0.0, 1.0))]
    points.close()
    last = world.Get_size() - 1
    assert last <= found[0].overhead_s < last + 50
    own.Free()


def test_clocks_are_compared_with_rank_0(world: MPI.Intracomm) -> None:
    own, rank = world.Dup(), world.Get_rank()
    grid = near_model(world.Get_size()).grid
    found = compare_clocks(
        MPITransport(own), rank, grid, None, lambda: time.monotonic() + 100 * rank
    )
    assert abs(found.seconds + 100 * rank) < 0.2
    own.Free()


def test_a_clock_that_runs_faster_is_followed(world: MPI.Intracomm) -> None:
    """Compared twice, it shows by how much, and times between comparisons are right."""
    own, rank = world.Dup(), world.Get_rank()
    grid, passed_s = near_model(world.Get_size()).grid, 0.0

    def now() -> float:
        return time.monotonic() + (1 + rank) * passed_s

    found = compare_clocks(MPITransport(own), rank, grid, None, now)
    passed_s = 100.0
    found = compare_clocks(MPITransport(own), rank, grid, found, now)
    passed_s = 150.0
    assert abs(found.common(now()) - (time.monotonic() + passed_s)) < 0.2
    own.Free()


def test_clocks_are_compared_again(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks do so at the same call."""
    compared: list[Offset | None] = []

    def comparing(*given: Any) -> Offset:
        compared.append(given[3])
        return compare_clocks(*given)

    monkeypatch.setattr(learning, "compare_clocks", comparing)
    comm = GridComm(world.Dup(), model=near_model(world.Get_size()))
    until(comm, lambda: bool(compared))
    check_calls(comm, 200)
    assert compared == [None]
    monkeypatch.setattr(agreed, "COMPARE_EVERY_S", 0.0)
    monkeypatch.setattr(agreed, "OVERHEAD_PART", 1e9)
    monkeypatch.setattr(agreed, "MOST_WAIT_S", 0.0)
    until(comm, lambda: len(compared) > 2)
    assert None not in compared[1:]
    comm.Free()
