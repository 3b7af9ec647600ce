"""Other calls of the MPI library that do the same: right, the same on all ranks, and taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm import variants
from gridcoll.comm.methods import alltoall, broadcast
from gridcoll.errors import DisagreementError
from gridcoll.model import TimesBySize
from gridcoll.plan.natives import NATIVE, NONBLOCKING, TIMED, VECTOR, variants_of
from tests.mpi import bodies
from tests.mpi.blocks import outcome
from tests.mpi.harness import Grids, check_algorithm
from tests.mpi.support import grid_comm, grid_model, layouts
from tests.mpi.test_alltoall_errors import WRONG as WRONG_ALLTOALL
from tests.mpi.test_errors import WRONG as WRONG_BCAST

BODIES: dict[str, bodies.Body] = {
    "bcast": bodies.check_bcast,
    "allreduce": bodies.check_allreduce,
    "reduce": bodies.check_reduce,
    "alltoall": bodies.check_routing,
    "gather": bodies.check_gather,
    "scatter": bodies.check_scatter,
    "allgather": bodies.check_allgather,
    "reduce_scatter": bodies.check_reduce_scatter_block,
    "barrier": bodies.check_barrier,
}
VARIANTS = [(collective, name) for collective in TIMED for name in variants_of(collective)]
UNIT_BYTES = {"allreduce": 8, "reduce": 8}
QUICK = 1e-9


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of plain mpi4py's methods ran on behalf of variants, on this rank."""
    names: list[str] = []

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            names.append(name)
            return getattr(MPI.Intracomm, name)

    monkeypatch.setattr(variants, "MPI", SimpleNamespace(Intracomm=Recorder(), BYTE=MPI.BYTE))
    return names


def call_of(collective: str, name: str) -> str:
    """What ``called`` has of a variant."""
    if name == VECTOR:
        return "Alltoallv"
    return "Ireduce_scatter_block" if collective == "reduce_scatter" else f"I{collective}"


@contextmanager
def timed_comm(
    world: MPI.Intracomm,
    times_s: Mapping[str, Mapping[str, float]],
    labels: list[int] | None = None,
) -> Iterator[GridComm]:
    """Ours where natives took so long, by collective; two clusters unless told otherwise."""

    def flat(seconds: float) -> TimesBySize:
        return TimesBySize((8, 1 << 22), (seconds, seconds))

    size = world.Get_size()
    own = world.Dup()
    model = replace(
        grid_model(labels or layouts(size).get("two", [0] * size)),
        native={collective: flat(by[NATIVE]) for collective, by in times_s.items()},
        native_variants={
            collective: {name: flat(s) for name, s in by.items() if name != NATIVE}
            for collective, by in times_s.items()
        },
    )
    comm = GridComm(own, model=model)
    try:
        yield comm
    finally:
        comm.Free()
        own.Free()


@pytest.mark.parametrize("layout", ["one cluster", "two", "interleaved", "all alone"])
@pytest.mark.parametrize(("collective", "name"), VARIANTS)
def test_results(
    grids: Grids, collective: str, name: str, layout: str, n_planned: list[int], called: list[str]
) -> None:
    """IN_PLACE included, wherever the bodies have it."""
    size = MPI.COMM_WORLD.Get_size()
    check_algorithm(
        grids(layout), collective, name, BODIES[collective],
        cases=[(0, 0), (1, size - 1), (7, size // 2), (1009, 0), (65537, size - 1)],
        n_calls=0, unit_bytes=UNIT_BYTES.get(collective, 4), n_planned=n_planned,
    )  # fmt: skip
    if grids(layout) is not None:
        assert set(called) == {call_of(collective, name)}
        assert len(called) >= 5


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("labels", ["two", "one cluster"])
@pytest.mark.parametrize(("collective", "name"), VARIANTS)
def test_one_that_was_measured_faster_is_taken(
    world: MPI.Intracomm, collective: str, name: str, labels: str, called: list[str]
) -> None:
    """By all ranks alike; one that was not leaves the plain one as it is."""
    ranks = layouts(world.Get_size())[labels]
    body = BODIES[collective]
    with timed_comm(world, {collective: {NATIVE: 2 * QUICK, name: QUICK}}, ranks) as comm:
        choice = comm.explain(collective, 4096, 0)
        assert choice.winner.name == name
        assert world.allgather(choice.reason) == [choice.reason] * world.Get_size()
        body(comm, 1009, 0)
        assert set(called) == {call_of(collective, name)}
    called.clear()
    with timed_comm(world, {collective: {NATIVE: QUICK, name: QUICK}}, ranks) as comm:
        body(comm, 1009, 0)
        assert call_of(collective, name) not in called


@pytest.mark.parametrize(("collective", "name"), VARIANTS)
def test_settings_ask_for_it(
    world: MPI.Intracomm,
    collective: str,
    name: str,
    called: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"GRIDCOLL_{collective.upper()}", name)
    with grid_comm(world) as comm:
        BODIES[collective](comm, 100, 0)
        assert set(called) == {call_of(collective, name)}
        # Children go by the same settings.
        called.clear()
        child = comm.Split(0, -comm.Get_rank())
        BODIES[collective](child, 100, 0)
        child.Free()
        assert set(called) == {call_of(collective, name)}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("layout", ["two", "interleaved", "all alone"])
def test_sums_of_floats_are_left_to_none_between_clusters(
    world: MPI.Intracomm, layout: str, n_planned: list[int], called: list[str]
) -> None:
    """However fast it is: ranks might get different bits. Of integers they cannot."""
    labels = layouts(world.Get_size()).get(layout)
    if labels is None:
        return
    with timed_comm(world, {"allreduce": {NATIVE: 2 * QUICK, NONBLOCKING: QUICK}}, labels) as comm:
        comm.Allreduce(np.ones(100), np.zeros(100))
        assert (n_planned[0], called) == (1, [])
        comm.Allreduce(np.ones(100, "i8"), np.zeros(100, "i8"))
        assert (n_planned[0], called) == (1, ["Iallreduce"])


@pytest.mark.mpi(min_size=2)
def test_rank_order_is_asked_of_the_plain_one(world: MPI.Intracomm, called: list[str]) -> None:
    def right(a: MPI.buffer, b: MPI.buffer, datatype: MPI.Datatype) -> None:
        np.frombuffer(b, "i8")[:] = np.frombuffer(b, "i8")

    op = MPI.Op.Create(right, commute=False)
    with timed_comm(world, {"reduce": {NATIVE: 2 * QUICK, NONBLOCKING: QUICK}}) as comm:
        result = np.zeros(3, "i8")
        comm.Reduce(np.full(3, comm.Get_rank()), result, op)
        if comm.Get_rank() == 0:
            assert (result == comm.Get_size() - 1).all()
    op.Free()
    assert "Ireduce" not in called


def test_operations_of_the_users(world: MPI.Intracomm, called: list[str]) -> None:
    """Called while we wait, and freed right after."""

    def add(a: MPI.buffer, b: MPI.buffer, datatype: MPI.Datatype) -> None:
        right = np.frombuffer(b, "i8")
        right += np.frombuffer(a, "i8")

    size = world.Get_size()
    with grid_comm(world) as comm:
        ours = comm.forced("allreduce", NONBLOCKING)
        for _ in range(5):
            op = MPI.Op.Create(add, commute=True)
            result = np.zeros(1000, "i8")
            ours.Allreduce(np.arange(1000), result, op)
            op.Free()
            assert (result == np.arange(1000) * size).all()
    assert called == ["Iallreduce"] * 5


class TestKnown:
    """A call that is known to be a variant is handed over unread, where that is safe."""

    @pytest.mark.mpi(min_size=2)
    @pytest.mark.parametrize(("collective", "name"), [v for v in VARIANTS if v[0] == "bcast"])
    def test_bcast(
        self,
        world: MPI.Intracomm,
        monkeypatch: pytest.MonkeyPatch,
        collective: str,
        name: str,
        called: list[str],
    ) -> None:
        read = _count(monkeypatch, broadcast, "read_message")
        with timed_comm(world, {collective: {NATIVE: 2 * QUICK, name: QUICK}}) as comm:
            for n in (4, 4, 5, 4):
                bodies.check_bcast(comm, n, 0)
            assert (len(read), called) == (2, ["Ibcast"] * 4)

    @pytest.mark.mpi(min_size=2)
    @pytest.mark.parametrize("name", [NONBLOCKING, VECTOR])
    def test_alltoall(
        self,
        world: MPI.Intracomm,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        called: list[str],
    ) -> None:
        read = _count(monkeypatch, alltoall, "read_exchange")
        size, rank = world.Get_size(), world.Get_rank()
        with timed_comm(world, {"alltoall": {NATIVE: 2 * QUICK, name: QUICK}}) as comm:
            bodies.check_routing(comm, 6)  # the second of its two calls is in place
            assert len(read) == 2
            # Ranks whose arguments must be read go the same way as those whose need not.
            sent, got = np.arange(6 * size, dtype="i4") + 1000 * rank, np.zeros(6 * size, "i4")
            into: Any = got if rank % 2 else [got, 6, MPI.INT]
            comm.Alltoall(sent, into)
            assert len(read) == 2 + (1 - rank % 2)
            wanted = [np.arange(6) + 6 * rank + 1000 * other for other in range(size)]
            assert (got == np.concatenate(wanted)).all()
            assert called == [call_of("alltoall", name)] * 3

    @pytest.mark.parametrize("name", [NONBLOCKING, VECTOR])
    @pytest.mark.parametrize("what", WRONG_ALLTOALL)
    def test_wrong_arguments_get_the_same_error(
        self, world: MPI.Intracomm, name: str, what: str
    ) -> None:
        """When calls of that size are not known, and when they are."""
        size = world.Get_size()
        if what == "no even blocks" and size == 1:
            return  # right, for one rank
        wanted = outcome(lambda: world.Alltoall(*WRONG_ALLTOALL[what](size)))
        assert wanted[0] != "no error"
        with grid_comm(world) as comm:
            ours = comm.forced("alltoall", name)
            for n_doubles in (0, 1, 2, 3):
                room = n_doubles * size
                ours.Alltoall(np.zeros(room), np.zeros(room))
                assert outcome(lambda: ours.Alltoall(*WRONG_ALLTOALL[what](size))) == wanted
            bodies.check_routing(ours, 7)

    @pytest.mark.parametrize("what", WRONG_BCAST)
    def test_wrong_broadcasts_get_the_same_error(self, world: MPI.Intracomm, what: str) -> None:
        def call(comm: MPI.Intracomm) -> object:
            return WRONG_BCAST[what](comm, np.arange(12, dtype="i4"))

        wanted = outcome(lambda: call(world))
        with grid_comm(world) as comm:
            ours = comm.forced("bcast", NONBLOCKING)
            for n_bytes in (0, 48, 24):
                ours.Bcast(np.zeros(n_bytes, "u1"))
                assert outcome(lambda: call(ours)) == wanted
            bodies.check_bcast(ours, 7)


def _count(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """Calls of a function of ``module``."""
    calls: list[Any] = []
    plain = getattr(module, name)

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return plain(*args, **kwargs)

    monkeypatch.setattr(module, name, counted)
    return calls


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("name", [NONBLOCKING, VECTOR])
def test_layouts_of_their_own(world: MPI.Intracomm, name: str) -> None:
    """What only one rank knows sends nobody another way: gaps here, bytes there."""
    size, rank = world.Get_size(), world.Get_rank()
    gaps = MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 24).Commit()
    with grid_comm(world) as comm:
        ours = comm.forced("alltoall", name)
        for turn in range(3):
            numbers = np.arange(3 * size, dtype="i4") + 100 * rank
            got = np.full(6 * size, -1, "i4")
            form = (rank + turn) % 3
            into: Any = got[: 3 * size]
            if form == 1:
                into = [got, 1, gaps]
            elif form == 2:
                into = [got[: 3 * size].view("u1"), MPI.BYTE]
            ours.Alltoall([numbers, 3, MPI.INT] if form else numbers, into)
            found = got[::2] if form == 1 else got[: 3 * size]
            wanted = [np.arange(3) + 3 * rank + 100 * other for other in range(size)]
            assert (found == np.concatenate(wanted)).all()
            assert (got[1::2] == -1).all() if form == 1 else (got[3 * size :] == -1).all()
    gaps.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("collective", "name"), VARIANTS)
def test_checks_come_first(
    world: MPI.Intracomm, collective: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")
    last = world.Get_rank() == world.Get_size() - 1
    with grid_comm(world) as comm:
        ours = comm.forced(collective, name)
        for _ in range(2):
            BODIES[collective](ours, 5, 0)
            with pytest.raises(DisagreementError):
                ours.Bcast(np.zeros(3)) if last else ours.Bcast(np.zeros(4))
        if collective == "alltoall":
            room = (1 + last) * comm.Get_size()
            with pytest.raises(DisagreementError):
                ours.Alltoall(np.zeros(room), np.zeros(room))
        BODIES[collective](ours, 5, 0)


@pytest.mark.mpi(min_size=2)
def test_a_message_too_long_is_told_where_it_comes(world: MPI.Intracomm) -> None:
    """As the library tells of its non-blocking calls; another communicator is none the worse."""
    with grid_comm(world) as comm:
        ours = comm.forced("bcast", NONBLOCKING)
        short = world.Get_rank() == world.Get_size() - 1
        buffer = np.full(7 if short else 8, world.Get_rank(), "i4")
        if short:
            with pytest.raises(MPI.Exception) as caught:
                ours.Bcast(buffer)
            assert caught.value.Get_error_class() in (MPI.ERR_TRUNCATE, MPI.ERR_OTHER)
        else:
            ours.Bcast(buffer)
            assert not buffer.any()
    with grid_comm(world) as comm:
        bodies.check_bcast(comm.forced("bcast", NONBLOCKING), 9)


@pytest.mark.mpi(min_size=2)
class TestCallsWithoutVariants:
    """Objects and uneven blocks: the plain one or a plan, whichever of these is faster."""

    SLOW: Mapping[str, Mapping[str, float]] = {
        collective: {NATIVE: 10.0, **dict.fromkeys(variants_of(collective), QUICK)}
        for collective in TIMED
    }

    def test_a_plan_where_the_plain_one_is_slow(
        self, world: MPI.Intracomm, n_planned: list[int], called: list[str]
    ) -> None:
        size, rank = world.Get_size(), world.Get_rank()
        with timed_comm(world, self.SLOW) as comm:
            for run in (
                lambda: comm.alltoall([rank] * size),
                lambda: comm.allgather(rank),
                lambda: comm.gather(rank),
                lambda: comm.scatter([rank] * size),
                lambda: bodies.check_alltoallv(comm, 5),
                lambda: bodies.check_reduce_scatter(comm, [3] * size),
            ):
                before = n_planned[0]
                run()
                assert n_planned[0] > before
            comm.Allgatherv(np.zeros(2), [np.zeros(2 * size), [2] * size])
        assert not called

    def test_the_plain_one_where_the_variant_is_asked_for(
        self, world: MPI.Intracomm, n_planned: list[int], called: list[str]
    ) -> None:
        size, rank = world.Get_size(), world.Get_rank()
        with grid_comm(world) as comm:
            for collective in ("alltoall", "allgather", "gather", "scatter"):
                ours = comm.forced(collective, NONBLOCKING)
                if collective == "alltoall":
                    assert ours.alltoall([rank] * size) == list(range(size))
                    bodies.check_alltoallv(ours, 5)
                elif collective == "allgather":
                    assert ours.allgather(rank) == list(range(size))
                elif collective == "gather":
                    assert (ours.gather(rank) or list(range(size))) == list(range(size))
                else:
                    assert ours.scatter(list(range(size))) == rank
        assert (n_planned[0], called) == (0, [])

    def test_objects_are_broadcast_by_it(self, world: MPI.Intracomm, called: list[str]) -> None:
        """What an object is sent as is a broadcast of bytes like any other."""
        with timed_comm(world, self.SLOW) as comm:
            for much in (1, 100_000):
                assert comm.bcast("x" * much, 0) == "x" * much
        assert called == ["Ibcast"] * 3

    def test_non_blocking_calls_are_the_librarys(
        self, world: MPI.Intracomm, n_beside: list[int]
    ) -> None:
        with timed_comm(world, self.SLOW) as comm:
            buffer = np.full(100, comm.Get_rank())
            comm.Ibcast(buffer, 0).Wait()
            assert not buffer.any()
        assert n_beside[0] == 0
