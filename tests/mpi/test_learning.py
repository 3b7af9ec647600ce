"""Learning while an application runs: ranks agree, results stay right, nothing grows."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm import following, learning
from gridcoll.comm.decisions import ANY
from gridcoll.comm.learning import Learning
from gridcoll.engine.transport import MPITransport
from gridcoll.measure.learning import agreed
from gridcoll.measure.learning.agreed import Agreed, Point
from gridcoll.measure.learning.beliefs import Arm
from gridcoll.measure.learning.drift import Drift
from gridcoll.measure.learning.learner import Change, Kind, Learner, Observation, Ratio
from gridcoll.measure.learning.links import Found, Glance
from gridcoll.measure.learning.offsets import Offset, compare_clocks
from gridcoll.model import GridModel, linear_plogp
from gridcoll.topology import Grid
from tests.mpi.support import bytes_kept, layouts, works

pytestmark = pytest.mark.mpi(min_size=2)

MOST_TRIES = 6 * agreed.MOST_CALLS
"""Agreed points come by what they cost, on a busy machine no more often than their rule says."""


def near_model(n_ranks: int) -> GridModel:
    """Two clusters as near as processes of one machine are: clocks are compared soon."""
    grid = Grid.from_labels(layouts(n_ranks).get("two", [0] * n_ranks), ["here"] * n_ranks)
    near, far = linear_plogp(5e-6, 1e9), linear_plogp(10e-6, 1e9)
    places = range(len(grid.clusters))
    links = tuple(tuple(near if a == b else far for b in places) for a in places)
    return GridModel(grid, links)


@pytest.fixture
def comm(world: MPI.Intracomm) -> Iterator[GridComm]:
    own = world.Dup()
    comm = GridComm(own, model=near_model(world.Get_size()))
    yield comm
    comm.Free()
    own.Free()


def learning_of(comm: GridComm) -> Learning:
    context = comm._context
    assert context is not None
    assert context.learning is not None
    return context.learning


def arms_used(comm: GridComm) -> dict[Kind, list[int]]:
    learner = learning_of(comm).learner
    return {kind: [row.n_calls for row in learner.rows(kind)] for kind in learner.kinds()}


def state_of(comm: GridComm) -> object:
    """All that decides: to be the same on all ranks."""
    mine = learning_of(comm)
    learner = mine.learner
    leaders = [(kind, learner.leader(kind)) for kind in learner.kinds()]
    return leaders, learner.total_s, learner.regret_s, mine.agreed.n_points


def check_calls(comm: GridComm, n_calls: int) -> int:
    """Allreduces of floats whose bits depend on the order, and others; how often ranks differed."""
    plain = MPI.Intracomm(comm)
    luck = np.random.default_rng(comm.Get_rank())
    mine, size = luck.normal(size=1000), comm.Get_size()
    total, differed = np.empty(1000), 0
    for call in range(n_calls):
        comm.Allreduce(mine, total)
        if call % 10 == 0:
            sums = plain.allgather(total.tobytes())
            differed += len(set(sums)) > 1
        data = np.full(700, call if comm.Get_rank() == call % size else -1)
        comm.Bcast(data, call % size)
        assert (data == call).all()
        blocks = np.full((size, 20), comm.Get_rank() + call)
        got = np.empty_like(blocks)
        comm.Alltoall(blocks, got)
        assert (got[:, 0] == np.arange(size) + call).all()
        if call % 50 == 0:
            assert comm.bcast({"call": call}, 0) == {"call": call}
            request = comm.Iallreduce(mine, total)
            request.Wait()
    return differed


def most_tried(comm: GridComm) -> int:
    """Of one kind of calls, how many arms were used; equal on all ranks."""
    return max(sum(n > 0 for n in row) for row in arms_used(comm).values())


@pytest.mark.long
def test_ten_thousand_calls_with_decisions_changing(comm: GridComm) -> None:
    """Every rank gets the same bits at every call, and all decide alike."""
    assert check_calls(comm, 3400) == 0
    for _ in range(MOST_TRIES // 100):  # on a busy machine, points are rare
        if learning_of(comm).agreed.n_points > 10 and most_tried(comm) > 1:
            break
        assert check_calls(comm, 100) == 0
    states = MPI.Intracomm(comm).allgather(state_of(comm))
    assert all(state == states[0] for state in states)
    assert most_tried(comm) > 1, "nothing but the first choice was ever used"
    assert learning_of(comm).agreed.n_points > 10
    works(comm)


def test_explain_says_what_was_observed(comm: GridComm) -> None:
    for _ in range(100):  # on a busy machine, ways are tried one after another for long
        check_calls(comm, 100)
        choice = comm.explain("allreduce", 8000)
        if choice.winner.observed_s:
            break
    assert choice.winner.observed_s
    assert choice.winner.n_calls
    assert "observed:" in str(choice)
    n_calls = sum(each.n_calls for each in choice.candidates)
    calls = "1 call" if n_calls == 1 else f"{n_calls} calls"
    assert choice.sources[-1] == f"observed: {calls} of this job"
    assert choice.sources[0] == "links: declared"
    said = MPI.Intracomm(comm).allgather(str(choice))
    assert said == [said[0]] * comm.Get_size()


@pytest.mark.parametrize("setting", ["decisions", ""])
def test_a_line_says_which_decision_changed(
    world: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    setting: str,
) -> None:
    """On rank 0, if it was asked for: the call's number, what was used and what is, and why."""
    monkeypatch.setenv("GRIDCOLL_LOG", setting)
    kind = Kind("bcast", 1 << 20, 0, 0, ANY)
    before, after = (Arm(name, name, 1.0, 0.1, name) for name in ("stars", "chain"))
    told = [Change(kind, before, after, 140e-3, 101e-3, 7)]
    monkeypatch.setattr(Learner, "learn", lambda *_: [told.pop()] if told else [])
    own = world.Dup()
    with caplog.at_level("WARNING", "gridcoll"):
        comm = GridComm(own, model=near_model(world.Get_size()))
        for _ in range(MOST_TRIES):
            if not world.allreduce(len(told)):
                break
            works(comm)
        comm.Free()
    own.Free()
    assert not told
    lines = [line for line in caplog.messages if "chain (101 ms in 7 calls) instead" in line]
    assert len(lines) == (world.Get_rank() == 0 and setting == "decisions")
    for line in lines:
        assert line.startswith("gridcoll: call ")
        assert "bcast of 1 MiB, root 0" in line


@pytest.mark.parametrize("forgetful", [(), (1,)])
def test_a_child_of_the_same_shape_brings_what_was_learned(
    comm: GridComm, monkeypatch: pytest.MonkeyPatch, forgetful: tuple[int, ...]
) -> None:
    """Unless some rank does not know the same."""
    known = {learning.shape_of(comm.model): [Ratio(Kind("bcast", 8), "chain", 0.3, 1.0)]}
    monkeypatch.setattr(learning, "_known", {} if comm.Get_rank() in forgetful else known)
    child = comm.Split(0, comm.Get_rank())
    check_calls(child, 20)
    assert bool(learning_of(child).learner._former) == (not forgetful)
    child.Free()


@pytest.mark.long
def test_what_learning_keeps_does_not_grow(comm: GridComm) -> None:
    check_calls(comm, 300)
    agreed_points = learning_of(comm).agreed
    before = agreed_points.n_points
    kept = bytes_kept(lambda n: check_calls(comm, n) and None, 1200)
    assert agreed_points.n_points > before
    assert kept < 400_000, "more than the last observations of each arm"
    assert len(agreed._under_way) <= 1


def test_threads_with_a_communicator_each(world: MPI.Intracomm) -> None:
    """Ranks come to the calls of two communicators in any order; each learns by itself."""
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("needs MPI.THREAD_MULTIPLE")
    model = near_model(world.Get_size())
    comms = [GridComm(world.Dup(), model=model) for _ in range(2)]
    comms.append(comms[0].Dup())
    failures: list[BaseException] = []

    def work(comm: GridComm, pause_s: float) -> None:
        try:
            for call in range(250):
                data = np.full(500, call if comm.Get_rank() == 0 else -1)
                comm.Bcast(data, 0)
                assert (data == call).all()
                total = np.empty(300)
                comm.Allreduce(np.ones(300), total)
                assert (total == comm.Get_size()).all()
                if call % 50 == world.Get_rank():
                    time.sleep(pause_s)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(comm, 0.01 * k)) for k, comm in enumerate(comms)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for comm in comms:
        states = world.allgather(state_of(comm))
        assert all(state == states[0] for state in states)
    for comm in reversed(comms):
        comm.Free()


def test_a_rank_that_is_late_by_seconds_spoils_nothing(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What calls took that waited for it is what they took from when it came."""
    monkeypatch.setattr(agreed, "MOST_CALLS", 32)  # so that all calls are exchanged
    monkeypatch.setattr(agreed, "MOST_WAIT_S", 0.0)
    own = world.Dup()
    points = Agreed(own, 1e-6, offset=Offset())
    found: list[Point] = []
    call, seen = 0, set[object]()
    while 12 not in seen and call < 2000:
        if call == 12 and world.Get_rank() == 1:
            time.sleep(2.0)
        entry_s = time.monotonic()
        own.Barrier()
        if point := points.end(call, entry_s, time.monotonic()):
            found.append(point)
            seen |= {each.tag for each in point.seen}
        call += 1
    points.close()
    by_call = {each.tag: each for point in found for each in point.seen}
    assert by_call[12].seconds < 1.0
    assert by_call[12].skew_s > 1.9
    assert world.allgather(sorted(by_call)) == [sorted(by_call)] * world.Get_size()
    own.Free()


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

    def learning_too(self: Learner, given: Sequence[Observation], total_s: float) -> list[Change]:
        seen.extend(given)
        return learn(self, given, total_s)

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


def test_frozen(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDCOLL_LEARN", "off")
    comm = GridComm(world.Dup(), model=near_model(world.Get_size()))
    assert comm._context is not None
    assert comm._context.learning is None
    comm.Free()


def test_one_cluster_learns_nothing(world: MPI.Intracomm) -> None:
    model = replace(near_model(world.Get_size()))
    grid = Grid.from_labels([0] * world.Get_size())
    comm = GridComm(world.Dup(), model=replace(model, grid=grid, links=((model.links[0][0],),)))
    assert comm._context is not None
    assert comm._context.learning is None
    comm.Free()


def test_what_was_asked_for_stays(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDCOLL_BCAST", "chain")
    comm = GridComm(world.Dup(), model=near_model(world.Get_size()))
    for call in range(300):
        data = np.full(64, call if world.Get_rank() == 0 else -1)
        comm.Bcast(data, 0)
    assert not [kind for kind in learning_of(comm).learner.kinds() if kind.collective == "bcast"]
    comm.Free()


def test_the_model_follows_links_that_change_and_recover(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all ranks at the same call, and results stay right meanwhile."""
    looks: list[int] = []

    def look(*_: object) -> dict[tuple[int, int], Found]:
        looks.append(1)
        return {pair: Found(1.0, 10.0) for pair in ((0, 1), (1, 0))}

    monkeypatch.setattr(following, "look_at_links", look)
    monkeypatch.setattr(following, "GLANCE_EVERY_S", 1e9)
    own = world.Dup()
    comm = GridComm(own, model=replace(near_model(world.Get_size()), origin="measured"))
    before = comm.model
    while learning_of(comm).agreed.offset is None:
        check_calls(comm, 10)
    for suspicion, factor in ((1, 10.0), (-1, 1.0)):
        expected_s = factor * before.link(0, 1).gap(1 << 20)
        for _ in range(MOST_TRIES):
            # Noise of this machine may say something else meanwhile.
            learning_of(comm).learner.drift.suspicion = suspicion
            check_calls(comm, 1)
            if comm.model.link(0, 1).gap(1 << 20) == pytest.approx(expected_s, rel=0.1):
                break
        assert comm.model.link(0, 1).gap(1 << 20) == pytest.approx(expected_s, rel=0.1)
        models = world.allgather(comm.model.links)
        assert all(links == models[0] for links in models)
    assert len(looks) == 1, "links were looked at twice within a minute"
    comm.Free()
    own.Free()


class Looks:
    """Looks at links that find them ``gap`` times slower, and how many there were.

    What calls take on this machine leads to none: its noise is no network.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n, self.gap = 0, 10.0
        monkeypatch.setattr(following, "look_at_links", self)
        monkeypatch.setattr(following, "IDLE_GLANCE_EVERY_S", 1e9)
        for name in ("look", "look_late"):
            monkeypatch.setattr(Drift, name, lambda *_, **__: None)

    def __call__(self, *_: object) -> dict[tuple[int, int], Found]:
        self.n += 1
        return {pair: Found(1.0, self.gap) for pair in ((0, 1), (1, 0))}


def slowness(comm: GridComm) -> float:
    """Of the first link, over what it was at first."""
    learned = learning_of(comm)
    at_start = learned.following.at_start.link(0, 1)
    return comm.model.link(0, 1).gap(1 << 20) / at_start.gap(1 << 20)


def until(comm: GridComm, true: Callable[[], bool]) -> None:
    """Make calls; ``true`` is the same on all ranks."""
    for _ in range(MOST_TRIES):
        if true():
            return
        learning_of(comm).learner.drift.suspicion = 0
        check_calls(comm, 1)
    pytest.fail("never")


def measured(world: MPI.Intracomm) -> GridModel:
    return replace(near_model(world.Get_size()), origin="measured")


def notice(comm: GridComm) -> None:
    """``comm`` finds calls slower than they were, and looks."""
    until(comm, lambda: learning_of(comm).agreed.offset is not None)
    for _ in range(MOST_TRIES):
        learning_of(comm).learner.drift.suspicion = 1
        check_calls(comm, 1)
        if slowness(comm) > 5:
            return
    pytest.fail("never followed")


def test_what_one_communicator_finds_reaches_its_relatives(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sibling of the same processes and a child take it; the parent looks by itself."""
    looks = Looks(monkeypatch)
    monkeypatch.setattr(following, "GLANCE_EVERY_S", 1e9)
    own = world.Dup()
    parent = GridComm(own, model=measured(world))
    until(parent, lambda: learning_of(parent).agreed.offset is not None)
    finder, sibling = (parent.Split(0, parent.Get_rank()) for _ in range(2))
    child = finder.Split(0, -finder.Get_rank())
    notice(finder)
    assert looks.n == 1
    for each in (sibling, child):
        until(each, lambda each=each: slowness(each) > 5)  # type: ignore[misc]
        assert looks.n == 1, "nothing was to be found out"
        models = world.allgather(each.model.links)
        assert all(links == models[0] for links in models)
    until(parent, lambda: slowness(parent) > 5)
    assert looks.n == 2, "others of the parent's ranks might not have known"
    late = sibling.Dup()
    assert slowness(late) > 5
    looks.gap = 1.0
    for _ in range(MOST_TRIES):
        learning_of(finder).learner.drift.suspicion = -1
        check_calls(finder, 1)
        if slowness(finder) < 2:
            break
    for each in (sibling, child, late):
        until(each, lambda each=each: slowness(each) == pytest.approx(1.0))  # type: ignore[misc]
    for each in (late, child, sibling, finder, parent):
        each.Free()
    own.Free()


def test_what_only_some_ranks_heard_is_not_used(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    Looks(monkeypatch).gap = 1.0  # this machine's own noise is not to be followed
    monkeypatch.setattr(following, "GLANCE_EVERY_S", 1e9)
    own = world.Dup()
    comm = GridComm(own, model=measured(world))
    until(comm, lambda: learning_of(comm).agreed.offset is not None)
    before = comm.model
    if world.Get_rank():
        other = replace(before, links=before.links[::-1])
        learning_of(comm).following.news.post(other)
    n_points = learning_of(comm).agreed.n_points + 3
    until(comm, lambda: learning_of(comm).agreed.n_points >= n_points)
    assert comm.model.links == before.links
    comm.Free()
    own.Free()


def test_one_rank_that_sees_a_better_link_makes_all_look(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)
    monkeypatch.setattr(following, "GLANCE_EVERY_S", 1e9)
    own = world.Dup()
    comm = GridComm(own, model=measured(world))
    notice(comm)
    looks.gap = 1.0
    only = world.Get_size() - 1
    monkeypatch.setattr(Glance, "is_better", lambda _self, _messages, rank, _model: rank == only)
    monkeypatch.setattr(following, "OVERHEAD_PART", 1e9)  # glances cost what they like
    monkeypatch.setattr(following, "GLANCE_EVERY_S", 0.0)
    until(comm, lambda: slowness(comm) < 2)
    assert looks.n == 2
    assert world.allgather(comm.model.links) == [comm.model.links] * world.Get_size()
    comm.Free()
    own.Free()


def test_declared_links_are_corrected_and_not_taken_back_unseen(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may never have been as declared: calls that are faster again do not prove it."""
    looks = Looks(monkeypatch)
    monkeypatch.setattr(Glance, "is_better", lambda *_: False)
    monkeypatch.setattr(following, "GLANCE_EVERY_S", 0.0)
    own, model = world.Dup(), near_model(world.Get_size())
    apart = Grid.from_labels(model.grid.cluster_of)
    comm = GridComm(own, model=replace(model, grid=apart))
    until(comm, lambda: learning_of(comm).agreed.offset is not None)
    learning_of(comm).learner.surprise_s = math.inf  # so slow were calls from the first one on
    until(comm, lambda: slowness(comm) > 5)
    assert not learning_of(comm).learner._former, "a wrong model's errors say nothing of another"
    for gap, n_looks in ((10.0, 2), (1.0, 3)):
        looks.gap = gap
        for _ in range(MOST_TRIES):
            if looks.n == n_looks:
                break
            learning_of(comm).learner.drift.suspicion = -1
            check_calls(comm, 1)
        assert looks.n == n_looks
        assert slowness(comm) == pytest.approx(gap, rel=0.2)
        assert world.allgather(comm.model.links) == [comm.model.links] * world.Get_size()
    comm.Free()
    own.Free()


def test_links_slower_than_known_are_looked_at_without_saving_up_for_a_clock(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock costs many calls' part for learning, and calls are slow already."""
    looks = Looks(monkeypatch)
    monkeypatch.setattr(Agreed, "may_compare_clocks", False)
    monkeypatch.setattr("gridcoll.measure.learning.learner.SURPRISING", -1e9)
    own, model = world.Dup(), near_model(world.Get_size())
    comm = GridComm(own, model=replace(model, grid=Grid.from_labels(model.grid.cluster_of)))
    until(comm, lambda: looks.n > 0)
    assert slowness(comm) > 5
    comm.Free()
    own.Free()


def test_a_grid_on_one_machine_asks_for_no_early_clock(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Agreed, "may_compare_clocks", False)
    monkeypatch.setattr("gridcoll.measure.learning.learner.SURPRISING", -1e9)
    own = world.Dup()
    comm = GridComm(own, model=near_model(world.Get_size()))
    until(comm, lambda: learning_of(comm).agreed.n_points > 3)
    assert learning_of(comm).agreed.offset is None
    comm.Free()
    own.Free()


def test_calls_before_a_change_do_not_count_after_it(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What other plans took says nothing of those that another model makes."""
    Looks(monkeypatch).gap = 1.0
    own = world.Dup()
    comm = GridComm(own, model=near_model(world.Get_size()))
    mine = learning_of(comm)
    until(comm, lambda: mine.agreed.offset is not None)
    data = np.zeros(100)
    for _ in range(MOST_TRIES):
        if mine.agreed._under_way is not None:
            break
        comm.Bcast(data)
    told: list[int] = []
    learn = Learner.learn

    def watched(learner: Learner, seen: Sequence[Observation], total_s: float) -> list[Change]:
        told.append(len(seen))
        return learn(learner, seen, total_s)

    monkeypatch.setattr(Learner, "learn", watched)
    mine._begin_anew(comm.model)
    for _ in range(MOST_TRIES):
        if len(told) > 1:
            break
        comm.Bcast(data)
    assert told[0] == 0
    assert told[1] > 0
    comm.Free()
    own.Free()


def test_a_doubt_is_worth_one_look_and_no_competition(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks(monkeypatch)
    looks.gap = 1.0
    forgotten: list[int] = []
    monkeypatch.setattr(Learner, "forget", lambda _: forgotten.append(looks.n))
    own = world.Dup()
    comm = GridComm(own, model=measured(world))
    until(comm, lambda: learning_of(comm).agreed.offset is not None)
    learning_of(comm).learner.drift.doubt = True
    until(comm, lambda: looks.n > 0)
    n_points = learning_of(comm).agreed.n_points + 3
    until(comm, lambda: learning_of(comm).agreed.n_points >= n_points)
    assert (looks.n, forgotten) == (1, [])
    comm.Free()
    own.Free()


def test_links_measured_on_demand(comm: GridComm) -> None:
    before = comm.model
    names = [cluster.name for cluster in comm.grid.clusters]
    comm.remeasure([(names[0], names[1])])
    assert comm.model.link(0, 1) != before.link(0, 1)
    assert comm.model.link(0, 0) == before.link(0, 0)
    models = MPI.Intracomm(comm).allgather(comm.model.links)
    assert all(links == models[0] for links in models)
    works(comm)


def test_no_link_of_that_name(comm: GridComm) -> None:
    from gridcoll.errors import UsageError

    with pytest.raises(UsageError, match="nowhere"):
        comm.remeasure([("nowhere", comm.grid.clusters[0].name)])
