"""The same test bodies on every kind of communicator, and by every algorithm on every layout.

Both say which way was taken: falling back to native passes no test of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product

from mpi4py import MPI

from gridcoll import GridComm
from tests.mpi.bodies import Body
from tests.mpi.support import grid_model, layouts, unlike_comm

Grids = Callable[[str], GridComm]
"""By layout; see the fixture `grids`."""

PLAIN = "plain mpi4py"
CLUSTERS = ("one cluster", "two", "three")
SUBJECTS = (PLAIN, *CLUSTERS, "a duplicate", "a reordered split")
"""What test bodies run on: mpi4py's world, and ours over it with so many declared clusters."""


@contextmanager
def subject(name: str) -> Iterator[MPI.Intracomm]:
    """One of `SUBJECTS`, over all ranks."""
    world = MPI.COMM_WORLD
    size = world.Get_size()
    if name == PLAIN:
        yield world
        return
    labels = layouts(size).get(name if name in CLUSTERS else "interleaved", [0] * size)
    comm = GridComm(world, model=grid_model(labels))
    child = comm
    if name == "a duplicate":
        child = comm.Dup()
    elif name == "a reordered split":
        child = comm.Split(0, -world.Get_rank())
    try:
        yield child
    finally:
        if child is not comm:
            child.Free()
        comm.Free()


def check_on(name: str, comm: MPI.Intracomm, body: Body, n_planned: list[int]) -> None:
    """Run ``body`` on a subject: by plans between ranks on ours, by none on plain mpi4py.

    ``n_planned`` counts plans. The subject must have been made under ``GRIDCOLL_FORCE=grid``, since
    inside one cluster MPI's own are faster.
    """
    size = comm.Get_size()
    for n, root in ((1, 0), (1009, size - 1)):
        before = n_planned[0]
        body(comm, n, root)
        if size > 1 or name == PLAIN:
            assert (n_planned[0] > before) == (name != PLAIN)


def check_algorithm(
    comm: GridComm,
    collective: str,
    algorithm: str,
    body: Body,
    *,
    cases: Sequence[tuple[int, int]],
    n_calls: int,
    unit_bytes: int,
    n_planned: list[int],
) -> None:
    """Run ``body``, of ``n_calls`` calls, by ``algorithm`` where that applies, else by MPI.

    ``cases`` are numbers of elements of ``unit_bytes``, and roots.
    """
    forced = comm.forced(collective, algorithm)
    for n, root in cases:
        winner = forced.explain(collective, n * unit_bytes, root).winner
        assert winner.name in (algorithm, "native")
        before = n_planned[0]
        body(forced, n, root)
        assert n_planned[0] - before == n_calls * int(winner.build is not None)


def algorithms_that_run(
    grids: Grids, collective: str, names: Sequence[str], *sizes_bytes: int
) -> set[str]:
    """Those of ``names`` that, asked for, are taken on some layout at one of ``sizes_bytes``."""
    world = MPI.COMM_WORLD
    ran = set()
    with unlike_comm(MPI.Intracomm(world.Dup())) as unlike:
        comms = [grids(layout) for layout in layouts(world.Get_size())] + [unlike]
        for comm, n_bytes in product(comms, sizes_bytes):
            views = (comm.forced(collective, name) for name in names)
            ran |= {view.explain(collective, n_bytes).winner.name for view in views}
    return ran & set(names)
