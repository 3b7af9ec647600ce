"""The model follows links that change, on all ranks at the same call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll import GridComm
from gridcoll.comm import following
from gridcoll.comm.decisions import ANY
from gridcoll.comm.learning import _Call
from gridcoll.measure.learning.agreed import Agreed, Alarm, Stamp
from gridcoll.measure.learning.changes import LinkFactors
from gridcoll.measure.learning.drift import Drift
from gridcoll.measure.learning.learner import Change, Learner, Observation
from gridcoll.measure.learning.links import Glance
from gridcoll.model import GridModel, SlowHosts
from gridcoll.topology import Cluster, Grid
from tests.mpi.learned import MOST_TRIES, check_calls, learning_of, near_comm, near_model, until
from tests.mpi.support import works

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def comm(world: MPI.Intracomm) -> Iterator[GridComm]:
    with near_comm(world) as comm:
        yield comm


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

    def __call__(self, *_: object) -> dict[tuple[int, int], LinkFactors]:
        self.n += 1
        return {pair: LinkFactors(1.0, self.gap) for pair in ((0, 1), (1, 0))}


def slowness(comm: GridComm) -> float:
    """Of the first link, over what it was at first."""
    learned = learning_of(comm)
    at_start = learned.following.first_model.link(0, 1)
    return comm.model.link(0, 1).gap(1 << 20) / at_start.gap(1 << 20)


def measured(world: MPI.Intracomm) -> GridModel:
    return replace(near_model(world.Get_size()), origin="measured")


def hosts_of(cluster: Cluster) -> set[str]:
    return {process.host for process in cluster.processes}


def notice(comm: GridComm) -> None:
    """``comm`` finds calls slower than they were, and looks."""
    until(comm, lambda: learning_of(comm).agreed.offset is not None)
    for _ in range(MOST_TRIES):
        learning_of(comm).learner.drift.suspicion = 1
        check_calls(comm, 1)
        if slowness(comm) > 5:
            return
    pytest.fail("never followed")


def test_the_model_follows_links_that_change_and_recover(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all ranks at the same call, and results stay right meanwhile."""
    looks: list[int] = []

    def look(*_: object) -> dict[tuple[int, int], LinkFactors]:
        looks.append(1)
        return {pair: LinkFactors(1.0, 10.0) for pair in ((0, 1), (1, 0))}

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
    assert len(looks) <= 2, "one look, and one if this machine's noise asks for it"
    comm.Free()
    own.Free()


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


def test_a_slow_host_changes_plans_but_not_the_grid(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On relatives, too; and all is as before when it has recovered."""
    Looks(monkeypatch)
    monkeypatch.setattr(following, "GLANCE_EVERY_S", 1e9)
    near = near_model(world.Get_size())
    grid = Grid.from_labels(near.grid.cluster_of)
    c = grid.ranks_per_cluster.index(max(grid.ranks_per_cluster))
    host = grid.clusters[c].processes[-1].host

    def look(_comm: object, _transport: object, model: GridModel, *_: object) -> object:
        # A child numbers its clusters in another order.
        d = next(i for i, each in enumerate(model.grid.clusters) if host in hosts_of(each))
        return {(d, d): LinkFactors(1.0, 3.0, slow_hosts=(host,))}

    monkeypatch.setattr(following, "look_at_links", look)
    own = world.Dup()
    comm = GridComm(own, model=replace(near, grid=grid, origin="measured"))
    sibling = comm.Dup()
    until(comm, lambda: learning_of(comm).agreed.offset is not None)
    for suspicion in (1, -1):
        for _ in range(MOST_TRIES):
            learning_of(comm).learner.drift.suspicion = suspicion
            check_calls(comm, 1)
            if bool(comm.model.slow_hosts) == (suspicion > 0):
                break
        expected = (SlowHosts(c, (host,), 3.0),) if suspicion > 0 else ()
        until(sibling, lambda expected=expected: sibling.model.slow_hosts == expected)  # type: ignore[misc]
        child = comm.Split(0, -comm.Get_rank())
        for each in (comm, sibling, child):
            assert bool(each.model.slow_hosts) == bool(expected)
            plans_for = learning_of(each).decisions.planning_model
            is_apart = bool(expected) and len(grid.clusters[c]) > 1
            assert plans_for.n_clusters == len(grid.clusters) + is_apart
            check_calls(each, 60)
        assert comm.model.grid == grid
        child.Free()
    sibling.Free()
    comm.Free()
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


def test_children_use_what_their_parent_has_heard_but_not_used_yet(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before they were made, or before their first call."""
    Looks(monkeypatch).gap = 1.0
    monkeypatch.setattr(following, "GLANCE_EVERY_S", 1e9)
    own = world.Dup()
    comm = GridComm(own, model=measured(world))
    other = replace(comm.model, links=comm.model.links[::-1])
    ranks = range(world.Get_size())[::-1]
    earlier = comm.Split(0, -comm.Get_rank())
    learning_of(comm).following.news.post(other)
    assert comm.model != other
    later = comm.Split(0, -comm.Get_rank())
    duplicate = comm.Dup()
    for child in (earlier, later):
        until(child, lambda child=child: child.model.links == other.restrict(ranks).links)  # type: ignore[misc]
    until(duplicate, lambda: duplicate.model.links == other.links)
    for each in (earlier, later, duplicate, comm):
        each.Free()
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
    race, _ = next(iter(learning_of(comm).learner._races.values()))
    race.surprise_s = math.inf  # so slow were calls from the first one on
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
    monkeypatch.setattr("gridcoll.measure.learning.learner.SURPRISE_FACTOR", -1e9)
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
    monkeypatch.setattr("gridcoll.measure.learning.learner.SURPRISE_FACTOR", -1e9)
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

    def watched(learner: Learner, seen: Sequence[Observation], *spent_s: float) -> list[Change]:
        told.append(len(seen))
        return learn(learner, seen, *spent_s)

    monkeypatch.setattr(Learner, "learn", watched)
    mine._restart_with(comm.model)
    for _ in range(MOST_TRIES):
        if len(told) > 1:
            break
        comm.Bcast(data)
    assert told[0] == 0
    assert told[1] > 0
    comm.Free()
    own.Free()


def test_what_a_rank_says_of_its_last_calls(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While exchanges are rare: whether calls take far longer, or less if links were slow."""
    Looks(monkeypatch)
    own = world.Dup()
    comm = GridComm(own, model=measured(world))
    mine, data = learning_of(comm), np.zeros(100)
    kind = mine._kind("bcast", data.nbytes, 0, ANY)
    for _ in range(MOST_TRIES):
        comm.Bcast(data)
        if mine.learner.usual_s(kind, mine.learner.leader(kind)) is not None:
            break
    arm = mine.learner.leader(kind)
    usual_s = mine.learner.usual_s(kind, arm)
    assert usual_s is not None
    mine.learner.drift.worth_s = usual_s

    def said(factor: float, n_calls: int) -> Alarm:
        call = _Call(kind, arm, None, mine.learner.n_starts, is_trial=False)
        return mine._watch([Stamp(call, 1.0, 1.0 + factor * usual_s)] * n_calls)

    mine.following.take_message()
    assert [said(factor, 4).slow for factor in (3.0, 1.5, 0.1)] == [True, False, False]
    assert [said(1.5 + 1, n_calls).slow for n_calls in (1, 2)] == [False, True]
    assert not said(0.1, 4).fast
    mine.following.changed = {(0, 1): LinkFactors(1.0, 10.0)}
    assert [said(factor, 4).fast for factor in (3.0, 0.9, 0.1)] == [False, False, True]
    mine.following._saw_better_link = True
    assert said(1.0, 1).slow
    comm.Free()
    own.Free()


def test_calls_slow_from_the_second_one_are_told_before_there_is_a_clock(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one opens connections."""
    monkeypatch.setattr(Agreed, "may_compare_clocks", False)
    own = world.Dup()
    comm = GridComm(own, model=measured(world))
    mine, data = learning_of(comm), np.zeros(100)
    comm.Bcast(data)
    kind = mine._kind("bcast", data.nbytes, 0, ANY)
    most_s = mine.learner.allowed_s(kind, 0)
    mine.learner.drift.worth_s = most_s

    def says_slow(seconds: float) -> bool:
        call = _Call(kind, 0, None, mine.learner.n_starts, is_trial=False)
        return mine._watch([Stamp(call, 1.0, 1.0 + seconds)] * 4).slow

    assert not says_slow(3 * most_s)
    until(comm, lambda: mine.agreed.n_points > 0)
    assert says_slow(3 * most_s)
    assert not says_slow(0.9 * most_s)
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
