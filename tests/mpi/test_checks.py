"""GRIDCOLL_CHECK=1: ranks that make different calls are told so, and the next right call works."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.comm.communicator import _COLLECTIVES
from gridcoll.errors import DisagreementError, GridcollError
from tests.mpi.bodies import BODIES
from tests.mpi.support import grid_comm, works

Mistake = Callable[[MPI.Intracomm, int, bool], object]
"""A call of so many ranks, the last of which, told so, makes it otherwise."""


def ints(n: int) -> np.ndarray:
    return np.zeros(n, "i4")


def _allgatherv(comm: MPI.Intracomm, size: int, odd: bool) -> None:
    comm.Allgatherv(ints(1), [ints(size + odd), [1] * (size - 1) + [1 + odd]])


def _alltoallw(comm: MPI.Intracomm, size: int, odd: bool) -> None:
    blocks = [ints(size), ([1] * size, [4 * rank for rank in range(size)]), [MPI.INT] * size]
    comm.Alltoallw(blocks, None if odd else blocks)  # type: ignore[arg-type]


def _types(comm: MPI.Intracomm, size: int, odd: bool) -> None:
    numbers = np.zeros(2, "i8" if odd else "f8")
    comm.Allreduce(numbers, numbers.copy())


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
    (
        "Reduce",
        lambda comm, size, odd: comm.Reduce(ints(2), ints(2), MPI.SUM, int(odd)),
        "root=0 op=SUM.*root=1 op=SUM",
    ),
    (
        "Reduce",
        lambda comm, size, odd: comm.Reduce(ints(2), ints(2), MPI.MAX if odd else MPI.SUM),
        "root=0 op=SUM.*root=0 op=MAX",
    ),
    ("Allreduce", _types, "type=MPI_DOUBLE .*type=MPI_(LONG|INT64_T) "),
    (
        "Reduce_scatter",
        lambda comm, size, odd: comm.Reduce_scatter(
            ints(size), ints(1), [1] * size, MPI.MAX if odd else MPI.SUM
        ),
        "op=SUM.*op=MAX",
    ),
    ("Bcast", lambda comm, size, odd: comm.Bcast(ints(2), int(odd)), "Bcast root=0.*Bcast root=1"),
    ("Bcast", lambda comm, size, odd: comm.Bcast(ints(2 + odd)), "bytes=8'.*bytes=12'"),
    (
        "Barrier",
        lambda comm, size, odd: comm.Bcast(ints(2)) if odd else comm.Barrier(),
        "rank 0 has 'Barrier', rank {last} has 'Bcast root=0 ",
    ),
    (
        "Gatherv and Allgatherv",
        lambda comm, size, odd: comm.Gatherv(ints(1), [ints(size), [1] * size], int(odd)),
        "Gatherv root=0.*Gatherv root=1",
    ),
    (
        "Scatterv",
        lambda comm, size, odd: comm.Scatterv([ints(size), [1] * size], ints(1), int(odd)),
        "Scatterv root=0.*Scatterv root=1",
    ),
    ("Alltoallv", _alltoallw, "Alltoallw with arguments that MPI refuses"),
    ("objects", lambda comm, size, odd: comm.bcast(1, int(odd)), "bcast root=0.*bcast root=1"),
    (
        "objects",
        lambda comm, size, odd: comm.alltoall([1] * size) if odd else comm.allgather(1),
        "rank 0 has 'allgather root=0', rank {last} has 'alltoall'",
    ),
    (
        "reductions of objects",
        lambda comm, size, odd: comm.reduce(1, root=int(odd)),
        "reduce root=0.*reduce root=1",
    ),
    (
        "reductions of objects",
        lambda comm, size, odd: comm.bcast(1) if odd else comm.allreduce(1),
        "rank 0 has 'allreduce', rank {last} has 'bcast root=0'",
    ),
)
"""By the body of right calls that belongs to it, with what is said of it."""


def _unpicklable(odd: bool) -> object:
    return (lambda: 1) if odd else 1


REFUSED: dict[str, tuple[Mistake, str]] = {
    "Bcast root": (lambda c, n, odd: c.Bcast(ints(2), n if odd else 0), "no rank"),
    "Bcast root type": (lambda c, n, odd: c.Bcast(ints(2), "0" if odd else 0), "no rank"),  # type: ignore[arg-type]
    "Bcast buffer": (lambda c, n, odd: c.Bcast(ints(4)[:: 1 + odd]), "MPI refuses"),
    "bcast root": (lambda c, n, odd: c.bcast(1, n if odd else 0), "no rank"),
    "bcast": (lambda c, n, odd: c.bcast(_unpicklable(odd), n - 1), "rank {last}: .*pickle"),
    "Reduce root": (
        lambda c, n, odd: c.Reduce(ints(2), ints(2), root=n if odd else 0),
        "no rank",
    ),
    "reduce root": (lambda c, n, odd: c.reduce(1, root=-1 if odd else 0), "no rank"),
    "Gather root": (lambda c, n, odd: c.Gather(ints(1), ints(n), n if odd else 0), "no rank"),
    "gather root": (lambda c, n, odd: c.gather(1, n if odd else 0), "no rank"),
    "gather": (lambda c, n, odd: c.gather(_unpicklable(odd)), "rank {last}: .*pickle"),
    "Gatherv root": (lambda c, n, odd: c.Gatherv(ints(1), ints(n), n if odd else 0), "no rank"),
    "Gatherv": (lambda c, n, odd: c.Gatherv(ints(4)[:: 1 + odd], ints(4 * n)), "MPI refuses"),
    "Scatter root": (lambda c, n, odd: c.Scatter(ints(n), ints(1), n if odd else 0), "no rank"),
    "scatter root": (lambda c, n, odd: c.scatter([1] * n, n if odd else 0), "no rank"),
    "scatter": (
        lambda c, n, odd: c.scatter([1] * (n - odd), n - 1),
        "rank {last}: ValueError: expecting",
    ),
    "Scatterv root": (lambda c, n, odd: c.Scatterv(ints(n), ints(1), n if odd else 0), "no rank"),
    "Scatterv": (lambda c, n, odd: c.Scatterv(ints(4 * n), ints(4)[:: 1 + odd]), "MPI refuses"),
    "allgather": (lambda c, n, odd: c.allgather(_unpicklable(odd)), "rank {last}: .*pickle"),
    "alltoall": (lambda c, n, odd: c.alltoall([1] * (n - odd)), "rank {last}: ValueError"),
    "Reduce_scatter": (
        lambda c, n, odd: c.Reduce_scatter(ints(4 * n), ints(4 + 4 * odd)[:: 1 + odd]),
        "MPI refuses",
    ),
}
"""Calls that the last rank makes with arguments that MPI or mpi4py rejects, and what is said."""


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("force", ["grid", "native"])
@pytest.mark.parametrize("name", REFUSED)
def test_one_rank_whose_arguments_are_refused(
    world: MPI.Intracomm, name: str, force: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks raise one text; otherwise the others would wait for that rank."""
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")
    monkeypatch.setenv("GRIDCOLL_FORCE", force)
    call, said = REFUSED[name]
    last = world.Get_size() - 1
    with grid_comm(world) as comm:
        with pytest.raises(GridcollError, match=said.format(last=last)) as caught:
            call(comm, last + 1, comm.Get_rank() == last)
        texts = world.allgather(str(caught.value))
        assert texts == texts[:1] * len(texts)
        works(comm)


class Calls:
    """Stands for a communicator of three ranks; notes the names of what is called."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: self.names.add(name)


def test_every_blocking_collective_has_a_mistake() -> None:
    """Of those that are ours. The others wait for no rank, or choose together."""
    wrong = Calls()
    for _, call, _ in MISTAKES:
        for odd in (False, True):
            call(wrong, 3, odd)  # type: ignore[arg-type]
    blocking = {
        name for name in _COLLECTIVES if not name.endswith("_init") and not name.startswith("I")
    }
    assert {"Bcast", "Alltoallw", "bcast"} <= blocking
    assert blocking - wrong.names == set()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("force", ["grid", "native"])
@pytest.mark.parametrize(("body", "call", "said"), MISTAKES)
def test_ranks_that_disagree(
    world: MPI.Intracomm,
    body: str,
    call: Any,
    said: str,
    force: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether plans run or the MPI library's own."""
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")
    monkeypatch.setenv("GRIDCOLL_FORCE", force)
    last = world.Get_size() - 1
    with grid_comm(world) as comm:
        BODIES[body](comm, 5, 0)
        with pytest.raises(DisagreementError, match=said.format(last=last)):
            call(comm, last + 1, comm.Get_rank() == last)
        BODIES[body](comm, 5, 0)
