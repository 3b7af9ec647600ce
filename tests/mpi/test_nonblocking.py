"""Non-blocking collectives: right beside anything else, whatever the order of waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm.channel import N_AT_ONCE
from gridcoll.engine.progress import progress
from tests.mpi.calls import CALLS, allreduce, alltoall, barrier, bcast
from tests.mpi.support import bytes_kept, grid_comm, layouts


@pytest.mark.parametrize("layout", ["one cluster", "two", "interleaved", "all alone"])
@pytest.mark.parametrize("name", CALLS)
def test_results(world: MPI.Intracomm, name: str, layout: str, n_beside: list[int]) -> None:
    size = world.Get_size()
    with grid_comm(world, layouts(size)[layout]) as comm:
        for place, n in enumerate((0, 1, 7, 1009, 65537)):
            before = n_beside[0]
            request, right = CALLS[name](comm, n, place % size)
            assert request.Wait() is True
            assert request == MPI.REQUEST_NULL
            assert right()
            collective = comm.explain(name, 4 * n, place % size).winner
            assert n_beside[0] - before == int(collective.build is not None)
        if len(comm.grid.clusters) > 1:
            assert n_beside[0] >= 3


@pytest.mark.mpi(min_size=2)
def test_waiting_for_them_beside_own_requests(world: MPI.Intracomm, n_beside: list[int]) -> None:
    """Every way that MPI has to complete several requests takes them."""
    rank, size = world.Get_rank(), world.Get_size()
    for wait in (_waitall, _waitany, _waitsome, _testall):
        with grid_comm(world) as comm:
            calls = [call(comm, 3000, k % size) for k, call in enumerate(CALLS.values())]
            got = np.zeros(3)
            own = [
                comm.Irecv(got, (rank - 1) % size, 7),
                comm.Isend(np.full(3, float(rank)), (rank + 1) % size, 7),
                MPI.Intracomm.Ibarrier(comm),
                MPI.REQUEST_NULL,
            ]
            requests = [request for request, _ in calls] + own
            wait(requests)
            assert all(request == MPI.REQUEST_NULL for request in requests)
            assert all(right() for _, right in calls)
            assert (got == (rank - 1) % size).all()
    assert n_beside[0] == 4 * len(CALLS)


def _waitall(requests: list[MPI.Request]) -> None:
    statuses = [MPI.Status() for _ in requests]
    MPI.Request.Waitall(requests, statuses)
    assert not any(status.Get_error() for status in statuses)


def _waitany(requests: list[MPI.Request]) -> None:
    while MPI.Request.Waitany(requests) != MPI.UNDEFINED:
        pass


def _waitsome(requests: list[MPI.Request]) -> None:
    while MPI.Request.Waitsome(requests) is not None:
        pass


def _testall(requests: list[MPI.Request]) -> None:
    while not MPI.Request.Testall(requests):
        time.sleep(0)


def test_lower_case_waits_give_none(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        assert bcast(comm, 100)[0].wait() is None
        assert MPI.Request.waitall([bcast(comm, 100)[0], barrier(comm, 0)[0]]) == [None, None]
        request = bcast(comm, 100)[0]
        while not (done := request.test())[0]:
            time.sleep(0)
        assert done == (True, None)


def test_many_outstanding_in_any_order(world: MPI.Intracomm) -> None:
    """More than run at once, and ranks wait in different orders."""
    with grid_comm(world) as comm:
        random = np.random.default_rng(comm.Get_rank())  # not the same on all ranks
        calls = [
            list(CALLS.values())[k % len(CALLS)](comm, 50 * k, k % comm.Get_size())
            for k in range(3 * N_AT_ONCE)
        ]
        for k in random.permutation(len(calls)):
            request, right = calls[k]
            request.Wait()
            assert right()


def test_blocking_calls_while_some_are_under_way(
    world: MPI.Intracomm, n_beside: list[int], n_planned: list[int]
) -> None:
    with grid_comm(world) as comm:
        for k in range(8):
            calls = [call(comm, 20_000, k % comm.Get_size()) for call in (bcast, allreduce)]
            buffer = np.full(5000, k if comm.Get_rank() == 0 else -1)
            comm.Bcast(buffer, 0)
            assert (buffer == k).all()
            total = np.zeros(5000, int)
            comm.Allreduce(buffer, total)
            assert (total == k * comm.Get_size()).all()
            assert comm.bcast(k, 0) == k
            MPI.Request.Waitall([request for request, _ in calls])
            assert all(right() for _, right in calls)
        if comm.Get_size() > 1:
            assert n_beside[0] == 16
            assert n_planned[0] >= 16


def test_several_communicators(world: MPI.Intracomm) -> None:
    """Their calls are started in different orders by different ranks."""
    size = world.Get_size()
    with grid_comm(world) as one, grid_comm(world, list(range(size))) as other:
        third = one.Dup()
        order = [one, other, third]
        for k in range(6):
            turn = (k + world.Get_rank()) % 3
            calls = [bcast(comm, 4000, k % size) for comm in order[turn:] + order[:turn]]
            MPI.Request.Waitall([request for request, _ in reversed(calls)])
            assert all(right() for _, right in calls)
        third.Free()


@pytest.mark.mpi(min_size=3)
def test_others_need_not_wait_for_a_late_rank(world: MPI.Intracomm) -> None:
    """Rank 0 comes when the others have told it to, which they do while their calls are pending."""
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        word = bytearray(1)
        if rank:
            request, right = allreduce(comm, 30_000)
            assert not request.Test()
            comm.Send(word, 0)
        else:
            for other in range(1, size):
                comm.Recv(word, other)
            request, right = allreduce(comm, 30_000)
        request.Wait()
        assert right()


@pytest.mark.mpi(min_size=3)
def test_progress_without_calls_into_mpi(world: MPI.Intracomm) -> None:
    """What is under way ends while the application computes."""
    with grid_comm(world) as comm:
        request, right = allreduce(comm, 200_000)
        while progress()._queues:
            time.sleep(1e-3)
        assert right()
        # The thread ends the request right after, and some MPIs see that in a later look only.
        request.Wait()


@pytest.mark.mpi(min_size=2)
def test_two_threads_on_two_communicators(world: MPI.Intracomm) -> None:
    wrong: list[int] = []

    def work(comm: GridComm) -> None:
        for k in range(20):
            request, right = (bcast, allreduce)[k % 2](comm, 3000 + k, k % comm.Get_size())
            request.Wait()
            if not right():
                wrong.append(k)

    with grid_comm(world) as one, grid_comm(world) as other:
        threads = [threading.Thread(target=work, args=[comm]) for comm in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_datatypes_with_gaps_that_are_freed_at_once(world: MPI.Intracomm) -> None:
    """Contiguous at the root, strided elsewhere; MPI lets the type be freed before the end."""
    with grid_comm(world) as comm:
        last = comm.Get_size() - 1
        if comm.Get_rank() == last:
            buffer = np.arange(500.0)
            comm.Ibcast(buffer, last).Wait()
        else:
            strided = np.full((500, 3), -1.0)
            column = MPI.DOUBLE.Create_vector(500, 1, 3).Commit()
            request = comm.Ibcast([strided, 1, column], last)
            column.Free()
            request.Wait()
            assert (strided[:, 0] == np.arange(500.0)).all()
            assert (strided[:, 1:] == -1).all()


@pytest.mark.mpi(min_size=2)
def test_wrong_arguments_are_refused_as_by_mpi(world: MPI.Intracomm) -> None:
    size = world.Get_size()
    two, three = np.zeros(2 * size), np.zeros(3 * size)
    wrong: list[Callable[[MPI.Intracomm], object]] = [
        lambda comm: comm.Ibcast(two, size),
        lambda comm: comm.Ibcast(None, 0),
        lambda comm: comm.Ibcast([two, "no such type"], 0),
        lambda comm: comm.Iallreduce(two, three),
        lambda comm: comm.Iallreduce(two, three, MPI.OP_NULL),
        lambda comm: comm.Ialltoall(np.zeros(2 * size + 1), three),
        lambda comm: comm.Bcast_init(two, size),
        lambda comm: comm.Allreduce_init(two, three),
    ]
    with grid_comm(world) as comm:
        for call in wrong:
            outcomes = [_outcome(call, each) for each in (world, comm)]
            assert outcomes[0] == outcomes[1]
            assert outcomes[0]
        request, right = bcast(comm, 1000)
        request.Wait()
        assert right()


def _outcome(call: Callable[[MPI.Intracomm], object], comm: MPI.Intracomm) -> tuple[type, int]:
    with pytest.raises(Exception) as caught:
        call(comm)
    error = caught.value
    return type(error), error.Get_error_class() if isinstance(error, MPI.Exception) else 0


def _seven(_left: Any, right: Any, _type: MPI.Datatype) -> None:
    memoryview(right).cast("B")[0] = 7


@pytest.mark.mpi(min_size=2)
def test_own_operations_are_left_to_mpi(world: MPI.Intracomm, n_beside: list[int]) -> None:
    with grid_comm(world) as comm:
        op = MPI.Op.Create(_seven, True)
        result = bytearray(1)
        comm.Iallreduce(bytearray(1), result, op).Wait()
        op.Free()
        assert result == b"\x07"
        assert not n_beside[0]


@pytest.mark.mpi(min_size=2)
def test_one_rank_without_threads_leaves_all_to_mpi(
    world: MPI.Intracomm, n_beside: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.Get_rank() == 1:
        monkeypatch.setattr(MPI, "Query_thread", lambda: MPI.THREAD_SERIALIZED)
    with grid_comm(world) as comm, _under_way(comm, bcast, allreduce, alltoall, barrier):
        request = comm.Bcast_init(np.zeros(1000), 0)
        request.Start()
        request.Wait()
        request.Free()
    assert not n_beside[0]


@contextmanager
def _under_way(comm: GridComm, *calls: Any) -> Iterator[None]:
    """Begin such calls, and look at their results in the end."""
    begun = [call(comm, 2000) for call in calls]
    yield
    MPI.Request.Waitall([request for request, _ in begun])
    assert all(right() for _, right in begun)


@pytest.mark.mpi(min_size=2)  # on one rank they are Open MPI's own, which then hang
def test_freed_communicator_ends_what_is_under_way(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        copy = comm.Dup()
        calls = [call(copy, 20_000) for call in (bcast, allreduce, alltoall)]
        copy.Free()
        MPI.Request.Waitall([request for request, _ in calls])
        assert all(right() for _, right in calls)


def test_nothing_grows(world: MPI.Intracomm) -> None:
    n_calls = 400 // world.Get_size() + 20
    with grid_comm(world) as comm:
        buffer = np.zeros(3000)

        def calls(n: int) -> None:
            for k in range(n):
                comm.Ibcast(buffer, k % comm.Get_size()).Wait()

        calls(20)
        assert bytes_kept(calls, n_calls) < 100 * n_calls + 20_000
        assert threading.active_count() <= 8


@pytest.mark.mpi(min_size=2)  # on one rank they are the library's own, and Open MPI's say nothing
@pytest.mark.parametrize("cancel", ["Cancel", "cancel"])
@pytest.mark.parametrize("name", CALLS)
def test_collectives_are_not_cancelled(
    world: MPI.Intracomm, name: str, cancel: str, n_beside: list[int]
) -> None:
    """As MPI has it, before they end and afterwards; they do end."""
    with grid_comm(world) as comm:
        request, right = CALLS[name](comm, 1009, 0)
        for _ in range(2):
            with pytest.raises(MPI.Exception) as caught:
                getattr(request, cancel)()
            if n_beside[0]:
                assert caught.value.Get_error_class() == MPI.ERR_REQUEST
            request.Wait()
            assert right()
