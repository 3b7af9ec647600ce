"""Non-blocking calls under way, on any communicator, each with a way to look at its result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from tests.mpi.support import pattern


def bcast(comm: MPI.Intracomm, n: int, root: int = 0) -> tuple[MPI.Request, Callable[[], bool]]:
    """A broadcast under way, and whether its result is right.

    What is asked later keeps alive what is sent: mpi4py does not.
    """
    wanted = pattern(n, seed=root)
    buffer = wanted.copy() if comm.Get_rank() == root else np.full(n, -1, "i4")
    return comm.Ibcast(buffer, root), lambda: bool((buffer == wanted).all())


def allreduce(comm: MPI.Intracomm, n: int, root: int = 0) -> tuple[MPI.Request, Callable[[], bool]]:
    """As `bcast`; every other one in place."""
    mine, result = pattern(n, seed=comm.Get_rank()), np.full(n, -1, "i4")
    wanted = sum(pattern(n, seed=rank) for rank in range(comm.Get_size()))
    if root % 2:
        result[:] = mine
        return comm.Iallreduce(MPI.IN_PLACE, result), lambda: bool((result == wanted).all())
    return comm.Iallreduce(mine, result), lambda _sent=mine: bool((result == wanted).all())


def reduce(comm: MPI.Intracomm, n: int, root: int = 0) -> tuple[MPI.Request, Callable[[], bool]]:
    """As `bcast`; other ranks than the root pass no result buffer."""
    mine = pattern(n, seed=comm.Get_rank())
    wanted = np.max([pattern(n, seed=rank) for rank in range(comm.Get_size())], axis=0)
    result = np.full(n, -1, "i4") if comm.Get_rank() == root else None
    request = comm.Ireduce(mine, result, MPI.MAX, root)
    return request, lambda _sent=mine: result is None or bool((result == wanted).all())


def alltoall(comm: MPI.Intracomm, n: int, root: int = 0) -> tuple[MPI.Request, Callable[[], bool]]:
    """As `bcast`."""
    rank, size = comm.Get_rank(), comm.Get_size()
    mine = np.array([pattern(n, seed=rank * size + other + root) for other in range(size)])
    wanted = [pattern(n, seed=other * size + rank + root) for other in range(size)]
    result = np.full((size, n), -1, "i4")
    return comm.Ialltoall(mine, result), lambda _sent=mine: bool((result == wanted).all())


def barrier(comm: MPI.Intracomm, n: int, root: int = 0) -> tuple[MPI.Request, Callable[[], bool]]:
    """As `bcast`."""
    return comm.Ibarrier(), lambda: True


CALLS = {call.__name__: call for call in (bcast, allreduce, reduce, alltoall, barrier)}
