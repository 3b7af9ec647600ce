"""What really crosses between clusters, counted by the engine of every rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import ge

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.plan import REGISTRIES
from gridcoll.plan.bcast.strategies import PREFIX
from gridcoll.plan.traces import Traffic
from gridcoll.topology import Grid
from tests.mpi.support import grid_comm, layouts
from tests.plan.traffic import count_traffic

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


def _call(comm: GridComm, collective: str, n: int, root: int) -> None:
    """Of ``n`` bytes per block, or of the message."""
    size = comm.Get_size()
    one, all_of_them = (lambda: np.zeros(n, "u1")), (lambda: np.zeros(n * size, "u1"))
    if collective == "bcast":
        comm.Bcast(one(), root)
    elif collective == "reduce":
        comm.Reduce(one(), one(), MPI.MAX, root)
    elif collective == "gather":
        comm.Gather(one(), all_of_them(), root)
    else:
        comm.Scatter(all_of_them(), one(), root)


def _needed(collective: str, grid: Grid, n: int, home: int) -> list[int]:
    """Bytes that must come to every cluster from others; of a reduction, that must leave it."""
    n_ranks = [len(cluster.ranks) for cluster in grid.clusters]
    away = [k != home for k in range(len(n_ranks))]
    if collective == "gather":
        return [0 if far else n * (grid.n_ranks - n_ranks[home]) for far in away]
    blocks = n_ranks if collective == "scatter" else [1] * len(n_ranks)
    return [n * count * far for count, far in zip(blocks, away, strict=True)]


WAYS = [
    (collective, name)
    for collective in ("bcast", "reduce", "gather", "scatter")
    for name in ("", *REGISTRIES[collective])
    # Those that know nothing of clusters, and what rank order costs.
    if not name.startswith(PREFIX) and name != "rank-order"
]
"""Between clusters, and with no name what is chosen unasked."""


ROUND_THIN_LINKS = ("relayed", "packed-trees")
"""Where interfaces and links are unlike, more crosses where there is room for it."""


OVER_NEARER = "over nearer clusters"
"""In the label of what passes through a third cluster because that is shorter."""


@pytest.mark.long
@pytest.mark.parametrize("layout", ["two", "three", "three interleaved", "lonely root"])
@pytest.mark.parametrize(("collective", "name"), WAYS)
def test_a_byte_crosses_to_a_cluster_once(
    world: MPI.Intracomm, collective: str, name: str, layout: str
) -> None:
    with grid_comm(world, layouts(world.Get_size())[layout]) as comm:
        forced = comm.forced(collective, name) if name else comm
        for n, root in ((N, 0), (N, world.Get_size() - 1), (1 << 16, 0)):
            winner = forced.explain(collective, n, root).winner
            if winner.build is None:
                continue  # needs more clusters or longer messages: the library's own
            traffic = counted(forced, partial(_call, collective=collective, n=n, root=root))
            found = [0] * len(comm.grid.clusters)
            for (sender, receiver), n_bytes in traffic.units.items():
                if sender != receiver:
                    found[sender if collective == "reduce" else receiver] += n_bytes
            needed = _needed(collective, comm.grid, n, comm.grid.cluster_of[root])
            if winner.name in ROUND_THIN_LINKS or OVER_NEARER in winner.label:
                assert all(map(ge, found, needed))
            else:
                assert found == needed


def test_native_calls_are_not_counted(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        assert counted(comm.forced("bcast", "native"), _bcast) == Traffic()
