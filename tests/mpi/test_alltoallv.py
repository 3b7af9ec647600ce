"""Alltoallv and Alltoallw against plain mpi4py on the same ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.comm.methods import vectors
from gridcoll.plan.alltoall.vector import vector_program
from tests.mpi.exchanges import METHODS, ROOM, SPACED, both, planned
from tests.mpi.support import grid_comm, layouts

LAYOUTS = ("one cluster", "two", "three interleaved", "lonely root", "all alone")
UNCOMMITTED = MPI.INT.Create_vector(1, 1, 2)


def sizes_of(size: int, seed: int, most: int = 9) -> np.ndarray:
    """How many elements each rank has for each other, the same on all ranks."""
    return np.random.default_rng(seed).integers(0, most, (size, size))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_of_every_pair(world: MPI.Intracomm, layout: str, n_planned: list[int]) -> None:
    """Zero for some, thousands for others."""
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world, layouts(size)[layout]) as comm:
        for seed, most in ((1, 4), (2, 9), (3, 20_000)):
            counts = sizes_of(size, seed, most)
            sent = np.concatenate(
                [np.full(n, rank * 100 + j, "i4") for j, n in enumerate(counts[rank])]
            )
            got = np.full(int(counts[:, rank].sum()), -1, "i4")
            before = n_planned[0]
            result = planned(comm).Alltoallv([sent, counts[rank]], [got, counts[:, rank].tolist()])
            assert result is None
            wanted = [np.full(n, i * 100 + rank, "i4") for i, n in enumerate(counts[:, rank])]
            assert (got == np.concatenate(wanted)).all()
            assert n_planned[0] - before == int(size > 1)


# Specs of blocks of three ints for every rank, in memory that has room for more.
FORMS: dict[str, Callable[[np.ndarray, int], Any]] = {
    "array": lambda memory, size: memory[: 3 * size],
    "count": lambda memory, size: [memory, 3],
    "counts": lambda memory, size: [memory, [3] * size],
    "counts as array": lambda memory, size: (memory, np.full(size, 3)),
    "type": lambda memory, size: [memory[: 3 * size], MPI.INT],
    "code": lambda memory, size: [memory[: 3 * size], "i"],
    "counts and type": lambda memory, size: [memory, [3] * size, MPI.INT],
    "no counts": lambda memory, size: [memory[: 3 * size], None, MPI.INT],
    "pair": lambda memory, size: [memory, ([3] * size, [5 * k for k in range(size)])],
    "pair with type": lambda memory, size: [memory, (3, 4), MPI.INT],
    "four": lambda memory, size: [memory, [3] * size, [7 * k for k in range(size)], "i"],
    "no displacements": lambda memory, size: [memory, 3, None, MPI.INT],
    "descending": lambda memory, size: [memory, 3, [4 * k for k in range(size)][::-1], MPI.INT],
    "bytes": lambda memory, size: [memory.view("u1"), 12, MPI.BYTE],
    "memoryview": lambda memory, size: memoryview(memory[: 3 * size]),
}


@pytest.mark.parametrize("send", FORMS)
def test_buffer_forms(world: MPI.Intracomm, send: str) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        for receive in FORMS:
            source = np.arange(ROOM, dtype="i4") + 10_000 * rank

            def call(caller: MPI.Intracomm, into: np.ndarray, receive: str = receive) -> None:
                caller.Alltoallv(FORMS[send](source, size), FORMS[receive](into, size))  # noqa: B023

            both(world, comm, call)
            assert (source == np.arange(ROOM) + 10_000 * rank).all()


def test_counts_that_come_out_uneven(world: MPI.Intracomm) -> None:
    """Without counts, the first ranks get one element more."""
    size = world.Get_size()
    with grid_comm(world) as comm:
        mine = comm.Get_rank()
        n = 2 * size + 1

        def call(caller: MPI.Intracomm, into: np.ndarray) -> None:
            caller.Alltoallv(np.arange(n, dtype="i4"), [into, 3 if mine == 0 else 2])

        both(world, comm, call)


def test_in_place(world: MPI.Intracomm) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    counts = [(rank + other) % 4 for other in range(size)]  # symmetric, as IN_PLACE needs
    with grid_comm(world) as comm:
        for place in (MPI.IN_PLACE, None):

            def call(caller: MPI.Intracomm, into: np.ndarray, place: Any = place) -> None:
                into[:] = np.arange(ROOM) + 10_000 * rank
                caller.Alltoallv(place, [into, counts, [5 * k for k in range(size)], MPI.INT])

            both(world, comm, call)

            def typed(caller: MPI.Intracomm, into: np.ndarray, place: Any = place) -> None:
                into[:] = np.arange(ROOM) + 10_000 * rank
                displs = [20 * k for k in range(size)]
                caller.Alltoallw(place, [into, counts, displs, [MPI.INT] * size])

            both(world, comm, typed)


def test_nothing_for_anybody(world: MPI.Intracomm) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        ours = planned(comm)
        ours.Alltoallv([None, 0, MPI.INT], [None, 0, MPI.INT])
        ours.Alltoallv(np.zeros(0, "i4"), np.zeros(0, "i4"))
        types = [MPI.INT] * size
        ours.Alltoallw([None, [0] * size, [0] * size, types], [None, [0] * size, [0] * size, types])


WRONG: dict[str, Callable[[np.ndarray, int], tuple[Any, Any]]] = {
    "not a buffer": lambda m, size: (3, m),
    "nothing to receive into": lambda m, size: (m, None),
    "wrong number of counts": lambda m, size: ([m, [1] * (size + 1)], [m.copy(), 1]),
    "wrong number of displacements": lambda m, size: ([m, 1, [0] * (size + 1), "i"], m.copy()),
    "a count that is none": lambda m, size: ([m, [1.5] * size], [m.copy(), 1]),
    "a negative count": lambda m, size: ([m, -1], [m.copy(), 1]),
    "no type": lambda m, size: ([m, 1, "nonsense"], [m.copy(), 1]),
    "too many items": lambda m, size: ([m, 1, 0, "i", 5], [m.copy(), 1]),
    "one item": lambda m, size: ([m], [m.copy(), 1]),
    "read-only": lambda m, size: (m, bytes(m)),
    "null type": lambda m, size: ([m, 1, MPI.DATATYPE_NULL], [m.copy(), 1]),
    "strided": lambda m, size: (m[::2], m.copy()),
    "uncommitted": lambda m, size: ([m, 1, UNCOMMITTED], [m.copy(), 1]),
    "uncommitted into": lambda m, size: ([m, 1], [m.copy(), 1, UNCOMMITTED]),
    "read-only by type": lambda m, size: ([m, 1, SPACED], [bytes(m), 1, SPACED]),
    "objects": lambda m, size: (np.array([None] * size), m),
}
WRONG_TYPED: dict[str, Callable[[np.ndarray, int], tuple[Any, Any]]] = {
    "not a list": lambda m, size: (3, [m, [MPI.INT] * size]),
    "one type": lambda m, size: ([m, MPI.INT], [m, [MPI.INT] * size]),
    "codes": lambda m, size: ([m, ["i"] * size], [m, [MPI.INT] * size]),
    "too few types": lambda m, size: ([m, [MPI.INT] * (size - 1)], [m, [MPI.INT] * size]),
    "read-only": lambda m, size: ([m, [MPI.INT] * size], [bytes(m), [MPI.INT] * size]),
    "null type": lambda m, size: ([m, [MPI.DATATYPE_NULL] * size], [m, [MPI.INT] * size]),
    "uncommitted": lambda m, size: ([m, [UNCOMMITTED] * size], [m.copy(), [MPI.INT] * size]),
    "uncommitted into": lambda m, size: ([m, [MPI.INT] * size], [m.copy(), [UNCOMMITTED] * size]),
    "read-only by type": lambda m, size: ([m, [SPACED] * size], [bytes(m), [SPACED] * size]),
}


@pytest.mark.usefixtures("packs")
@pytest.mark.parametrize("method", METHODS)
def test_wrong_arguments_get_the_same_error(world: MPI.Intracomm, method: str) -> None:
    size = world.Get_size()
    memory = np.zeros(4 * size, "i4")
    with grid_comm(world) as comm:
        for what, wrong in (WRONG if method == "Alltoallv" else WRONG_TYPED).items():
            errors = []
            for caller in (world, planned(comm)):
                with pytest.raises(Exception) as caught:
                    getattr(caller, method)(*wrong(memory, size))
                error = caught.value
                # An MPI library's text may name the communicator.
                said = error.Get_error_class() if isinstance(error, MPI.Exception) else str(error)
                errors.append((caught.type, said))
            assert errors[0] == errors[1], what
        counts = sizes_of(size, 5)
        got = np.zeros(int(counts[:, comm.Get_rank()].sum()), "u1")
        sent = np.zeros(int(counts[comm.Get_rank()].sum()), "u1")
        planned(comm).Alltoallv([sent, counts[comm.Get_rank()]], [got, counts[:, comm.Get_rank()]])


@pytest.mark.mpi(min_size=2)
def test_too_much_for_oneself(world: MPI.Intracomm) -> None:
    """Everybody sends itself two elements and expects one."""
    rank, size = world.Get_rank(), world.Get_size()
    counts, into = [0] * size, [0] * size
    counts[rank], into[rank] = 2, 1
    with grid_comm(world) as comm:
        with pytest.raises(MPI.Exception) as caught:
            planned(comm).Alltoallv([np.zeros(2), counts], [np.zeros(1), into])
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE


@pytest.mark.mpi(min_size=2)
def test_native_where_an_exchange_is(world: MPI.Intracomm, n_planned: list[int]) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        native = comm.forced("alltoall", "native")
        got = np.zeros(size, "i4")
        native.Alltoallv([np.arange(size, dtype="i4"), 1], [got, 1])
        assert (got == comm.Get_rank()).all()
        assert n_planned[0] == 0


@pytest.mark.mpi(min_size=2)
def test_a_call_like_an_earlier_one_is_not_planned_again(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever transposes again and again sends blocks of the same sizes; others are planned."""
    n = world.Get_size()
    written: list[int] = []

    def watched(rank: int, *sizes: Any, own_message: bool) -> Any:
        written.append(rank)
        return vector_program(rank, *sizes, own_message=own_message)

    monkeypatch.setattr(vectors, "vector_program", watched)
    with grid_comm(world, layouts(n)["two"]) as own:
        comm = planned(own)
        for call, length in enumerate((3, 3, 3, 5, 3)):
            data = np.arange(n * length) + 100 * world.Get_rank() + call
            into = np.empty_like(data)
            comm.Alltoallv([data, [length] * n], [into, [length] * n])
            block = np.arange(length) + length * world.Get_rank() + call
            assert into.tolist() == [int(x) for r in range(n) for x in block + 100 * r]
    assert len(written) == 2
