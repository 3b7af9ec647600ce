"""Interpret mpi4py's buffer arguments: how many bytes there are, and where they are."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI
from msgspec import Struct

from gridcoll.engine.memory import Typed
from gridcoll.engine.transport import n_tags
from gridcoll.plan.blocks import LARGEST_MESSAGE

T = TypeVar("T")

_self_comm: list[MPI.Intracomm] = []
_message_numbers = itertools.count()
"""Numbers of messages to ourselves, used as tags: if one of them fails, it is not confused with the
next one."""


def open_self_comm() -> None:
    """Make the one-rank communicator that `_pack` uses. Call it while no other thread runs."""
    if not _self_comm:
        _self_comm.append(MPI.COMM_SELF.Dup())


class Message(Struct, frozen=True):
    """A buffer argument as contiguous bytes.

    ``view`` is the user's own memory if that is contiguous. Otherwise it is a packed copy, which
    ``store`` writes back to the user's memory. ``is_copy`` tells which of the two it is.
    """

    view: memoryview
    store: Callable[[], None] | None = None
    is_copy: bool = False


def read_message(spec: Any, *, writable: bool) -> Message:
    """Return the bytes of ``spec``, in any form mpi4py accepts.

    Raises what mpi4py raises for a ``spec`` that it does not accept. This includes read-only memory
    if ``writable``.
    """
    view = _plain_view(spec)
    if view is not None and not (writable and view.readonly):
        return Message(view)
    return _through_mpi(spec, writable)


def view_of(spec: Any, n_blocks: int = 1) -> Any:
    """Return ``spec`` in a simple form: an array, or a view whose format gives the element type.

    ``MPI.IN_PLACE`` is returned as it is. None if ``spec`` is not simple and must be read. A count
    in it is that of one of ``n_blocks`` blocks.
    """
    kind = type(spec)
    if kind is np.ndarray or spec is MPI.IN_PLACE:
        return spec
    if (kind is not list and kind is not tuple) or not 2 <= len(spec) <= 3:
        return None
    datatype, buffer = spec[-1], spec[0]
    count = spec[1] if len(spec) == 3 else None
    if type(datatype) is not MPI.Datatype or not (count is None or type(count) is int):
        return None
    found = _VIEWS.get(datatype.handle)
    if found is None:
        return None
    code, item_bytes = found
    try:
        memory = buffer if type(buffer) is MPI.buffer else MPI.buffer(buffer)
        n_bytes = memory.nbytes if count is None else count * item_bytes * n_blocks
        if n_bytes <= 0 or n_bytes % item_bytes:
            return None
        # Trust the application's count: its memory may extend beyond the buffer object.
        if n_bytes != memory.nbytes:
            memory = MPI.buffer.fromaddress(memory.address, n_bytes, memory.readonly)
        return memory.cast(code)
    except (BufferError, TypeError, ValueError):
        return None


def read_scattered(
    buffer: Any,
    counts: Sequence[int],
    displs_bytes: Sequence[int],
    datatype: MPI.Datatype,
    *,
    writable: bool,
) -> Message:
    """Return ``counts[i]`` items of ``datatype`` at each ``displs_bytes[i]``, packed.

    Displacements are as in MPI: if the application says so, they may lie beyond ``buffer``, or be
    absolute addresses relative to ``MPI.BOTTOM``. Raises what mpi4py raises.
    """

    def with_type(use: Callable[[Any], T]) -> T:
        """Call ``use`` with a type for all blocks, which is freed afterwards."""
        placed = datatype.Create_hindexed(counts, displs_bytes)
        try:
            return use([buffer, 1, placed.Commit()])
        finally:
            placed.Free()

    # Let MPI reject an uncommitted type: a new type can be made of one. Nothing is sent here.
    _self_comm[0].Send_init([bytearray(1), 1, datatype], 0).Free()
    packed = with_type(lambda spec: _through_mpi(spec, writable).view)
    store = (lambda: with_type(partial(_store, packed))) if writable else None
    return Message(packed, store, is_copy=True)


def typed_block(address: int, count: int, datatype: MPI.Datatype, *, writable: bool) -> Typed:
    """Return a block of ``count`` items of ``datatype`` at ``address``, which must be valid.

    Raises what MPI raises if it cannot be sent, or received if ``writable``.
    """
    n_bytes = count * datatype.Get_size()
    block = Typed(
        (MPI.buffer.fromaddress(address, n_bytes, not writable), count, datatype), n_bytes
    )
    comm = _self_comm[0]
    (comm.Recv_init if writable else comm.Send_init)(block.spec, 0).Free()
    return block


def unpack(spec: Any, pairs: Any = (list, tuple)) -> tuple[Any, Any, Any, Any]:
    """Return buffer, count, displacement and type of ``spec``, as mpi4py interprets it.

    Items that are left out are None. If there are fewer than four items, a value of one of the
    types ``pairs`` instead of the count holds count and displacement. Raises ValueError for too few
    or too many items.
    """
    if not isinstance(spec, list | tuple):
        return spec, None, None, None
    datatype: Any = None
    if len(spec) == 4:
        return tuple(spec)
    if len(spec) == 3:
        buffer, count, datatype = spec
    else:
        buffer, count = spec
        if isinstance(count, MPI.Datatype | str):
            return buffer, None, None, count
    count, displacement = count if isinstance(count, pairs) else (count, None)
    return buffer, count, displacement, datatype


def bytes_of(buffer: Any) -> memoryview:
    """Return the memory of ``buffer``, any object that mpi4py accepts as a buffer, not copied.

    Raises BufferError if the CPU cannot reach it, and what mpi4py raises if it is not a buffer.
    """
    whole = buffer if isinstance(buffer, MPI.buffer) else MPI.buffer(buffer)
    return whole.cast("B")


def bytes_at(address: int, n_bytes: int, *, readonly: bool) -> memoryview:
    """Return a view of memory that is not ours; the caller must keep the memory alive."""
    return MPI.buffer.fromaddress(address, n_bytes, readonly).cast("B")


def _plain_view(spec: Any) -> memoryview | None:
    """Return the bytes that ``spec`` selects of an array or bytes-like object of simple type.

    None if mpi4py must interpret or reject ``spec``.
    """
    try:
        buffer, count, displacement, datatype = unpack(spec)
        # `MPI.buffer.cast` checks whether the CPU can reach the memory; `memoryview` would not.
        view = buffer.cast("B") if isinstance(buffer, MPI.buffer) else memoryview(buffer)
        start = 0 if displacement is None else operator.index(displacement)
        n_items = None if count is None else operator.index(count)
    except (TypeError, ValueError, BufferError):
        return None
    if view.format not in _SIMPLE_FORMATS or not view.contiguous:
        return None
    whole = _flat(view)
    if buffer is spec:
        return whole
    if isinstance(datatype, str):
        datatype = _SIMPLE_CODES.get(datatype, datatype)
    if datatype is None:
        item_bytes = view.itemsize
    elif isinstance(datatype, MPI.Datatype) and datatype.handle in _SIMPLE_HANDLES:
        item_bytes = datatype.Get_size()
    else:
        return None
    offset = start * item_bytes
    n_bytes = len(whole) - offset if n_items is None else n_items * item_bytes
    if offset < 0 or n_bytes < 0 or offset + n_bytes > len(whole) or n_bytes % item_bytes:
        return None
    return whole[offset : offset + n_bytes]


def _flat(view: memoryview) -> memoryview:
    """Return the bytes of contiguous memory, in memory order."""
    if view.format == "B" and view.ndim == 1:
        return view
    if not view.nbytes:
        return memoryview(b"") if view.readonly else memoryview(bytearray())
    if view.c_contiguous:
        return view.cast("B")
    # Fortran order: the memory is contiguous, though not in index order.
    return memoryview(MPI.memory(view.obj)).cast("B")  # type: ignore[arg-type]


def _through_mpi(spec: Any, writable: bool) -> Message:
    """Let MPI itself read ``spec``, by a message to ourselves. This is slow, but always correct.

    A message of any type may be received as MPI_PACKED. Therefore derived datatypes, gaps, absolute
    addresses and device memory all result in the bytes that would cross the network.
    """
    match spec:
        case [buffer, int(count), MPI.Datatype() as datatype] if count > LARGEST_MESSAGE:
            counts, starts = _pieces(count)
            extent = datatype.Get_extent()[1]
            displs = [start * extent for start in starts]
            return read_scattered(buffer, counts, displs, datatype, writable=writable)
    if writable:
        # Raises if nothing can be received into it; from PROC_NULL, mpi4py would not check.
        _self_comm[0].Recv_init(spec, 0).Free()
    packed = _pack(spec)
    return Message(packed, partial(_store, packed, spec) if writable else None, is_copy=True)


def _pack(spec: Any) -> memoryview:
    comm, tag, status = _self_comm[0], _next_tag(), MPI.Status()
    sending = comm.Isend(spec, 0, tag)
    message = comm.Mprobe(0, tag, status)
    # Not the count, which is an int in MPI libraries without large counts.
    n_bytes = status.Get_elements(MPI.BYTE)
    if n_bytes == MPI.UNDEFINED:
        raise OverflowError("message: more bytes than the counts of this MPI library hold")
    packed = memoryview(bytearray(n_bytes))
    _as_packed(packed, message.Recv)
    sending.Wait()
    return packed


def _store(packed: memoryview, spec: Any) -> None:
    _as_packed(packed, lambda given: copy_typed(given, spec))


def _as_packed(memory: memoryview, use: Callable[[Any], None]) -> None:
    """Call ``use`` with a spec of ``memory``, in several pieces if one count cannot hold it all."""
    if len(memory) <= LARGEST_MESSAGE:
        use([memory, MPI.PACKED])
        return
    pieces = MPI.PACKED.Create_hindexed(*_pieces(len(memory)))
    try:
        use([memory, 1, pieces.Commit()])
    finally:
        pieces.Free()


def _pieces(n_items: int) -> tuple[list[int], list[int]]:
    """Return lengths and starts of pieces, for libraries whose counts are ints."""
    starts = list(range(0, n_items, LARGEST_MESSAGE))
    return [min(LARGEST_MESSAGE, n_items - start) for start in starts], starts


def copy_typed(spec: Any, into: Any) -> None:
    """Let MPI copy ``spec`` to ``into``, by a message to ourselves. Gaps stay as they are."""
    comm, tag = _self_comm[0], _next_tag()
    sending = comm.Isend(spec, 0, tag)
    comm.Recv(into, 0, tag)
    sending.Wait()


def _next_tag() -> int:
    return next(_message_numbers) % n_tags()


# Types without gaps whose bytes are sent unchanged. Handles of predefined types are never reused.
_SIMPLE_HANDLES = frozenset(
    datatype.handle
    for datatype in (
        MPI.BYTE, MPI.CHAR, MPI.SIGNED_CHAR, MPI.UNSIGNED_CHAR, MPI.SHORT, MPI.UNSIGNED_SHORT,
        MPI.INT, MPI.UNSIGNED, MPI.LONG, MPI.UNSIGNED_LONG, MPI.LONG_LONG, MPI.UNSIGNED_LONG_LONG,
        MPI.FLOAT, MPI.DOUBLE, MPI.INT8_T, MPI.INT16_T, MPI.INT32_T, MPI.INT64_T, MPI.UINT8_T,
        MPI.UINT16_T, MPI.UINT32_T, MPI.UINT64_T, MPI.C_BOOL, MPI.C_FLOAT_COMPLEX,
        MPI.C_DOUBLE_COMPLEX,
    )
)  # fmt: skip
_SIMPLE_CODES = {
    code: MPI.Datatype.fromcode(code)
    for code in (*"?bBhHiIlLqQfdFD", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")
}
# With NumPy's sizes, which are those of C: MPI can be asked for sizes only after it was started.
_VIEWS = {
    MPI.Datatype.fromcode(code).handle: (code, np.dtype(code).itemsize) for code in "bBhHiIlLqQfd"
}
"""For the handles of simple types, the format of a view that mpi4py reads as this type, and the
size of an item."""
_SIMPLE_FORMATS = frozenset("?bBhHiIlLqQfd") | {"Zf", "Zd"}
