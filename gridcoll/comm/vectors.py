"""Buffer arguments that hold a block of its own size for every rank."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from mpi4py import MPI

from gridcoll.comm.blocks import Blocks
from gridcoll.comm.buffers import Message, read_message
from gridcoll.comm.elements import read_elements


@dataclass(frozen=True, slots=True)
class Vectors:
    """A buffer argument as bytes in which rank ``i`` has ``sizes[i]`` from ``starts[i]`` on."""

    message: Message
    starts: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def even(cls, blocks: Blocks, n_blocks: int) -> Vectors:
        """``blocks`` that are all alike."""
        size = blocks.block_bytes
        return cls(blocks.message, tuple(size * k for k in range(n_blocks)), (size,) * n_blocks)

    def block(self, rank: int) -> memoryview:
        """The bytes of ``rank``, not copied."""
        return self.message.view[self.starts[rank] : self.starts[rank] + self.sizes[rank]]

    @property
    def run(self) -> memoryview | None:
        """All blocks, if they stand one after another in rank order."""
        ends = tuple(accumulate(self.sizes, initial=self.starts[0]))
        if self.starts != ends[:-1]:
            return None
        return self.message.view[ends[0] : ends[-1]]


def read_vectors(spec: Any, n_blocks: int, *, writable: bool) -> Vectors:
    """The blocks of ``spec``, any form mpi4py takes: with counts, or counts and displacements.

    Raises some exception for a ``spec`` that mpi4py does not take, or that reaches beyond its
    buffer.
    """
    buffer, counts, displacements, datatype = _unpack(spec)
    if datatype is None:
        found = read_elements(buffer, writable=False)
        if found is None:
            raise TypeError("a derived type must be named")
        datatype = found.datatype
    elif isinstance(datatype, str):
        datatype = MPI.Datatype.fromcode(datatype)
    view = memoryview(b"") if buffer is None or buffer is MPI.BOTTOM else _bytes(buffer)
    _, extent = datatype.Get_extent()
    counts = _counts(counts, n_blocks, len(view), extent)
    places = _places(displacements, counts)
    unit_bytes = datatype.Get_size()
    sizes = tuple(count * unit_bytes for count in counts)
    if not datatype.is_predefined or extent != unit_bytes or buffer is MPI.BOTTOM:
        message = _through_indexed(buffer, counts, [p * extent for p in places], datatype, writable)
        return Vectors(message, tuple(accumulate(sizes, initial=0))[:-1], sizes)
    if writable and view.readonly and any(sizes):
        raise BufferError("read-only")
    starts = tuple(place * extent if size else 0 for place, size in zip(places, sizes, strict=True))
    if min(starts) < 0 or max(map(operator.add, starts, sizes)) > len(view):
        raise ValueError("out of bounds")
    return Vectors(Message(view), starts, sizes)


def _unpack(spec: Any) -> tuple[Any, Any, Any, Any]:
    """Buffer, counts, displacements and type of ``spec``; None for what it leaves out."""
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    counts: Any = None
    displacements: Any = None
    datatype: Any = None
    if len(spec) == 4:
        buffer, counts, displacements, datatype = spec
    elif len(spec) == 3:
        buffer, counts, datatype = spec
    else:
        buffer, counts = spec
        if isinstance(counts, MPI.Datatype | str):
            counts, datatype = None, counts
    if isinstance(counts, tuple) and len(spec) < 4:
        counts, displacements = counts
    return buffer, counts, displacements, datatype


def _bytes(buffer: Any) -> memoryview:
    return memoryview(MPI.buffer(buffer)).cast("B")  # type: ignore[arg-type]


def _counts(counts: Any, n_blocks: int, n_bytes: int, extent: int) -> tuple[int, ...]:
    """As given, one for all, or as even as the buffer allows, the first ones with one more."""
    if counts is None:
        if n_bytes % extent:
            raise ValueError("no whole number of elements")
        each, more = divmod(n_bytes // extent, n_blocks)
        return tuple(each + (block < more) for block in range(n_blocks))
    return _integers(counts, n_blocks)


def _places(displacements: Any, counts: Sequence[int]) -> tuple[int, ...]:
    """As given, so many apart, or one block after another."""
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


def _through_indexed(
    buffer: Any,
    counts: Sequence[int],
    places_bytes: Sequence[int],
    datatype: MPI.Datatype,
    writable: bool,
) -> Message:
    """One item of a type that is all the blocks, where only MPI knows how to read them."""
    indexed = datatype.Create_hindexed(counts, places_bytes).Commit()
    try:
        message = read_message([buffer, 1, indexed], writable=writable)
    except BaseException:
        indexed.Free()
        raise
    if message.store is None:
        indexed.Free()
        return message
    write_back = message.store

    def store() -> None:
        write_back()
        indexed.Free()

    return Message(message.view, store)
