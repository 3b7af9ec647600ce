"""Everything that mpi4py takes for a buffer, compared with plain mpi4py byte for byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.comm.arguments import buffers
from gridcoll.comm.arguments.blocks import read_even
from gridcoll.comm.arguments.buffers import open_self_comm, read_message
from tests.mpi.forms import DERIVED, FORMS, Made, free_allocated, of
from tests.mpi.support import grid_comm, pattern


def compare(world: MPI.Intracomm, make: Callable[[np.ndarray], Made], root: int) -> None:
    """What a rank's memory holds after Bcast, under plain MPI and under a grid."""
    rank, size = world.Get_rank(), world.Get_size()
    left: list[bytes] = []
    with grid_comm(world, [r % 2 for r in range(size)]) as grid:
        plain = world.Dup()
        for comm in (plain, grid):
            data = pattern(60, seed=1) if rank == root else np.full(60, 0x01010101, "i4")
            spec, read = make(data)
            assert comm.Bcast(spec, root) is None
            left.append(read())
        plain.Free()
    free_allocated()
    assert left[1] == left[0]


@pytest.mark.parametrize("name", FORMS)
def test_forms(world: MPI.Intracomm, name: str) -> None:
    compare(world, FORMS[name], world.Get_size() - 1)


def test_the_forms_carry_something(world: MPI.Intracomm) -> None:
    """Comparing two that both did nothing would prove nothing."""
    with grid_comm(world) as grid:
        data = pattern(60, seed=1) if grid.Get_rank() == 0 else np.full(60, -1, "i4")
        grid.Bcast([data, (17, 5), MPI.INT], 0)
        wanted = np.full(60, -1, "i4")
        wanted[5:22] = pattern(60, seed=1)[5:22]
        assert (data == (pattern(60, seed=1) if grid.Get_rank() == 0 else wanted)).all()


@pytest.mark.parametrize("make_type", DERIVED, ids=lambda make: make.__name__[1:])
def test_derived_types(
    world: MPI.Intracomm, make_type: Callable[[], tuple[MPI.Datatype, int]]
) -> None:
    derived, count = make_type()
    derived.Commit()
    compare(world, lambda data: of(data, [data, count, derived]), 0)
    derived.Free()


@pytest.mark.parametrize("packed_at_root", [True, False])
def test_the_same_signature_laid_out_differently(
    world: MPI.Intracomm, packed_at_root: bool
) -> None:
    """Contiguous at the root and strided elsewhere, and the other way round."""
    rank, root = world.Get_rank(), 0
    strided = MPI.INT.Create_vector(8, 1, 3).Commit()
    packed = (rank == root) == packed_at_root

    def make(data: np.ndarray) -> Made:
        return of(data, [data, 8, MPI.INT] if packed else [data, 1, strided])

    compare(world, make, root)
    strided.Free()


@pytest.mark.parametrize("n", [100, 40_000])
def test_a_different_layout_on_every_rank(world: MPI.Intracomm, n: int) -> None:
    """Rank r leaves r integers between one and the next."""
    rank = world.Get_rank()
    strided = MPI.INT.Create_vector(n, 1, rank + 1).Commit()
    with grid_comm(world) as grid:
        for root in range(min(3, grid.Get_size())):
            data = np.full((n, rank + 1), -1, "i4")
            if rank == root:
                data[:, 0] = pattern(n, seed=root)
            grid.Bcast([data, 1, strided], root)
            assert (data[:, 0] == pattern(n, seed=root)).all()
            assert (data[:, 1:] == -1).all()
    strided.Free()


def test_absolute_addresses(world: MPI.Intracomm) -> None:
    """Two arrays in one type, from MPI.BOTTOM."""
    root = world.Get_size() - 1
    for use_grid in (False, True):
        first = pattern(20) if world.Get_rank() == root else np.full(20, -1, "i4")
        second = pattern(9) if world.Get_rank() == root else np.full(9, -1, "i4")
        addresses = [MPI.Get_address(first), MPI.Get_address(second)]
        both = MPI.Datatype.Create_struct([20, 9], addresses, [MPI.INT, MPI.INT]).Commit()
        with grid_comm(world) as grid:
            comm = grid if use_grid else world
            comm.Bcast([MPI.BOTTOM, 1, both], root)
        both.Free()
        assert (first == pattern(20)).all()
        assert (second == pattern(9)).all()


def test_read_only_memory_at_the_root(world: MPI.Intracomm) -> None:
    with grid_comm(world) as grid:
        if grid.Get_rank() == 0:
            for buffer in (b"abcdefgh", memoryview(b"abcdefgh"), [b"abcdefgh", MPI.CHAR]):
                grid.Bcast(buffer, 0)
            frozen = np.frombuffer(b"abcdefgh", "i4")
            grid.Bcast(frozen, 0)
            grid.Bcast([frozen, (1, 1), MPI.INT], 0)
        else:
            for _ in range(4):
                buffer = bytearray(8)
                grid.Bcast(buffer, 0)
                assert buffer == b"abcdefgh"
            buffer = bytearray(4)
            grid.Bcast(buffer, 0)
            assert buffer == b"efgh"


SIMPLE: dict[str, tuple[Callable[[np.ndarray], Any], slice]] = {
    "array": (lambda data: data, slice(None)),
    "type": (lambda data: [data, MPI.DOUBLE], slice(None)),
    "code": (lambda data: [data, "d"], slice(None)),
    "code in a tuple": (lambda data: (data, "d"), slice(None)),
    "NumPy's code": (lambda data: (data, "f8"), slice(None)),
    "bytes": (lambda data: [data, "B"], slice(None)),
    "count": (lambda data: [data, 5], slice(5)),
    "NumPy's count": (lambda data: [data, np.int32(5)], slice(5)),
    "count, type": (lambda data: [data, 5, MPI.DOUBLE], slice(5)),
    "count, code": (lambda data: (data, 5, "d"), slice(5)),
    "no items": (lambda data: [data, 0, MPI.DOUBLE], slice(0)),
    "count of a smaller type": (lambda data: [data, 10, MPI.FLOAT], slice(5)),
    "no count": (lambda data: [data, None, MPI.DOUBLE], slice(None)),
    "pair": (lambda data: [data, (5, 3)], slice(3, 8)),
    "pair, type": (lambda data: [data, (5, 3), MPI.DOUBLE], slice(3, 8)),
    "pair in a list": (lambda data: [data, [5, 3], MPI.DOUBLE], slice(3, 8)),
    "pair of a smaller type": (lambda data: [data, (10, 6), MPI.FLOAT], slice(3, 8)),
    "pair without count": (lambda data: [data, (None, 3), MPI.DOUBLE], slice(3, None)),
    "four": (lambda data: [data, 5, 3, MPI.DOUBLE], slice(3, 8)),
    "four without count": (lambda data: [data, None, 3, MPI.DOUBLE], slice(3, None)),
    "four without type": (lambda data: [data, 5, 3, None], slice(3, 8)),
    "to the end": (lambda data: [data, 9, 3, MPI.DOUBLE], slice(3, None)),
    "part": (lambda data: [data[2:], 5, 3, MPI.DOUBLE], slice(5, 10)),
    "Fortran": (lambda data: [data.reshape((3, 4), order="F"), 5, 3, MPI.DOUBLE], slice(3, 8)),
}
"""Buffer arguments over twelve doubles, and which of these they are."""


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("writable", [False, True])
def test_simple_forms_are_not_copied(name: str, writable: bool) -> None:
    open_self_comm()
    make, part = SIMPLE[name]
    data = np.arange(12.0)
    message = read_message(make(data), writable=writable)
    assert message.store is None
    wanted = data[part]
    assert bytes(message.view) == wanted.tobytes()
    if len(wanted):
        assert MPI.Get_address(message.view) == MPI.Get_address(wanted)


UNFIT: dict[str, Callable[[np.ndarray], Any]] = {
    "negative count": lambda data: [data, -1, MPI.INT],
    "negative displacement": lambda data: [data, (2, -1), MPI.INT],
    "negative displacement of four": lambda data: [data, 2, -1, MPI.INT],
    "displacement beyond": lambda data: [data, 0, 61, MPI.INT],
    "displacement beyond without count": lambda data: [data, None, 61, MPI.INT],
    "a part of an item": lambda data: [data[:59], None, 1, MPI.DOUBLE],
    "no integer": lambda data: [data, 2.0, MPI.INT],
    "no integer for a displacement": lambda data: [data, 2, "1", MPI.INT],
    "three for a pair": lambda data: [data, (1, 2, 3), MPI.INT],
    "pair and displacement": lambda data: [data, (1, 2), 0, MPI.INT],
    "five": lambda data: [data, 1, 0, MPI.INT, 0],
    "one": lambda data: [data],
    "nothing, but two": lambda data: [None, 2, MPI.INT],
}


@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.parametrize("method", ["Bcast", "Allreduce"])
def test_what_mpi4py_refuses_is_refused(world: MPI.Intracomm, name: str, method: str) -> None:
    def outcome(comm: MPI.Intracomm) -> Any:
        spec = UNFIT[name](np.zeros(60, "i4"))
        with pytest.raises(Exception) as caught:
            comm.Bcast(spec) if method == "Bcast" else comm.Allreduce(MPI.IN_PLACE, spec)
        return type(caught.value), str(caught.value)

    with grid_comm(world) as grid:
        assert outcome(grid) == outcome(world)
        assert grid.allreduce(1) == grid.Get_size()


@pytest.mark.parametrize("longest", [7, 24, 1 << 30])
def test_packed_in_pieces_that_a_count_holds(monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    open_self_comm()
    monkeypatch.setattr(buffers, "LARGEST_MESSAGE", longest)
    strided = MPI.INT.Create_vector(6, 1, 2).Commit()
    values = np.arange(12, dtype="i4")
    message = read_message([values, 1, strided], writable=True)
    assert np.frombuffer(message.view, "i4").tolist() == [0, 2, 4, 6, 8, 10]
    assert message.store is not None
    message.view[:] = np.full(6, 99, "i4").tobytes()
    message.store()
    assert values.tolist() == [99, 1, 99, 3, 99, 5, 99, 7, 99, 9, 99, 11]
    strided.Free()


@pytest.mark.parametrize("longest", [4, 7, 1 << 30])
def test_more_items_than_a_count_holds(monkeypatch: pytest.MonkeyPatch, longest: int) -> None:
    """The root of a gather has as many as all blocks together."""
    open_self_comm()
    monkeypatch.setattr(buffers, "LARGEST_MESSAGE", longest)
    counts: list[int] = []

    def pack(spec: Any) -> memoryview:
        counts.append(spec[1])
        return packs(spec)

    packs = buffers._pack
    monkeypatch.setattr(buffers, "_pack", pack)
    spaced = MPI.BYTE.Create_resized(0, 2).Commit()
    values = np.arange(40, dtype="u1")
    blocks = read_even([values, 6, spaced], 3, writable=True)
    assert blocks.message.view.tolist() == list(range(0, 36, 2))
    assert blocks.sizes == (6, 6, 6)
    assert max(counts) <= longest
    assert blocks.message.store is not None
    blocks.message.view[:] = bytes(18)
    blocks.message.store()
    assert values.tolist() == [n * (n % 2 or n >= 36) for n in range(40)]
    spaced.Free()


@pytest.mark.parametrize("n_items", [6, 300_000])
@pytest.mark.parametrize("fault", ["no memory", "no count"])
def test_a_message_that_failed_is_not_taken_for_the_next(
    monkeypatch: pytest.MonkeyPatch, n_items: int, fault: str
) -> None:
    """Neither where it is packed nor where it is brought back."""
    open_self_comm()
    strided = MPI.INT.Create_vector(n_items, 1, 2).Commit()
    first, second = (np.full((n_items, 2), value, "i4") for value in (1, 2))

    class Uncounted(MPI.Status):
        def Get_elements(self, datatype: MPI.Datatype) -> int:
            return MPI.UNDEFINED

    def no_memory(size: int) -> bytearray:
        raise MemoryError(size)

    kind: type[Exception]
    with monkeypatch.context() as patch:
        if fault == "no memory":
            kind, text = MemoryError, str(4 * n_items)
            patch.setattr(buffers, "bytearray", no_memory, raising=False)
        else:
            kind, text = OverflowError, "more bytes than the counts"
            patch.setattr(buffers.MPI, "Status", Uncounted)
        with pytest.raises(kind, match=text):
            read_message([first, 1, strided], writable=True)
    message = read_message([second, 1, strided], writable=True)
    assert message.store is not None
    assert (np.frombuffer(message.view, "i4") == 2).all()
    message.view[:] = bytes(len(message.view))
    message.store()
    assert (second == [0, 2]).all()
    assert (first == 1).all()
    strided.Free()


@pytest.mark.parametrize("code", ["c", "q", "nonsense", "", "B", "p"])
def test_codes_mean_what_they_mean_to_mpi4py(world: MPI.Intracomm, code: str) -> None:
    """Twelve bytes: too few for whole eights, and no type at all for some."""
    root = world.Get_size() - 1

    def outcome(comm: MPI.Intracomm) -> Any:
        data = np.full(12, 7 * (comm.Get_rank() == root), "u1")
        try:
            comm.Bcast([data, code], root)
        except Exception as error:
            return type(error)
        return data.tobytes()

    with grid_comm(world) as grid:
        wanted = outcome(world)
        assert outcome(grid) == wanted


def test_what_is_left_to_mpi_is_not_read(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks with gaps would be packed for nothing."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr("gridcoll.comm.methods.alltoallv._read_both", refuse)
    size = world.Get_size()
    types = [MPI.INT] * size
    with grid_comm(world) as grid:
        sent, got = np.full(size, grid.Get_rank(), "i4"), np.full(size, -1, "i4")
        places = ([1] * size, [4 * rank for rank in range(size)])
        native = grid.forced("alltoall", "native")
        native.Alltoallw([sent, places, types], [got, places, types])
        assert (got == np.arange(size)).all()
