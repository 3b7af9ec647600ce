"""Other calls of the MPI library that do the same: right, the same on all ranks, and taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.errors import DisagreementError
from gridcoll.plan.natives import NATIVE, NONBLOCKING, TIMED, VECTOR, variants_of
from tests.mpi import bodies
from tests.mpi.harness import Grids, check_algorithm
from tests.mpi.support import grid_comm, layouts
from tests.mpi.timed import QUICK, VARIANTS, call_of, timed_comm

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
UNIT_BYTES = {"allreduce": 8, "reduce": 8}


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
    assert set(called) == {call_of(collective, name)}
    assert len(called) >= 5


@pytest.mark.long
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
    labels = layouts(world.Get_size())[layout]
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
