"""Barrier over every layout of clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest
from mpi4py import MPI

from tests.mpi.support import grid_comm, layouts

LAYOUTS = (
    *("one cluster", "two", "three", "interleaved", "three interleaved"),
    *("lonely root", "all alone"),
)


Barrier = Callable[[], object]


@contextmanager
def _blocking(comm: MPI.Intracomm) -> Iterator[Barrier]:
    yield comm.Barrier


@contextmanager
def _nonblocking(comm: MPI.Intracomm) -> Iterator[Barrier]:
    yield lambda: comm.Ibarrier().Wait()


@contextmanager
def _persistent(comm: MPI.Intracomm) -> Iterator[Barrier]:
    """One request for all turns: making it holds everybody, too."""
    request = comm.Barrier_init()

    def wait() -> None:
        request.Start()
        request.Wait()

    yield wait
    request.Free()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [_blocking, _nonblocking, _persistent])
def test_nobody_leaves_a_barrier_early(
    world: MPI.Intracomm,
    kind: Callable[[MPI.Intracomm], AbstractContextManager[Barrier]],
    layout: str,
    n_planned: list[int],
    n_beside: list[int],
    n_prepared: list[int],
) -> None:
    """A counter that all ranks raise before it is complete after it."""
    size = world.Get_size()
    counter = np.zeros(1, "i8")
    window = MPI.Win.Create(counter, 8, comm=world)
    seen = np.zeros(1, "i8")
    with grid_comm(world, layouts(size)[layout]) as comm, kind(comm) as barrier:
        for turn in range(1, 6):
            window.Lock(0)
            window.Accumulate(np.ones(1, "i8"), 0)
            window.Unlock(0)
            barrier()
            window.Lock(0)
            window.Get_accumulate(np.zeros(1, "i8"), seen, 0, op=MPI.NO_OP)
            window.Unlock(0)
            assert seen[0] >= turn * size
        plans = comm.explain("barrier", 1).winner.build is not None
        ran = {_blocking: n_planned, _nonblocking: n_beside, _persistent: n_prepared}
        assert ran[kind][0] == plans * (1 if kind is _persistent else 5)
    window.Free()
