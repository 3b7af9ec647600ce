"""GRIDCOLL_CHECK=1: ranks that make different calls are told so, and the next right call works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.errors import DisagreementError
from tests.mpi.bodies import BODIES
from tests.mpi.support import grid_comm

Mistake = Callable[[MPI.Intracomm, int, bool], object]
"""A call of so many ranks, the last of which, told so, makes it otherwise."""


def ints(n: int) -> np.ndarray:
    return np.zeros(n, "i4")


def _allgatherv(comm: MPI.Intracomm, size: int, odd: bool) -> None:
    comm.Allgatherv(ints(1), [ints(size + odd), [1] * (size - 1) + [1 + odd]])


MISTAKES: tuple[tuple[str, Mistake, str], ...] = (
    (
        "Gather",
        lambda comm, size, odd: comm.Gather(ints(1 + odd), ints(size)),
        "Gather: .*rank {last} has",
    ),
    (
        "Gather",
        lambda comm, size, odd: comm.gather(1, int(odd)),
        "gather: rank 0 has 'gather root=0'",
    ),
    (
        "Scatter",
        lambda comm, size, odd: comm.Scatter(ints(size), ints(1 + odd)),
        "Scatter: .*rank {last} has",
    ),
    (
        "Scatter",
        lambda comm, size, odd: comm.scatter([1] * size, int(odd)),
        "scatter: rank 0 has 'scatter root=0'",
    ),
    (
        "Allgather",
        lambda comm, size, odd: comm.Allgather(ints(1 + odd), ints((1 + odd) * size)),
        "Allgather: .*rank {last} has",
    ),
    ("Gatherv and Allgatherv", _allgatherv, "Allgatherv: .*bytes="),
    (
        "Reduce_scatter_block",
        lambda comm, size, odd: comm.Reduce_scatter_block(
            ints(size), ints(1), MPI.MAX if odd else MPI.SUM
        ),
        "op=SUM.*op=MAX",
    ),
    (
        "Allreduce",
        lambda comm, size, odd: comm.Allreduce(ints(2), ints(2), MPI.MAX if odd else MPI.SUM),
        "MAX",
    ),
    (
        "Allreduce",
        lambda comm, size, odd: comm.Allreduce(ints(2 + odd), ints(2 + odd)),
        "count=3",
    ),
    (
        "Alltoall",
        lambda comm, size, odd: comm.Alltoall(ints((1 + odd) * size), ints((1 + odd) * size)),
        "Alltoall: .*rank {last} has",
    ),
    (
        "Alltoall",
        lambda comm, size, odd: comm.Alltoall(ints(size), None if odd else ints(size)),
        "arguments that MPI refuses",
    ),
    (
        "Alltoallv",
        lambda comm, size, odd: comm.Alltoallv(ints(size), None if odd else ints(size)),
        "arguments that MPI refuses",
    ),
)
"""By the body of right calls that belongs to it, with what is said of it."""


@pytest.mark.parametrize(("body", "call", "said"), MISTAKES)
def test_ranks_that_disagree(
    world: MPI.Intracomm, body: str, call: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")
    last = world.Get_size() - 1
    with grid_comm(world) as comm:
        BODIES[body](comm, 5, 0)
        if last:
            with pytest.raises(DisagreementError, match=said.format(last=last)):
                call(comm, last + 1, comm.Get_rank() == last)
        BODIES[body](comm, 5, 0)
