"""What really crosses between clusters, counted by the engine of every rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.plan import REGISTRIES
from gridcoll.plan.traffic import Traffic, count_traffic
from tests.mpi.support import grid_comm, layouts

N = 24
"""Bytes per block, or of the message."""


def _alltoall(comm: GridComm) -> None:
    size = comm.Get_size()
    comm.Alltoall(np.zeros(N * size, "u1"), np.empty(N * size, "u1"))


def _bcast(comm: GridComm) -> None:
    comm.Bcast(np.zeros(N, "u1"), 0)


def _allreduce(comm: GridComm) -> None:
    comm.Allreduce(np.zeros(N, "u1"), np.empty(N, "u1"), MPI.MAX)


CALLS: dict[str, Callable[[GridComm], None]] = {
    "alltoall": _alltoall,
    "bcast": _bcast,
    "allreduce": _allreduce,
}


def counted(comm: GridComm, call: Callable[[GridComm], None]) -> Traffic:
    before = comm.traffic()
    call(comm)
    return comm.traffic().since(before)


@pytest.mark.parametrize("collective", CALLS)
@pytest.mark.parametrize("layout", ["two", "three interleaved", "lonely root"])
def test_what_is_planned_is_what_is_sent(
    world: MPI.Intracomm, collective: str, layout: str
) -> None:
    with grid_comm(world, layouts(world.Get_size())[layout]) as comm:
        for name in REGISTRIES[collective]:
            forced = comm.forced(collective, name)
            build = forced.explain(collective, N).winner.build
            if build is not None:
                planned = count_traffic(build(N), comm.grid)
                assert counted(forced, CALLS[collective]) == planned


@pytest.mark.mpi(min_size=3)
def test_two_clusters_as_the_paper_counts_them(world: MPI.Intracomm) -> None:
    """Every split in two, with ten ranks (3, 7) and with eight (4, 4): ``2 max(n1, n2)``."""
    size = world.Get_size()
    for n1 in range(1, size // 2 + 1):
        n2 = size - n1
        with grid_comm(world, [0] * n1 + [1] * n2) as comm:
            lg = counted(comm.forced("alltoall", "lg"), _alltoall)
            direct = counted(comm.forced("alltoall", "direct"), _alltoall)
            assert lg.n_inter_messages == 2 * n2
            assert direct.n_inter_messages == 2 * n1 * n2
            assert lg.n_inter_units == direct.n_inter_units == N * 2 * n1 * n2


def test_native_calls_are_not_counted(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        assert counted(comm.forced("bcast", "native"), _bcast) == Traffic()
