"""How long the MPI library's own collectives take: what a plan has to beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mpi4py import MPI

from gridcoll.comm.clock import ClockOffset, run_together
from gridcoll.model import GridModel, TimesBySize
from gridcoll.plan import choose


def _bcast_step(comm: MPI.Intracomm, n_bytes: int) -> Callable[[], None]:
    buffer = np.zeros(n_bytes, np.uint8)
    return lambda: comm.Bcast(buffer, 0)


def _allreduce_step(comm: MPI.Intracomm, n_bytes: int) -> Callable[[], None]:
    mine, result = (np.zeros(n_bytes // 8) for _ in range(2))
    return lambda: comm.Allreduce(mine, result)


def _reduce_step(comm: MPI.Intracomm, n_bytes: int) -> Callable[[], None]:
    mine, result = (np.zeros(n_bytes // 8) for _ in range(2))
    return lambda: comm.Reduce(mine, result)


def _barrier_step(comm: MPI.Intracomm, n_bytes: int) -> Callable[[], None]:
    return comm.Barrier


def _alltoall_step(comm: MPI.Intracomm, n_bytes: int) -> Callable[[], None]:
    outgoing, incoming = (np.zeros((comm.Get_size(), n_bytes), np.uint8) for _ in range(2))
    return lambda: comm.Alltoall(outgoing, incoming)


def _gather_step(comm: MPI.Intracomm, n_bytes: int) -> Callable[[], None]:
    mine, everybodys = _blocks(comm, n_bytes)
    return lambda: comm.Gather(mine, everybodys, 0)


def _scatter_step(comm: MPI.Intracomm, n_bytes: int) -> Callable[[], None]:
    mine, everybodys = _blocks(comm, n_bytes)
    return lambda: comm.Scatter(everybodys, mine, 0)


def _allgather_step(comm: MPI.Intracomm, n_bytes: int) -> Callable[[], None]:
    mine, everybodys = _blocks(comm, n_bytes)
    return lambda: comm.Allgather(mine, everybodys)


def _reduce_scatter_step(comm: MPI.Intracomm, n_bytes: int) -> Callable[[], None]:
    mine, everybodys = (block.view(np.float64) for block in _blocks(comm, n_bytes))
    return lambda: comm.Reduce_scatter_block(everybodys, mine)


def _blocks(comm: MPI.Intracomm, n_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """A block for this rank and one for each."""
    return np.zeros(n_bytes, np.uint8), np.zeros((comm.Get_size(), n_bytes), np.uint8)


STEPS = {
    "bcast": _bcast_step,
    "allreduce": _allreduce_step,
    "reduce": _reduce_step,
    "alltoall": _alltoall_step,
    "gather": _gather_step,
    "scatter": _scatter_step,
    "allgather": _allgather_step,
    "reduce_scatter": _reduce_scatter_step,
    "barrier": _barrier_step,
}
"""Of the library's own collectives, those that are timed: the call, by its size."""

LARGEST_BYTES = {
    **dict.fromkeys(("gather", "scatter", "allgather", "reduce_scatter"), 1 << 16),
    **dict.fromkeys(("alltoall", "reduce"), 1 << 19),
    "barrier": 8,
}
"""Blocks for every rank add up, and barriers have no size. Beyond, time grows in proportion."""

LONG_S = 1.0
"""What took this long in all is not run again: noise is no longer what matters."""


def time_native(
    comm: MPI.Intracomm,
    model: GridModel,
    clock: ClockOffset,
    name: str,
    sizes_bytes: Sequence[int],
    progress: Callable[[str, int, int], None],
) -> TimesBySize:
    """Times of the library's own collective, from rank 0, until it is hopeless. Collective.

    A library that takes several times what a plan is predicted to take, and long at that, will
    not be chosen for larger messages; beyond the last size its time grows in proportion.
    """
    what = f"native {name}"
    sizes_bytes = [n for n in sizes_bytes if n <= LARGEST_BYTES.get(name, n)]
    sizes: list[int] = []
    seconds: list[float] = []
    for k, n_bytes in enumerate(sizes_bytes):
        progress(what, k, len(sizes_bytes))
        step = STEPS[name](comm, n_bytes)
        took = [run_together(comm, clock, step)]
        while len(took) < 3 and sum(took) < LONG_S:
            took.append(run_together(comm, clock, step))
        sizes.append(n_bytes)
        seconds.append(float(np.median(took)))
        plan = choose(name, model, n_bytes, 0, grid_only=True).winner
        if plan.predicted_s and seconds[-1] > max(3 * plan.predicted_s, 0.1):
            break
    progress(what, len(sizes_bytes), len(sizes_bytes))
    return TimesBySize(tuple(sizes), tuple(seconds))
