"""Broadcast as a user calls it."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from mpi4py import MPI

from gridcoll.comm.agreement import require_equal
from gridcoll.comm.buffers import read_message
from gridcoll.comm.context import Context
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.variants import run_native
from gridcoll.engine.memory import ByteMemory
from gridcoll.plan import Dataflow
from gridcoll.plan.natives import NATIVE

HEADER_BYTES = 1024
"""First message of an object broadcast: the pickle's length and as much of it as fits."""

_LENGTH = struct.Struct("<q")
_ROOM = HEADER_BYTES - _LENGTH.size


class BroadcastMethods(GridMethods):
    """`Bcast` and `bcast`."""

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """As `mpi4py.MPI.Comm.Bcast`, along the grid where that is predicted faster."""
        context = self._context
        if context is None or context.native_only or (rank := context.as_rank(root)) is None:
            return super().Bcast(buf, root)
        root = rank
        if type(buf) is np.ndarray and (native := context.known_native("bcast", buf, 1, root)):
            if native == NATIVE:
                return super().Bcast(buf, root)
            return run_native(self, native, "Bcast", buf, root)
        writable = context.rank != root
        message = read_message(buf, writable=writable)
        n_bytes = len(message.view)
        if context.settings.check:
            require_equal(context.private, "Bcast", f"Bcast root={root} bytes={n_bytes}")
        flow = context.program("bcast", n_bytes, root)
        if flow is None:
            return run_native(self, context.native("bcast", n_bytes, root), "Bcast", buf, root)
        context.run(flow, _memory(flow, message.view))
        if message.store:
            message.store()
        return None

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """As `mpi4py.MPI.Comm.bcast`: length and pickle flow down the grid in one stream."""
        context = self._context
        if context is None or context.native_only or (rank := context.as_rank(root)) is None:
            return super().bcast(obj, root)
        root = rank
        if context.settings.check:
            require_equal(context.private, "bcast", f"bcast root={root}")
        pickled = MPI.pickle.dumps(obj) if context.rank == root else b""
        return MPI.pickle.loads(broadcast_bytes(context, pickled, root))


def broadcast_bytes(context: Context, data: bytes, root: int) -> bytearray:
    """The ``data`` of ``root``, whose length only it knows. Collective."""
    header = bytearray(HEADER_BYTES)
    if context.rank == root:
        header[:] = (_LENGTH.pack(len(data)) + data[:_ROOM]).ljust(HEADER_BYTES, b"\0")
    _broadcast(context, memoryview(header), root)
    (length,) = _LENGTH.unpack_from(header)
    result = bytearray(length)
    n_head = min(length, _ROOM)
    result[:n_head] = header[_LENGTH.size : _LENGTH.size + n_head]
    if context.rank == root:
        result[n_head:] = data[n_head:]
    if length > n_head:
        _broadcast(context, memoryview(result)[n_head:], root)
    return result


def _broadcast(context: Context, view: memoryview, root: int) -> None:
    flow = context.program("bcast", len(view), root)
    if flow is None:
        native = context.native("bcast", len(view), root)
        run_native(context.private, native, "Bcast", [view, MPI.BYTE], root)
    else:
        context.run(flow, _memory(flow, view))


def _memory(flow: Dataflow, view: memoryview) -> ByteMemory:
    """The message, and a few bytes for plans that ask before they send."""
    n_scratch = flow.scratch_units
    return ByteMemory(view, scratch=memoryview(bytearray(n_scratch)) if n_scratch else None)
