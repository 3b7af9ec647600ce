"""Every registered name of every collective, once for real, beside mpi4py's own.

The quick answer to whether each of them runs under this MPI; `test_every_algorithm` and the files
of the collectives take them over all layouts and sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.plan import REGISTRIES
from gridcoll.plan.natives import NATIVES, natives_of
from tests.mpi.blocks import block, uneven
from tests.mpi.support import grid_comm, layouts, shared_hosts, thin_comm, unlike_comm

pytestmark = pytest.mark.mpi(min_size=3)

SIZES = (1009, 20_011, 65_536)
"""Elements of four bytes; some algorithms are of use for many only."""


def _bcast(comm: MPI.Intracomm, n: int) -> np.ndarray:
    buffer = block(comm.Get_rank(), n)
    comm.Bcast(buffer)
    return buffer


def _reduce(comm: MPI.Intracomm, n: int) -> np.ndarray:
    result = np.zeros(n, "i4")
    comm.Reduce(block(comm.Get_rank(), n), result if comm.Get_rank() == 0 else None)
    return result


def _allreduce(comm: MPI.Intracomm, n: int) -> np.ndarray:
    result = np.zeros(n, "i4")
    comm.Allreduce(block(comm.Get_rank(), n), result)
    return result


def _reduce_scatter(comm: MPI.Intracomm, n: int) -> np.ndarray:
    result = np.zeros(n, "i4")
    comm.Reduce_scatter_block(block(comm.Get_rank(), n * comm.Get_size()), result)
    return result


def _barrier(comm: MPI.Intracomm, n: int) -> np.ndarray:
    comm.Barrier()
    return np.zeros(0, "i4")


def _gather(comm: MPI.Intracomm, n: int) -> np.ndarray:
    result = np.zeros(n * comm.Get_size(), "i4")
    comm.Gather(block(comm.Get_rank(), n), result if comm.Get_rank() == 0 else None)
    return result


def _gatherv(comm: MPI.Intracomm, n: int) -> np.ndarray:
    sizes = [n + size for size in uneven(comm.Get_size())]
    result = np.zeros(sum(sizes), "i4")
    into = [result, sizes] if comm.Get_rank() == 0 else None
    comm.Gatherv(block(comm.Get_rank(), sizes[comm.Get_rank()]), into)
    return result


def _scatter(comm: MPI.Intracomm, n: int) -> np.ndarray:
    result = np.zeros(n, "i4")
    comm.Scatter(block(0, n * comm.Get_size()) if comm.Get_rank() == 0 else None, result)
    return result


def _scatterv(comm: MPI.Intracomm, n: int) -> np.ndarray:
    sizes = [n + size for size in uneven(comm.Get_size())]
    result = np.zeros(sizes[comm.Get_rank()], "i4")
    comm.Scatterv([block(0, sum(sizes)), sizes] if comm.Get_rank() == 0 else None, result)
    return result


def _allgather(comm: MPI.Intracomm, n: int) -> np.ndarray:
    result = np.zeros(n * comm.Get_size(), "i4")
    comm.Allgather(block(comm.Get_rank(), n), result)
    return result


def _alltoall(comm: MPI.Intracomm, n: int) -> np.ndarray:
    result = np.zeros(n * comm.Get_size(), "i4")
    comm.Alltoall(block(comm.Get_rank(), n * comm.Get_size()), result)
    return result


Call = Callable[[MPI.Intracomm, int], np.ndarray]
CALLS: dict[str, Call] = {
    "bcast": _bcast,
    "reduce": _reduce,
    "allreduce": _allreduce,
    "reduce_scatter": _reduce_scatter,
    "barrier": _barrier,
    "gather": _gather,
    "gatherv": _gatherv,
    "scatter": _scatter,
    "scatterv": _scatterv,
    "allgather": _allgather,
    "alltoall": _alltoall,
}
NAMES = [(c, name) for c in REGISTRIES for name in (*REGISTRIES[c], *natives_of(c))]


@pytest.fixture(scope="module")
def comms() -> Iterator[list[GridComm]]:
    """Two clusters: hosts per rank, shared ones, one per cluster, thin links; one thin link."""
    world = MPI.COMM_WORLD
    others = layouts(world.Get_size())
    two = others.pop("two")
    with ExitStack() as stack:
        yield [
            stack.enter_context(grid_comm(world, two)),
            stack.enter_context(grid_comm(world, two, hosts=shared_hosts(two))),
            stack.enter_context(grid_comm(world, two, hosts=[f"host{c}" for c in two])),
            stack.enter_context(thin_comm(world, "two")),
            stack.enter_context(unlike_comm(world)),
            *(stack.enter_context(grid_comm(world, labels)) for labels in others.values()),
        ]


def test_every_collective_is_called() -> None:
    assert set(CALLS) == set(REGISTRIES)


@pytest.mark.parametrize(("collective", "name"), NAMES)
def test_it_does_what_mpi_does(
    comms: list[GridComm], collective: str, name: str, n_planned: list[int]
) -> None:
    call = CALLS[collective]
    for n, comm in ((n, comm) for comm in comms for n in SIZES):
        forced = comm.forced(collective, name)
        if forced.explain(collective, 4 * n).winner.name == name:
            break
    else:
        pytest.fail(f"{collective} {name}: of no use on any of these grids")
    result = call(forced, n)
    assert n_planned[0] == int(name not in NATIVES)
    assert (result == call(MPI.COMM_WORLD, n)).all()
