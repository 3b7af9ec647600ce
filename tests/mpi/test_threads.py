"""Threads: two communicators at once, a late one, and a wait that lets others work."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm.context import Context
from gridcoll.engine import compiled
from tests.mpi.support import grid_comm, together

pytestmark = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI was started without THREAD_MULTIPLE"
)


def use(comm: GridComm, seed: int) -> None:
    """The same on all ranks: collectives of many kinds, sizes and roots, each verified."""
    random = np.random.default_rng(seed)
    size, rank = comm.Get_size(), comm.Get_rank()
    for k in range(40):
        n, root = int(random.choice([1, 100, 5000])), int(random.integers(size))
        kind = int(random.integers(5))
        if kind == 0:
            buffer = np.full(n, k if rank == root else -1)
            comm.Bcast(buffer, root)
            assert (buffer == k).all()
        elif kind == 1:
            total = np.zeros(n, int)
            comm.Allreduce(np.full(n, rank + k), total)
            assert (total == size * k + size * (size - 1) // 2).all()
        elif kind == 2:
            answer = np.zeros(size * n, int)
            comm.Alltoall(np.full(size * n, rank), answer)
            assert (answer == np.repeat(np.arange(size), n)).all()
        elif kind == 3:
            assert comm.bcast([k] * n if rank == root else None, root) == [k] * n
        else:
            comm.Barrier()


def test_two_communicators_in_two_threads(world: MPI.Intracomm, n_planned: list[int]) -> None:
    with grid_comm(world) as one, grid_comm(world, list(range(world.Get_size()))) as other:
        together(lambda: use(one, 1), lambda: use(other, 2))
        if world.Get_size() > 1:
            assert n_planned[0] > 20


def test_duplicates_of_one(world: MPI.Intracomm) -> None:
    """They share model and settings, and nothing that changes."""
    with grid_comm(world) as comm:
        copies = [comm.Dup() for _ in range(3)]
        together(*(lambda k=k, each=each: use(each, k) for k, each in enumerate(copies)))  # type: ignore[misc]
        for each in copies:
            each.Free()


def test_a_late_thread_delays_only_its_own(world: MPI.Intracomm) -> None:
    """Rank 0's second thread begins when its first is through."""
    through = threading.Event()
    with grid_comm(world) as one, grid_comm(world) as other:

        def first() -> None:
            use(one, 3)
            through.set()

        def second() -> None:
            if world.Get_rank() == 0:
                assert through.wait(50)
            use(other, 4)

        together(first, second)


@pytest.mark.mpi(min_size=2)
def test_others_work_while_one_waits(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 calls only when on every other rank a thread saw that one is inside the call."""
    inside, run = threading.Event(), Context.run

    def running(self: Context, *args: Any) -> None:
        inside.set()
        run(self, *args)

    monkeypatch.setattr(Context, "run", running)
    monkeypatch.setattr(compiled, "PATIENCE_S", 1e3)  # in which Python gets no look-in
    with grid_comm(world) as comm:

        def call() -> None:
            buffer = np.full(100, world.Get_rank())
            if world.Get_rank() == 0:
                for rank in range(1, world.Get_size()):
                    world.recv(source=rank, tag=7)
            comm.Bcast(buffer, 0)
            assert (buffer == 0).all()

        def tell() -> None:
            # Only with the GIL free does this thread get here while the other is inside Bcast.
            assert inside.wait(50)
            if world.Get_rank():
                world.send(None, 0, 7)

        together(call, tell)
