"""Reduce_scatter and Reduce_scatter_block by every algorithm, against NumPy and plain mpi4py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.plan import REGISTRIES
from gridcoll.plan.natives import natives_of
from tests.mpi.blocks import LAYOUTS, outcome, uneven
from tests.mpi.bodies import check_reduce_scatter, check_reduce_scatter_block
from tests.mpi.support import grid_comm, layouts

NAMES = (*natives_of("reduce_scatter"), *REGISTRIES["reduce_scatter"])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", NAMES)
def test_all_forms_of_counts(world: MPI.Intracomm, algorithm: str, layout: str) -> None:
    size = world.Get_size()
    with grid_comm(world, layouts(size)[layout]) as comm:
        forced = comm.forced("reduce_scatter", algorithm)
        check_reduce_scatter(forced, uneven(size))
        check_reduce_scatter(forced, [7] * size)


@pytest.mark.parametrize("op", [MPI.MAX, MPI.PROD, MPI.BXOR, MPI.LAND])
def test_operations(world: MPI.Intracomm, op: MPI.Op) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        for dtype in ("i8", "u2"):
            mine = (np.arange(5 * size) % 5 + rank % 2).astype(dtype)
            results = []
            for caller in (world, comm):
                got = np.zeros(5, dtype)
                caller.Reduce_scatter_block(mine, got, op)
                results.append(got)
            assert (results[0] == results[1]).all()


@pytest.mark.parametrize("layout", ["two", "interleaved", "three"])
def test_an_operation_that_is_not_commutative(world: MPI.Intracomm, layout: str) -> None:
    """A product of matrices, as items of a derived type: in rank order, by MPI itself."""
    rank, size = world.Get_rank(), world.Get_size()

    def multiply(left: Any, right: Any, datatype: MPI.Datatype) -> None:
        a = np.frombuffer(left, "i8").reshape(-1, 2, 2)
        b = np.frombuffer(right, "i8").reshape(-1, 2, 2)
        b[:] = a @ b

    op = MPI.Op.Create(multiply, commute=False)
    matrix = MPI.INT64_T.Create_contiguous(4).Commit()
    try:
        with grid_comm(world, layouts(size)[layout]) as comm:
            mine = np.array([[[1, rank + k], [k % 2, 1]] for k in range(2 * size)], "i8")
            results = []
            for caller in (world, comm):
                got = np.zeros((2, 2, 2), "i8")
                caller.Reduce_scatter_block([mine, 2, matrix], [got, 2, matrix], op)
                results.append(got)
            assert (results[0] == results[1]).all()
    finally:
        matrix.Free()
        op.Free()


@pytest.mark.parametrize("layout", ["two", "interleaved"])
def test_rank_order_of_whole_elements(world: MPI.Intracomm, layout: str) -> None:
    """Of two the left one, element by element: the first rank's remains."""
    rank, size = world.Get_rank(), world.Get_size()

    def take_left(left: Any, right: Any, datatype: MPI.Datatype) -> None:
        np.frombuffer(right, "i4")[:] = np.frombuffer(left, "i4")

    op = MPI.Op.Create(take_left, commute=False)
    try:
        with grid_comm(world, layouts(size)[layout]) as comm:
            for name in ("", *NAMES):
                ours = comm.forced("reduce_scatter", name) if name else comm
                got = np.full(9, -1, "i4")
                ours.Reduce_scatter_block(np.full(9 * size, rank, "i4"), got, op)
                assert (got == 0).all()
    finally:
        op.Free()


FORMS: dict[str, Callable[[np.ndarray, int], Any]] = {
    "array": lambda memory, n: memory[: 6 * n],
    "list with type": lambda memory, n: [memory[: 6 * n], MPI.INT],
    "count": lambda memory, n: [memory, 6],
    "tuple with count": lambda memory, n: (memory, 6, MPI.INT),
    "four items": lambda memory, n: [memory, 6, 4, MPI.INT],
}


@pytest.mark.parametrize("receive", FORMS)
@pytest.mark.parametrize("send", FORMS)
def test_buffer_forms(world: MPI.Intracomm, send: str, receive: str) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        results = []
        for caller in (world, comm):
            source = np.arange(6 * size + 12, dtype="i4") + 1000 * rank
            into = np.full(18, -1, "i4")
            caller.Reduce_scatter_block(FORMS[send](source, size), FORMS[receive](into, 1))
            results.append(into)
        assert (results[0] == results[1]).all()


WRONG: dict[str, Callable[[MPI.Intracomm, int], object]] = {
    "not a buffer": lambda c, n: c.Reduce_scatter_block(3, np.zeros(1)),  # type: ignore[arg-type]
    "nowhere to go": lambda c, n: c.Reduce_scatter_block(np.zeros(n), None),  # type: ignore[arg-type]
    "other counts": lambda c, n: c.Reduce_scatter_block(np.zeros(3 * n), np.zeros(2)),
    "other types": lambda c, n: c.Reduce_scatter_block(np.zeros(n), np.zeros(1, "f4")),
    "read-only": lambda c, n: c.Reduce_scatter_block(np.zeros(n), bytes(8)),
    "null operation": lambda c, n: c.Reduce_scatter_block(np.zeros(n), np.zeros(1), MPI.OP_NULL),
    "counts for others": lambda c, n: c.Reduce_scatter(np.zeros(n), np.zeros(1), [1] * (n + 1)),
    "counts too large": lambda c, n: c.Reduce_scatter(np.zeros(n), np.zeros(1), [2] * n),
    "room for less": lambda c, n: c.Reduce_scatter(np.zeros(2 * n), np.zeros(1), [2] * n),
    "in place without counts": lambda c, n: c.Reduce_scatter(MPI.IN_PLACE, np.zeros(n)),
    "misspelt keyword": lambda c, n: c.Reduce_scatter(sendbuffer=1),  # type: ignore[call-arg]
}
"""Wrong on every rank alike."""


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_get_the_same_error(world: MPI.Intracomm, what: str) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        theirs, ours = (outcome(WRONG[what], caller, size) for caller in (world, comm))
        assert theirs[0] != "no error"
        assert ours == theirs
        check_reduce_scatter_block(comm, 7)


@pytest.mark.parametrize("layout", ["two", "interleaved"])
def test_reproducible_sums(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """The same bits whatever plan is asked for: those of the allreduce."""
    rank, size = world.Get_rank(), world.Get_size()
    monkeypatch.setenv("GRIDCOLL_REPRODUCIBLE", "1")
    mine = np.random.default_rng(rank).normal(size=50 * size) * 10.0 ** (rank % 7)
    with grid_comm(world, layouts(size)[layout]) as comm:
        whole = np.zeros_like(mine)
        comm.Allreduce(mine, whole)
        wanted = whole[50 * rank : 50 * (rank + 1)].tobytes()
        for name in ("lanes", "ring"):
            ours = comm.forced("reduce_scatter", name)
            got = np.zeros(50)
            ours.Reduce_scatter_block(mine, got)
            assert got.tobytes() == wanted
            both = mine.copy()
            ours.Reduce_scatter(MPI.IN_PLACE, both, [50] * size)
            assert both[:50].tobytes() == wanted
