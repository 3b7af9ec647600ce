"""Alltoallv and Alltoallw against plain mpi4py on the same ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm import typed_vectors, vectors
from gridcoll.comm.methods import alltoallv
from gridcoll.plan.collectives import alltoallv as vector_plans
from tests.mpi.support import grid_comm, layouts

LAYOUTS = ("one cluster", "two", "three interleaved", "lonely root", "all alone")
ROOM = 4000
UNCOMMITTED = MPI.INT.Create_vector(1, 1, 2)
SPACED = MPI.INT.Create_vector(2, 1, 2).Commit()

REFUSES_ADDRESSES = MPI.Get_library_version().startswith("Open MPI")
"""Open MPI 5.0.11 takes no absolute addresses in `Alltoallw`."""


@pytest.fixture(params=[True, False], ids=["packed", "by type"])
def packs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether blocks with gaps are packed, whatever suits this library."""
    monkeypatch.setattr(alltoallv, "PACKS", request.param)
    return bool(request.param)


def planned(comm: GridComm) -> GridComm:
    return comm.forced("alltoall", "direct")


def sizes_of(size: int, seed: int, most: int = 9) -> np.ndarray:
    """How many elements each rank has for each other, the same on all ranks."""
    return np.random.default_rng(seed).integers(0, most, (size, size))


def both(
    world: MPI.Intracomm, comm: GridComm, call: Callable[[MPI.Intracomm, np.ndarray], None]
) -> np.ndarray:
    """Run ``call`` by MPI and by us, each into fresh memory; what both leave there."""
    results = []
    for caller in (world, planned(comm)):
        into = np.full(ROOM, -1, "i4")
        call(caller, into)
        results.append(into)
    assert (results[0] == results[1]).all()
    return results[1]


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


@pytest.mark.usefixtures("packs")
def test_derived_types(world: MPI.Intracomm) -> None:
    """Gaps stay untouched; layouts differ from rank to rank, signatures do not."""
    rank, size = world.Get_rank(), world.Get_size()
    gaps = MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 24).Commit()
    columns = MPI.INT.Create_vector(3, 1, 8).Create_resized(0, 4).Commit()
    triple = MPI.INT.Create_contiguous(3).Commit()
    source = np.arange(ROOM, dtype="i4") + 10_000 * rank
    try:
        with grid_comm(world) as comm:
            for datatype in (gaps, columns):

                def call(
                    caller: MPI.Intracomm, into: np.ndarray, datatype: MPI.Datatype = datatype
                ) -> None:
                    ours = datatype if rank % 2 else triple
                    caller.Alltoallv(
                        [source, 1, ours], [into, 1, [6 * k for k in range(size)], datatype]
                    )

                assert (both(world, comm, call) == -1).any()

            def typed(caller: MPI.Intracomm, into: np.ndarray) -> None:
                counts = [3 if (rank + k) % 2 else 1 for k in range(size)]
                types = [MPI.INT if (rank + k) % 2 else gaps for k in range(size)]
                displs = [100 * k for k in range(size)]
                caller.Alltoallw(
                    [source, counts, displs, types],
                    (into, (counts, displs[::-1]), types),
                )

            both(world, comm, typed)

            into = np.full(ROOM, -1, "i4")
            at = [MPI.Get_address(into) + 40 * k for k in range(size)]
            send = [source, [1] * size, [8 * k for k in range(size)], [MPI.INT] * size]
            if size > 1 or not REFUSES_ADDRESSES:  # a rank alone leaves it to MPI
                planned(comm).Alltoallw(send, [MPI.BOTTOM, [1] * size, at, [MPI.INT] * size])
                wanted = [10_000 * k + 2 * rank for k in range(size)]
                assert into[: 10 * size : 10].tolist() == wanted

            def short(caller: MPI.Intracomm, into: np.ndarray) -> None:
                caller.Alltoallw([source, [MPI.INT] * size], [into, [MPI.INT] * size])

            if size == 1:  # more would all be received into one place
                both(world, comm, short)
    finally:
        for datatype in (gaps, columns, triple):
            datatype.Free()


class Columns:
    """A square of ints for every rank, sent by columns and received by rows backwards."""

    def __init__(self, comm: MPI.Intracomm, n: int) -> None:
        self.rank, self.size, self.n = comm.Get_rank(), comm.Get_size(), n
        self.sent = np.arange(self.size * n * n, dtype="i4").reshape(self.size, n, n)
        self.sent += self.rank << 20
        self.got = np.full((self.size, n, n), -1, "i4")
        column = MPI.INT.Create_vector(n, 1, n)
        self.by_columns = column.Create_resized(0, 4).Commit()
        # Begins at the end of its memory: its lower bound is negative.
        self.backwards = MPI.INT.Create_hvector(n * n, 1, -4).Commit()
        column.Free()

    def free(self) -> None:
        self.by_columns.Free()
        self.backwards.Free()

    def call(self, comm: MPI.Intracomm, name: str) -> None:
        n_bytes, size = 4 * self.n**2, self.size
        displs = [n_bytes * k for k in range(size)]
        ends = [displ + n_bytes - 4 for displ in displs]
        if name == "Alltoallv":
            of_columns, of_squares = ([each // 4 for each in at] for at in (displs, ends))
            one = self.backwards.Create_resized(0, 4).Commit()
            comm.Alltoallv(
                [self.sent, self.n, of_columns, self.by_columns], [self.got, 1, of_squares, one]
            )
            one.Free()
            return
        comm.Alltoallw(
            [self.sent, [self.n] * size, displs, [self.by_columns] * size],
            [self.got, [1] * size, ends, [self.backwards] * size],
        )

    def right(self) -> bool:
        mine = np.arange(self.size * self.n**2, dtype="i4").reshape(self.sent.shape)[self.rank]
        return all(
            bool((got.ravel()[::-1] == (mine + (rank << 20)).T.ravel()).all())
            for rank, got in enumerate(self.got)
        )


METHODS = ("Alltoallv", "Alltoallw")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("n", [1, 7, 300])
@pytest.mark.parametrize("layout", ["two", "all alone"])
def test_types_of_any_length(
    world: MPI.Intracomm,
    layout: str,
    n: int,
    name: str,
    packs: bool,
    n_planned: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From bytes to a rendezvous."""

    def packed(*_: object, **__: object) -> None:
        raise AssertionError("packed")

    for module in (vectors, typed_vectors) if not packs else ():
        monkeypatch.setattr(module, "read_scattered", packed)
    with grid_comm(world, layouts(world.Get_size())[layout]) as comm:
        columns = Columns(comm, n)
        columns.call(planned(comm), name)
        columns.free()
        assert columns.right()
        assert n_planned[0] == int(world.Get_size() > 1)
        n_messages = sum(comm.traffic().messages.values())
        assert n_messages == world.Get_size() * (world.Get_size() - 1)


@pytest.mark.usefixtures("packs")
@pytest.mark.parametrize("name", METHODS)
def test_types_beyond_the_longest_message(
    world: MPI.Intracomm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut into messages, which a type is not."""
    for module in (vectors, typed_vectors, vector_plans):
        monkeypatch.setattr(module, "LARGEST_MESSAGE", 1000)
    with grid_comm(world) as comm:
        columns = Columns(comm, 20)
        columns.call(planned(comm), name)
        columns.free()
        assert columns.right()


@pytest.mark.usefixtures("packs")
@pytest.mark.mpi(min_size=2)
def test_too_much_for_oneself_by_types(world: MPI.Intracomm, n_planned: list[int]) -> None:
    """Everybody sends itself two columns and expects one; others get theirs."""
    rank, size = world.Get_rank(), world.Get_size()
    column = MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 4).Commit()
    source = np.arange(6 * size, dtype="i4") + 1000 * rank
    into = np.full(6 * size, -1, "i4")
    counts = [1 + (k == rank) for k in range(size)]
    displs = [24 * k for k in range(size)]
    with grid_comm(world) as comm, pytest.raises(MPI.Exception) as caught:
        planned(comm).Alltoallw(
            [source, counts, displs, [column] * size], [into, [1] * size, displs, [column] * size]
        )
    column.Free()
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert n_planned[0] == 1
    wanted = [6 * rank + 1000 * k for k in range(size)]
    assert into[::6].tolist() == wanted
    assert into[4::6].tolist() == [value + 4 for value in wanted]
    assert (into[1::2] == -1).all()


@pytest.mark.usefixtures("packs")
@pytest.mark.parametrize("datatype", [MPI.INT, SPACED], ids=["plain", "spaced"])
def test_what_is_sent_may_be_read_only(
    world: MPI.Intracomm, datatype: MPI.Datatype, n_planned: list[int]
) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    sent = np.arange(3 * size, dtype="i4") + 100 * rank
    sent.flags.writeable = False
    ones, displs, types = [1] * size, [12 * k for k in range(size)], [datatype] * size
    with grid_comm(world) as comm:

        def typed(caller: MPI.Intracomm, into: np.ndarray) -> None:
            caller.Alltoallw([sent, ones, displs, types], [into, ones, displs, types])

        def alike(caller: MPI.Intracomm, into: np.ndarray) -> None:
            caller.Alltoallv([sent, 1, range(size), datatype], [into, 1, range(size), datatype])

        for call in (typed, alike):
            both(world, comm, call)
    assert n_planned[0] == 2 * int(size > 1)


@pytest.mark.usefixtures("packs")
def test_types_in_place(world: MPI.Intracomm) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    column = MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 4).Commit()
    displs = [24 * k for k in range(size)]
    with grid_comm(world) as comm:

        def call(caller: MPI.Intracomm, into: np.ndarray) -> None:
            into[:] = np.arange(ROOM) + 10_000 * rank
            caller.Alltoallw(MPI.IN_PLACE, [into, [1] * size, displs, [column] * size])

        both(world, comm, call)
    column.Free()


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
