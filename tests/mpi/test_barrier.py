"""Barrier over every layout of clusters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

from tests.mpi.support import grid_comm, layouts

LAYOUTS = (
    *("one cluster", "two", "three", "interleaved", "three interleaved"),
    *("lonely root", "all alone"),
)


def _blocking(comm: MPI.Intracomm) -> None:
    comm.Barrier()


def _nonblocking(comm: MPI.Intracomm) -> None:
    comm.Ibarrier().Wait()


def _persistent(comm: MPI.Intracomm) -> None:
    request = comm.Barrier_init()
    request.Start()
    request.Wait()
    request.Free()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("barrier", [_blocking, _nonblocking, _persistent])
def test_nobody_leaves_a_barrier_early(
    world: MPI.Intracomm,
    barrier: Callable[[MPI.Intracomm], None],
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
    with grid_comm(world, layouts(size)[layout]) as comm:
        for turn in range(1, 6):
            window.Lock(0)
            window.Accumulate(np.ones(1, "i8"), 0)
            window.Unlock(0)
            barrier(comm)
            window.Lock(0)
            window.Get_accumulate(np.zeros(1, "i8"), seen, 0, op=MPI.NO_OP)
            window.Unlock(0)
            assert seen[0] >= turn * size
        plans = comm.explain("barrier", 1).winner.build is not None
        ran = {_blocking: n_planned, _nonblocking: n_beside, _persistent: n_prepared}
        assert ran[barrier][0] == 5 * plans
    window.Free()
