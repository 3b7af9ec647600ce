"""Learning while an application runs: ranks agree, results stay right, nothing grows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll import GridComm
from gridcoll.comm import learning
from gridcoll.comm.decisions import ANY
from gridcoll.measure.learning import agreed
from gridcoll.measure.learning.agreed import Agreed, Point
from gridcoll.measure.learning.beliefs import Arm
from gridcoll.measure.learning.learner import Change, Kind, Learner, Ratio
from gridcoll.measure.learning.offsets import Offset
from gridcoll.topology import Grid
from tests.mpi.learned import MOST_TRIES, check_calls, learning_of, near_comm, near_model, until
from tests.mpi.support import bytes_kept, works

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def comm(world: MPI.Intracomm) -> Iterator[GridComm]:
    with near_comm(world) as comm:
        yield comm


def arms_used(comm: GridComm) -> dict[Kind, list[int]]:
    learner = learning_of(comm).learner
    return {kind: [row.n_calls for row in learner.rows(kind)] for kind in learner.kinds()}


def state_of(comm: GridComm) -> object:
    """All that decides: to be the same on all ranks."""
    mine = learning_of(comm)
    learner = mine.learner
    leaders = [(kind, learner.leader(kind)) for kind in learner.kinds()]
    return leaders, learner.total_s, learner.regret_s, mine.agreed.n_points


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
    monkeypatch.setattr(learning, "_known_ratios", {} if comm.Get_rank() in forgetful else known)
    child = comm.Split(0, comm.Get_rank())
    check_calls(child, 20)
    assert bool(learning_of(child).learner._former) == (not forgetful)
    child.Free()


@pytest.mark.long
def test_a_child_begins_to_learn_with_its_first_call(comm: GridComm) -> None:
    """Its parent's clock is the same as it was when the child was made."""
    until(comm, lambda: learning_of(comm).agreed.offset is not None)
    child = comm.Split(0, -comm.Get_rank())
    context = child._context
    assert context is not None
    assert "learning" not in vars(context)
    child.explain("bcast", 8)
    assert "learning" not in vars(context), "only all ranks together begin"
    grandchild = child.Dup()
    for each in (child, grandchild):
        assert each.bcast(each.Get_rank() + 1, 0) == 1
        assert learning_of(each).agreed.offset == learning_of(comm).agreed.offset
    grandchild.Free()
    child.Free()


def test_what_learning_keeps_does_not_grow(comm: GridComm) -> None:
    check_calls(comm, 300)
    agreed_points = learning_of(comm).agreed
    before = agreed_points.n_points
    kept = bytes_kept(lambda n: check_calls(comm, n) and None, 1200)
    assert kept < 400_000, "more than the last observations of each arm"
    until(comm, lambda: agreed_points.n_points > before)
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
