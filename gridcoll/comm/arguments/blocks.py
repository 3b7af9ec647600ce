"""Buffer arguments that hold a block for every rank.

The blocks are equal, or have individual sizes and displacements (`Vectors`), or also individual
types, as in `Alltoallw`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from mpi4py import MPI
from msgspec import Struct

from gridcoll.comm.arguments.buffers import (
    Message,
    bytes_at,
    bytes_of,
    read_message,
    read_scattered,
    typed_block,
    unpack,
)
from gridcoll.comm.arguments.elements import read_elements
from gridcoll.engine.memory import Typed
from gridcoll.plan.blocks import LARGEST_MESSAGE


def all_blocks(spec: Any, n_blocks: int) -> Any:
    """Return ``spec`` with the count of one block replaced by the count of all blocks."""
    if not isinstance(spec, list | tuple) or not 2 <= len(spec) <= 4:
        return spec
    buffer, count, *rest = spec
    if isinstance(count, list | tuple) and len(count) == 2:
        if count[0] is not None:
            count = (operator.index(count[0]) * n_blocks, count[1])
    elif count is not None and not isinstance(count, MPI.Datatype | str):
        count = operator.index(count) * n_blocks
    return [buffer, count, *rest]


def _item_bytes(spec: Any) -> int:
    """Return the size of the items, which must not be split; 1 if only MPI knows it."""
    kind: Any = None
    if isinstance(spec, list | tuple):
        spec, kind = spec[0], spec[-1]
    if isinstance(kind, str):
        kind = MPI.Datatype.fromcode(kind)
    if isinstance(kind, MPI.Datatype):
        return max(kind.Get_size(), 1)
    try:
        return max(memoryview(spec).itemsize, 1)
    except (TypeError, ValueError, BufferError):
        return 1


class Vectors(Struct, frozen=True):
    """A buffer argument as bytes; rank ``i`` has ``sizes[i]`` bytes at ``starts[i]``."""

    message: Message
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    def block(self, rank: int) -> memoryview:
        """Return the bytes of ``rank``, not copied."""
        return self.message.view[self.starts[rank] : self.starts[rank] + self.sizes[rank]]

    @property
    def run(self) -> memoryview | None:
        """All blocks as one view if they are contiguous in rank order, else None."""
        ends = tuple(accumulate(self.sizes, initial=self.starts[0]))
        if self.starts != ends[:-1]:
            return None
        return self.message.view[ends[0] : ends[-1]]


def read_even(spec: Any, n_blocks: int, *, writable: bool) -> Vectors:
    """Return the blocks of ``spec``, in any form mpi4py accepts, if they are equal.

    A count in ``spec`` is that of one block, as in mpi4py. Raises some exception if ``spec`` does
    not consist of equal blocks.
    """
    message = read_message(all_blocks(spec, n_blocks), writable=writable)
    size, rest = divmod(len(message.view), n_blocks)
    if rest or size % _item_bytes(spec):
        raise ValueError("no even blocks")
    return Vectors(message, tuple(size * k for k in range(n_blocks)), (size,) * n_blocks)


def read_vectors(spec: Any, n_blocks: int, *, writable: bool) -> Vectors:
    """Return the blocks of ``spec``, in any form mpi4py accepts: with counts, or displacements too.

    Like mpi4py, it trusts the application that the blocks exist, inside the buffer or not. Raises
    some exception for a ``spec`` that mpi4py does not accept.
    """
    return _as_bytes(_read(spec, n_blocks), writable=writable)


def read_each_block(
    spec: Any, n_blocks: int, *, writable: bool, packed: bool = False
) -> list[Message | Typed]:
    """Return the blocks like `read_vectors`, as a list.

    Blocks with gaps are not copied: MPI gathers each while others are being sent. They are copied
    if ``packed``, or if one is longer than a message may be.
    """
    given = _read(spec, n_blocks)
    if packed or given.is_plain or max(given.sizes) > LARGEST_MESSAGE:
        vectors = _as_bytes(given, writable=writable)
        store = vectors.message.store
        return [Message(vectors.block(rank), store) for rank in range(n_blocks)]
    base = 0
    if given.buffer is not None:
        base = MPI.buffer.frombuffer(given.buffer, readonly=not writable).address
    return [
        typed_block(base + displ * given.extent, count, given.datatype, writable=writable)
        for count, displ in zip(given.counts, given.displs, strict=True)
    ]


class _Given(Struct, frozen=True):
    """The contents of a spec; displacements are in extents.

    ``buffer`` is None if addresses are absolute, and ``view`` is None if the CPU cannot reach it.
    """

    buffer: Any
    view: memoryview | None
    counts: tuple[int, ...]
    displs: tuple[int, ...]
    datatype: MPI.Datatype
    extent: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each block in bytes."""
        unit_bytes = self.datatype.Get_size()
        return tuple(count * unit_bytes for count in self.counts)

    @property
    def is_plain(self) -> bool:
        """Whether the CPU can reach the blocks and each is contiguous, or all are empty."""
        contiguous = self.datatype.is_predefined and self.extent == self.datatype.Get_size()
        return (self.view is not None and contiguous) or not any(self.sizes)


def _read(spec: Any, n_blocks: int) -> _Given:
    buffer, counts, displacements, datatype = unpack(spec, tuple)
    if datatype is None:
        found = read_elements(buffer, writable=False)
        if found is None:
            raise TypeError("a derived type must be named")
        datatype = found.datatype
    elif isinstance(datatype, str):
        datatype = MPI.Datatype.fromcode(datatype)
    buffer = None if buffer is MPI.BOTTOM else buffer  # mpi4py accepts both
    view, n_bytes = _memory(buffer)
    _, extent = datatype.Get_extent()
    counts = _counts(counts, n_blocks, n_bytes, extent)
    if min(counts) < 0:
        raise ValueError("negative count")
    return _Given(buffer, view, counts, _displs(displacements, counts), datatype, extent)


def _as_bytes(given: _Given, *, writable: bool) -> Vectors:
    view, sizes = given.view, given.sizes
    offsets = tuple(displ * given.extent for displ in given.displs)
    if not any(sizes):
        return Vectors(Message(memoryview(bytearray())), (0,) * len(sizes), sizes)
    if view is None or not given.is_plain:
        base = MPI.BOTTOM if given.buffer is None else given.buffer
        message = read_scattered(base, given.counts, offsets, given.datatype, writable=writable)
        return Vectors(message, tuple(accumulate(sizes, initial=0))[:-1], sizes)
    if writable and view.readonly:
        raise BufferError("read-only")
    starts = tuple(offset if size else 0 for offset, size in zip(offsets, sizes, strict=True))
    first, last = min(starts), max(map(operator.add, starts, sizes))
    if first >= 0 and last <= len(view):
        return Vectors(Message(view), starts, sizes)
    # The application's memory may extend beyond the buffer object on both sides; MPI allows this.
    whole = bytes_at(MPI.Get_address(view) + first, last - first, readonly=view.readonly)
    return Vectors(Message(whole), tuple(start - first for start in starts), sizes)


def _memory(buffer: Any) -> tuple[memoryview | None, int]:
    """Return a view of ``buffer``, None if the CPU cannot reach it, and its length."""
    if buffer is None:
        return None, 0
    try:
        view = bytes_of(buffer)
    except BufferError:
        return None, MPI.buffer(buffer).nbytes
    return view, len(view)


def _counts(counts: Any, n_blocks: int, n_bytes: int, extent: int) -> tuple[int, ...]:
    """Return the counts: as given, one for all blocks, or None.

    If None, the buffer is divided as equally as possible; the first blocks have one element more.
    """
    if counts is None:
        if n_bytes % extent:
            raise ValueError("no whole number of elements")
        each, n_larger = divmod(n_bytes // extent, n_blocks)
        return tuple(each + (block < n_larger) for block in range(n_blocks))
    return _integers(counts, n_blocks)


def _displs(displacements: Any, counts: Sequence[int]) -> tuple[int, ...]:
    """Return the displacements: as given, by a stride, or None for contiguous blocks."""
    if displacements is None:
        return tuple(accumulate(counts, initial=0))[:-1]
    try:
        stride = operator.index(displacements)
    except TypeError:
        return _integers(displacements, len(counts))
    return tuple(stride * block for block in range(len(counts)))


def _integers(values: Any, n_blocks: int) -> tuple[int, ...]:
    try:
        return (operator.index(values),) * n_blocks
    except TypeError:
        found = tuple(map(operator.index, values))
    if len(found) != n_blocks:
        raise ValueError(f"expecting {n_blocks} items, got {len(found)}")
    return found


def read_typed_vector(
    spec: Any, n_blocks: int, *, writable: bool, packed: bool = False
) -> list[Message | Typed]:
    """Return the blocks of an `Alltoallw` argument.

    Every block has a type, and displacements are in bytes. Blocks with gaps are not copied: MPI
    gathers each while others are being sent. They are copied if ``packed``, or if they are longer
    than a message may be.

    Raises for a ``spec`` that mpi4py does not accept.
    """
    if not isinstance(spec, list | tuple):
        raise TypeError("message: expecting list or tuple")
    counts: Any = None
    displs: Any = None
    if len(spec) == 2:
        buffer, types = spec
    elif len(spec) == 3:
        buffer, (counts, displs), types = spec
    else:
        buffer, counts, displs, types = spec
    if counts is None and displs is None:
        counts, displs = [1] * n_blocks, [0] * n_blocks
    if len(types) != n_blocks or not all(isinstance(each, MPI.Datatype) for each in types):
        raise TypeError(f"message: expecting {n_blocks} datatypes")
    if not len(counts) == len(displs) == n_blocks:
        raise ValueError(f"message: expecting {n_blocks} counts and displacements")
    view, address = _memory_and_address(buffer, writable)
    return [
        _read_block(
            *(view, address, operator.index(displ), operator.index(count), datatype),
            writable=writable,
            packed=packed,
        )
        for count, displ, datatype in zip(counts, displs, types, strict=True)
    ]


def _memory_and_address(buffer: Any, writable: bool) -> tuple[memoryview | None, int]:
    """Return a view of ``buffer`` and its address.

    The view is None if the CPU cannot reach the buffer, addresses are absolute, or there is no
    buffer.
    """
    if buffer is None or buffer is MPI.BOTTOM:
        return None, 0
    memory = MPI.buffer.frombuffer(buffer, readonly=not writable)
    try:
        return bytes_of(memory), memory.address
    except BufferError:
        return None, memory.address


def address_in_memory(buffer: Any, *, writable: bool) -> int | None:
    """Return the address of ``buffer``; None if the CPU cannot reach it or addresses are absolute.

    Raises what mpi4py raises if it is not a buffer, or is read-only although ``writable``.
    """
    view, address = _memory_and_address(buffer, writable)
    return None if view is None else address


def _read_block(
    view: memoryview | None,
    address: int,
    offset: int,
    count: int,
    datatype: MPI.Datatype,
    *,
    writable: bool,
    packed: bool,
) -> Message | Typed:
    """Return the block of ``count`` items that begins at byte ``offset``."""
    if count < 0:
        raise ValueError(f"message: negative count {count}")
    size, extent = datatype.Get_size(), datatype.Get_extent()
    if not count * size:
        return Message(memoryview(bytearray()))
    stop = offset + count * size
    plain = datatype.is_predefined and extent == (0, size)
    if plain and view is not None and offset >= 0 and stop <= len(view):
        return Message(view[offset:stop])
    if not packed and count * size <= LARGEST_MESSAGE:
        return typed_block(address + offset, count, datatype, writable=writable)
    return read_scattered(MPI.BOTTOM, [count], [address + offset], datatype, writable=writable)
