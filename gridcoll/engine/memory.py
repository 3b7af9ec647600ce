"""The buffers of one call: contiguous bytes, bytes in parts, or elements for reductions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct

from gridcoll.errors import PlanError
from gridcoll.plan.dataflow import Dataflow
from gridcoll.plan.ops import BUFFERS, Chunk, Copy, Op, Recv, Reduce, Send

if TYPE_CHECKING:
    from mpi4py import MPI


class Placement(NamedTuple):
    """The addresses of the buffers of one run. The caller keeps the buffers alive.

    ``buffers`` are in the order of `BUFFERS`. ``places`` is for buffers in parts. It has two
    offsets for each op, from the start of their buffers: of its chunk and of its destination.
    ``types`` has two numbers for each op: the number of items and the handle of their datatype, 0
    for bytes. It is None if all items are bytes. ``datatype`` and ``operation`` are handles, 0 if
    there is nothing to combine.
    """

    buffers: tuple[int, ...]
    unit_bytes: int = 1
    datatype: int = 0
    operation: int = 0
    places: np.ndarray | None = None
    types: np.ndarray | None = None


def address_of(part: Part) -> int:
    """Return the address of the first byte of ``part``; 0 if it is empty."""
    # MPI's function takes a tenth of the time of NumPy's.
    from mpi4py.MPI import Get_address

    if isinstance(part, Typed):
        address: int = part.spec[0].address
        return address
    return Get_address(part) if part.nbytes else 0


class ByteMemory:
    """Buffers whose unit is a byte, for collectives that only move data.

    All are contiguous, of format ``B``. ``input`` is never written.
    """

    def __init__(
        self,
        output: memoryview | None = None,
        input: memoryview | None = None,  # noqa: A002 - the buffer's name in every plan
        scratch: memoryview | None = None,
    ) -> None:
        self._views = {"output": output, "input": input, "scratch": scratch}

    def view(self, chunk: Chunk) -> memoryview:
        """Return the bytes of ``chunk``, not copied. Raises `PlanError` if there are too few."""
        view = self._views[chunk.buffer]
        if view is None or chunk.stop > len(view):
            size = "none" if view is None else f"{len(view)} bytes"
            raise PlanError(f"{chunk}: the call's {chunk.buffer} buffer is {size}")
        return view[chunk.start : chunk.stop]

    def place(self, flow: Dataflow, unit_bytes: int = 1) -> Placement:
        """Return the addresses for ``flow``. Raises `PlanError` if a buffer is too short."""
        addresses = []
        for name in BUFFERS:
            n_bytes, view = flow.extent[name] * unit_bytes, self._views[name]
            if n_bytes and (view is None or n_bytes > len(view)):
                view = self.view(Chunk(name, 0, n_bytes))  # raises
            addresses.append(address_of(view) if n_bytes and view is not None else 0)
        return Placement(tuple(addresses), unit_bytes)

    def copy(self, source: Chunk, into: Chunk) -> None:
        self.view(into)[:] = self.view(source)

    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None:
        raise PlanError(f"reduce {source} into {into}: bytes have no operation")


def byte_memory(flow: Dataflow, source: memoryview, into: memoryview) -> ByteMemory:
    """Return the buffers of a new run from ``source`` to ``into``, with new scratch."""
    return ByteMemory(into, source, memoryview(np.empty(flow.scratch_units, np.uint8).data))


class Pieces(Struct, frozen=True):
    """A chunk that spans several parts, sent as one message."""

    views: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.views))


class Typed(Struct, frozen=True):
    """Memory described by a datatype; MPI packs and unpacks it.

    ``spec`` is an `MPI.buffer`, a count and a datatype, as mpi4py takes them. ``nbytes`` is the
    number of bytes in a message.
    """

    spec: tuple[Any, int, Any]
    nbytes: int

    def __len__(self) -> int:
        return self.nbytes


Part = memoryview | Typed


class PartedMemory:
    """Buffers that consist of parts, numbered as if the parts were one after another.

    Views are contiguous, of format ``B``. A typed part is always sent or received as a whole, by
    one message. ``input`` is never written. ``begins`` are the addresses of the caller's input and
    output: the engine in C counts offsets from there.
    """

    def __init__(
        self,
        output: Sequence[Part],
        input: Sequence[Part],  # noqa: A002 - the buffer's name in every plan
        scratch: Sequence[Part] = (),
        begins: tuple[int, int] = (0, 0),
    ) -> None:
        self._begins = {"input": begins[0], "output": begins[1], "scratch": 0}
        self._parts = {"output": output, "input": input, "scratch": scratch}
        self._starts = {
            name: list(accumulate(map(len, parts), initial=0))
            for name, parts in self._parts.items()
        }

    def view(self, chunk: Chunk) -> memoryview | Pieces | Typed:
        """Return the bytes of ``chunk``, not copied. Raises `PlanError` if it is out of range."""
        pieces = tuple(self._pieces(chunk))
        if len(pieces) == 1:
            return pieces[0]
        return Pieces(_views(pieces, chunk)) if pieces else memoryview(bytearray())

    def _pieces(self, chunk: Chunk) -> Iterator[Part]:
        parts, starts = self._parts[chunk.buffer], self._starts[chunk.buffer]
        if chunk.stop > starts[-1]:
            raise PlanError(f"{chunk}: the call's {chunk.buffer} buffer is {starts[-1]} bytes")
        at = chunk.start
        while at < chunk.stop:
            # Of several parts that start here, all but the last are empty.
            part = bisect_right(starts, at) - 1
            stop = min(chunk.stop, starts[part + 1])
            yield _cut(parts[part], at - starts[part], stop - starts[part], chunk)
            at = stop

    def place(self, flow: Dataflow) -> Placement | None:
        """Return the offset of every chunk of ``flow``.

        None if a chunk spans several parts, or if a typed part is to be copied.
        """
        places: list[int] = []
        types: list[tuple[int, int]] = []
        for op in flow.program:
            for chunk in _chunks(op):
                part = self.view(chunk)
                if isinstance(part, Pieces):
                    return None
                if isinstance(part, Typed) and not isinstance(op, Send | Recv):
                    return None
                places.append(address_of(part) - self._begins[chunk.buffer])
                types.append(_items(part))
        return Placement(
            tuple(self._begins[name] for name in BUFFERS),
            places=np.array(places, np.int64),
            types=np.array(types[::2], np.uint64) if any(map(any, types)) else None,
        )

    def copy(self, source: Chunk, into: Chunk) -> None:
        at = into.start
        for piece in _views(self._pieces(source), source):
            n_copied = 0
            for target in _views(self._pieces(Chunk(into.buffer, at, at + len(piece))), into):
                target[:] = piece[n_copied : n_copied + len(target)]
                n_copied += len(target)
            at += n_copied

    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None:
        raise PlanError(f"reduce {source} into {into}: bytes have no operation")


def _cut(part: Part, start: int, stop: int, chunk: Chunk) -> Part:
    """Return a slice of ``part``. Raises `PlanError` for a fraction of a typed part."""
    if isinstance(part, memoryview):
        return part[start:stop]
    if start or stop < len(part):
        raise PlanError(f"{chunk}: only the whole part of {part.spec[2]} can be sent")
    return part


def _views(parts: Iterable[Part], chunk: Chunk) -> tuple[memoryview, ...]:
    """Return ``parts`` as views. Raises `PlanError` if one is typed."""
    views: list[memoryview] = []
    for part in parts:
        if not isinstance(part, memoryview):
            raise PlanError(f"{chunk}: a part described by a datatype cannot be used as bytes")
        views.append(part)
    return tuple(views)


def _chunks(op: Op) -> tuple[Chunk, Chunk]:
    """Return source and destination of ``op``; a transfer has one chunk for both."""
    match op:
        case Send(chunk=chunk) | Recv(chunk=chunk):
            return chunk, chunk
        case Copy(source=source, into=into) | Reduce(source=source, into=into):
            return source, into


def _items(part: Part) -> tuple[int, int]:
    """Return the number of items and the datatype's handle, as in `Placement.types`."""
    if not isinstance(part, Typed):
        return 0, 0
    from mpi4py.MPI import _handleof  # an int handle comes as an unsigned number

    _, count, datatype = part.spec
    return count, _handleof(datatype)


ALIGNMENT_BYTES = 64
"""Scratch starts at a multiple of this on every rank. If a plan combines the same elements on
several ranks, they have the same alignment there, and vectorised operations treat them alike."""


class ElementMemory:
    """Buffers whose unit is one element of ``datatype``, with its gaps if it has any.

    All are contiguous, of format ``B``. ``input`` is never written. ``output`` is None if ``flow``,
    the program to run, does not use it.
    """

    def __init__(
        self,
        output: memoryview | None,
        input: memoryview,  # noqa: A002 - the buffer's name in every plan
        flow: Dataflow,
        datatype: MPI.Datatype,
        op: MPI.Op,
    ) -> None:
        self._unit_bytes = datatype.Get_extent()[1]
        scratch = aligned_bytes(flow.scratch_units * self._unit_bytes)
        self._bytes = ByteMemory(output, input, scratch)
        self._datatype = datatype
        self._op = op

    def view(self, chunk: Chunk) -> memoryview:
        """Return the bytes of ``chunk``, not copied."""
        unit = self._unit_bytes
        return self._bytes.view(Chunk(chunk.buffer, chunk.start * unit, chunk.stop * unit))

    def place(self, flow: Dataflow) -> Placement:
        """Like `ByteMemory.place`, with handles of the datatype and the operation."""
        from mpi4py import MPI

        return self._bytes.place(flow, self._unit_bytes)._replace(
            datatype=MPI._handleof(self._datatype), operation=MPI._handleof(self._op)
        )

    def copy(self, source: Chunk, into: Chunk) -> None:
        self.view(into)[:] = self.view(source)

    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None:
        if source.size == 0:
            return
        left, right = self.view(source), self.view(into)
        if source_first:
            self._reduce(left, right)
            return
        result = aligned_bytes(len(left))
        result[:] = left
        self._reduce(right, result)
        right[:] = result

    def _reduce(self, left: memoryview, right: memoryview) -> None:
        """Compute ``right = left (op) right``."""
        n_units = len(left) // self._unit_bytes
        self._op.Reduce_local((left, n_units, self._datatype), (right, n_units, self._datatype))


def aligned_bytes(n_bytes: int) -> memoryview:
    """Return uninitialised memory that starts at a multiple of `ALIGNMENT_BYTES`."""
    block = np.empty(n_bytes + ALIGNMENT_BYTES, np.uint8)
    skip = -address_of(block.data) % ALIGNMENT_BYTES
    return block.data[skip : skip + n_bytes]
