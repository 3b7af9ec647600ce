"""What mpi4py's buffer arguments mean: how many bytes, and where."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

_self_comm: list[MPI.Intracomm] = []
_one_at_a_time = threading.Lock()
"""Held while messages to ourselves are under way: two threads' would be taken for each other."""


def open_self_comm() -> None:
    """Make the one-rank communicator that `_through_mpi` uses. Call while no other thread runs."""
    if not _self_comm:
        _self_comm.append(MPI.COMM_SELF.Dup())


@dataclass(frozen=True, slots=True)
class Message:
    """A buffer argument as contiguous bytes.

    ``view`` is the user's own memory where that is contiguous, else a packed copy that `store`
    writes back to where it came from.
    """

    view: memoryview
    store: Callable[[], None] | None = None


def read_message(spec: Any, *, writable: bool) -> Message:
    """The bytes of ``spec``, any form mpi4py takes.

    Raises what mpi4py raises for a ``spec`` that it does not take, read-only memory where it is to
    be written included.
    """
    view = _plain_view(spec)
    if view is not None and not (writable and view.readonly):
        return Message(view)
    return _through_mpi(spec, writable)


def _plain_view(spec: Any) -> memoryview | None:
    """The bytes of an array or bytes-like object, or of ``[such, type]``, if that is simple."""
    datatype: Any = None
    if type(spec) in (list, tuple):
        if len(spec) != 2:
            return None
        spec, datatype = spec
        if isinstance(datatype, str):
            datatype = _SIMPLE_CODES.get(datatype)
        if not isinstance(datatype, MPI.Datatype) or datatype.handle not in _SIMPLE_HANDLES:
            return None
    try:
        view = memoryview(spec)
    except (TypeError, ValueError, BufferError):
        return None
    if view.format not in _SIMPLE_FORMATS or not view.contiguous:
        return None
    if datatype is not None and view.nbytes % datatype.Get_size():
        return None
    if view.format == "B" and view.ndim == 1:
        return view
    if not view.nbytes:
        return memoryview(b"") if view.readonly else memoryview(bytearray())
    if view.c_contiguous:
        return view.cast("B")
    # Fortran order: the memory is contiguous, though not in index order.
    return memoryview(MPI.memory(spec)).cast("B")  # type: ignore[arg-type]


def _through_mpi(spec: Any, writable: bool) -> Message:
    """Let MPI itself read ``spec``, by a message to ourselves; slow, but never wrong.

    A message of any type may be received as MPI_PACKED, so derived datatypes, gaps, absolute
    addresses and device memory all come out as the bytes that would cross the wire.
    """
    comm = _self_comm[0]
    if writable:
        # Raises for what cannot be received into; from PROC_NULL, mpi4py would not even look.
        comm.Recv_init(spec, 0).Free()
    with _one_at_a_time:
        send = comm.Isend(spec, 0)
        status = MPI.Status()
        comm.Probe(0, 0, status)
        packed = bytearray(status.Get_count(MPI.BYTE))
        comm.Recv([packed, MPI.PACKED], 0)
        send.Wait()

    def store() -> None:
        with _one_at_a_time:
            back = comm.Isend([packed, MPI.PACKED], 0)
            comm.Recv(spec, 0)
            back.Wait()

    return Message(memoryview(packed), store if writable else None)


# Types without gaps whose bytes cross any wire as they are. Predefined handles are never reused.
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
_SIMPLE_FORMATS = frozenset("?bBhHiIlLqQfd") | {"Zf", "Zd"}
