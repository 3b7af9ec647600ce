"""Persistent collectives: started again and again, by whatever starts requests."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.engine.progress import progress
from tests.mpi.support import grid_comm, grid_model, layouts

_ALIVE: list[Any] = []

_STARTS_IN_ORDER = "Intel" in MPI.Get_library_version()
"""Whether the library's own persistent collectives hang (2021.18 does) where ranks start several in
different orders, which MPI-4.1 allows: what matches is the order of the calls that made them."""

_LONGEST_BROADCAST = 1000 if "Intel" in MPI.Get_library_version() else 5000
"""Elements of a persistent broadcast of the library's own: of 5000 doubles to eight ranks, 2021.18
calls the second start an error on some ranks, whatever the root."""


class Calls:
    """One persistent call of each kind, with buffers to fill before and to look at after."""

    def __init__(self, comm: MPI.Intracomm, n: int) -> None:
        rank, size = comm.Get_rank(), comm.Get_size()
        self.rank, self.size = rank, size
        self.sent = np.zeros(n)
        self.summed, self.in_place, self.reduced, self.most = (np.zeros(n) for _ in range(4))
        self.blocks, self.got = np.zeros((size, n)), np.zeros((size, n))
        self.requests = [
            comm.Bcast_init(self.sent, size - 1),
            comm.Allreduce_init(self.most, self.summed),
            comm.Allreduce_init(MPI.IN_PLACE, self.in_place, MPI.MAX),
            comm.Alltoall_init(self.blocks, self.got),
            comm.Reduce_init(self.most, None if rank else self.reduced),
            comm.Barrier_init(),
        ]

    def fill(self, turn: int) -> None:
        self.sent[:] = turn if self.rank == self.size - 1 else -1
        self.most[:] = self.in_place[:] = turn * self.rank
        self.blocks[:] = [[turn + self.size * self.rank + other] for other in range(self.size)]

    def check(self, turn: int) -> None:
        assert (self.sent == turn).all()
        assert (self.summed == turn * sum(range(self.size))).all()
        if self.rank == 0:
            assert (self.reduced == self.summed).all()
        assert (self.in_place == turn * (self.size - 1)).all()
        from_each = np.array([[turn + self.size * k + self.rank] for k in range(self.size)])
        assert (self.got == from_each).all()

    def free(self) -> None:
        for request in self.requests:
            request.Free()


@pytest.mark.parametrize("n", [0, 1, 5000])
@pytest.mark.parametrize("layout", ["one cluster", "two", "interleaved"])
def test_started_again_and_again(
    world: MPI.Intracomm, layout: str, n: int, n_prepared: list[int]
) -> None:
    """By each rank in an order of its own, one by one or all at once."""
    with grid_comm(world, layouts(world.Get_size())[layout]) as comm:
        planned = len(comm.grid.clusters) > 1
        calls = Calls(comm, n if planned else min(n, _LONGEST_BROADCAST))
        random = np.random.default_rng(comm.Get_rank() if planned or not _STARTS_IN_ORDER else 0)
        for turn in range(8):
            calls.fill(turn)
            order = [calls.requests[k] for k in random.permutation(len(calls.requests))]
            if turn % 2:
                MPI.Prequest.Startall(order)
            else:
                for request in order:
                    request.Start()
            if turn % 3:
                MPI.Request.Waitall(order)
            else:
                for request in order:
                    request.Wait()
            assert all(request.Test() for request in order)  # inactive ones are complete
            calls.check(turn)
        calls.free()
        assert all(request == MPI.REQUEST_NULL for request in calls.requests)
        assert n_prepared[0] == (len(calls.requests) if planned else 0)


@pytest.mark.mpi(min_size=2)
def test_one_is_done_before_another_is_started(world: MPI.Intracomm) -> None:
    """The order of starts is each rank's own, which rules out a queue of them."""
    with grid_comm(world) as comm:
        buffers = np.zeros((2, 1000))
        requests = [comm.Bcast_init(buffer, 0) for buffer in buffers]
        for turn in range(4):
            buffers[:] = turn + 1 if comm.Get_rank() == 0 else 0
            if comm.Get_rank() == 0:
                MPI.Prequest.Startall(requests)
                MPI.Request.Waitall(requests)
            else:
                for request in requests[:: 1 - 2 * (turn % 2)]:
                    request.Start()
                    request.Wait()
            assert (buffers == turn + 1).all()
        for request in requests:
            request.Free()


@pytest.mark.mpi(min_size=2)
def test_more_than_there_are_bands(world: MPI.Intracomm, n_prepared: list[int]) -> None:
    """Those beyond are MPI's own; what was freed is used again, however often."""
    with grid_comm(world) as comm:
        bands = comm._require_context().channel.bands
        n_bands = len(bands._own)
        buffers = np.zeros((n_bands + 3, 10))
        requests = [comm.Bcast_init(buffer, 0) for buffer in buffers]
        assert n_prepared[0] == n_bands
        buffers[:] = 7 if comm.Get_rank() == 0 else 0
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
        assert (buffers == 7).all()
        for request in reversed(requests):
            request.Free()
        assert not bands.in_use
        for _ in range(n_bands + 3):
            request = comm.Bcast_init(buffers[0], 0)
            request.Start()
            request.Wait()
            request.Free()
        assert n_prepared[0] == 2 * n_bands + 3


def test_datatypes_freed_after_the_call(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        table = np.zeros((300, 2))
        column = MPI.DOUBLE.Create_vector(300, 1, 2).Commit()
        request = comm.Bcast_init([table, 1, column], 0)
        column.Free()
        for turn in range(3):
            table[:, 0] = turn if comm.Get_rank() == 0 else -1
            table[:, 1] = comm.Get_rank()
            request.Start()
            request.Wait()
            assert (table[:, 0] == turn).all()
            assert (table[:, 1] == comm.Get_rank()).all()
        request.Free()


@pytest.mark.mpi(min_size=2)
def test_arguments_that_differ_are_left_to_mpi(world: MPI.Intracomm, n_prepared: list[int]) -> None:
    """A root that is no integer type of Python's is the same root; another is not."""
    with grid_comm(world) as comm:
        root: Any = np.int64(0) if comm.Get_rank() else 0
        comm.Bcast_init(np.zeros(100), root).Free()
        assert n_prepared[0] == 1
        comm.Allreduce_init(
            np.zeros(100), np.zeros(100), MPI.SUM if comm.Get_rank() else MPI.MAX
        ).Free()
        assert n_prepared[0] == 1


def test_alive_at_finalize(world: MPI.Intracomm) -> None:
    """Never freed, nor their communicator. The job's exit code says whether MPI minded."""
    own = world.Dup()
    comm = GridComm(own, model=grid_model(layouts(world.Get_size()).get("two", [0])))
    request = comm.Bcast_init(np.zeros(1000), 0)
    request.Start()
    request.Wait()
    _ALIVE.extend([own, comm, request])


def test_outlives_its_communicator(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        buffer = np.zeros(1000)
        request = comm.Bcast_init(buffer, 0)
    for turn in range(3):
        buffer[:] = turn if world.Get_rank() == 0 else -1
        request.Start()
        request.Wait()
        assert (buffer == turn).all()
    request.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("cancel", ["Cancel", "cancel"])
def test_collectives_are_not_cancelled(
    world: MPI.Intracomm, n_prepared: list[int], cancel: str
) -> None:
    with grid_comm(world) as comm:
        calls = Calls(comm, 100)
        assert n_prepared[0] == len(calls.requests)
        calls.fill(3)
        MPI.Prequest.Startall(calls.requests)
        for request in calls.requests:
            with pytest.raises(MPI.Exception) as caught:
                getattr(request, cancel)()
            assert caught.value.Get_error_class() == MPI.ERR_REQUEST
        MPI.Request.Waitall(calls.requests)
        calls.check(3)
        calls.free()


@pytest.mark.mpi(min_size=2)
def test_numbers_come_round_again(
    world: MPI.Intracomm, n_prepared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that live on keep theirs."""
    with grid_comm(world) as comm:
        calls = Calls(comm, 100)
        n_lived = n_prepared[0]
        held = len(progress()._prepared)
        first = min(progress()._prepared)
        monkeypatch.setattr(progress(), "_numbers", itertools.count(first + progress()._n_tags))
        more = Calls(comm, 50)
        assert n_prepared[0] == 2 * n_lived
        assert len(progress()._prepared) == held + n_lived
        for turn, each in enumerate((calls, more, calls)):
            each.fill(turn)
            MPI.Prequest.Startall(each.requests)
            MPI.Request.Waitall(each.requests)
            each.check(turn)
        more.free()
        calls.free()
