"""Broadcast as a user calls it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI
from numpy import ndarray

from gridcoll.comm.arguments.buffers import read_message
from gridcoll.comm.context import Context, Key
from gridcoll.comm.fast_path import is_short, repeat_in
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.moving import agree
from gridcoll.comm.pickles import Arrived, Pickled, begin, kind_of, pickle_of
from gridcoll.engine.agreement import require_equal
from gridcoll.engine.executor import Memory
from gridcoll.engine.memory import ByteMemory, PartedMemory
from gridcoll.engine.natives import native_call
from gridcoll.plan import Dataflow

HEADER_BYTES = 1024
"""First message of an object broadcast: the pickle's length and as much of it as fits."""


class BroadcastMethods(GridMethods):
    """`Bcast` and `bcast`."""

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """As `mpi4py.MPI.Comm.Bcast`, along the grid where that is predicted faster."""
        plain = type(buf) is ndarray and type(root) is int
        key = ("Bcast", buf.nbytes, root) if plain else None
        if again := self._fast_path.get(key):
            return again(self, buf, root)
        return self._read_and_broadcast(buf, root, key)

    def _read_and_broadcast(self, buf: Any, root: int, key: Key | None = None) -> None:
        context = self._context
        if context is None or context.native_only or (rank := context.as_rank(root)) is None:
            return super().Bcast(buf, root)
        root = rank
        writable = context.rank != root
        message = read_message(buf, writable=writable)
        n_bytes = len(message.view)
        agree(context, "Bcast", root, n_bytes, buf)
        decision = context.decide("bcast", n_bytes, root)
        if (flow := decision.flow) is None:
            return self._natively(context, "Bcast", decision.native, key, buf, root)
        context.run(flow, _memory(flow, message.view))
        if message.store:
            message.store()
        if key and is_short(flow, n_bytes):
            own = memoryview(bytearray(n_bytes))
            if prepared := context.prepare(flow, _memory(flow, own)):
                read = BroadcastMethods._read_and_broadcast
                context.enter(key, repeat_in(prepared, writes=writable, read=read))
        return None

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """As `mpi4py.MPI.Comm.bcast`: length, pickle and buffers flow down the grid in a stream."""
        context = self._context
        if context is None or context.native_only or (rank := context.as_rank(root)) is None:
            return super().bcast(obj, root)
        root = rank
        if context.settings.check:
            require_equal(context.private, "bcast", f"bcast root={root}")
        pickled = pickle_of(obj) if context.rank == root else None
        return broadcast_pickle(context, pickled, root).load()


def broadcast_pickle(context: Context, pickled: Pickled | None, root: int) -> Arrived:
    """What ``root`` has pickled, whose length only it knows; None elsewhere. Collective."""
    head = memoryview(pickled.head(HEADER_BYTES) if pickled else bytearray(HEADER_BYTES))
    _broadcast(context, [head], root)
    data, missing = begin(head)
    if pickled:
        missing[:] = pickled.rest(HEADER_BYTES)
    _broadcast(context, [missing], root)
    arrived = Arrived(kind_of(head), data)
    if pickled:
        arrived.take(pickled.parts)  # the root gets a copy, too: that can be sent as it is
    _broadcast(context, arrived.parts, root)
    return arrived


def _broadcast(context: Context, parts: Sequence[memoryview], root: int) -> None:
    """Broadcast ``parts``, whose sizes all ranks know, in one flow."""
    n_bytes = sum(map(len, parts))
    if not n_bytes:
        return
    decision = context.decide("bcast", n_bytes, root)
    if decision.flow is not None:
        context.run(decision.flow, _memory(decision.flow, *parts))
    else:
        native = native_call(decision.native, "Bcast")
        for part in parts:
            native(context.private, [part, MPI.BYTE], root)


def _memory(flow: Dataflow, *parts: memoryview) -> Memory:
    """The message, and a few bytes for plans that ask before they send."""
    n_scratch = flow.scratch_units
    scratch = memoryview(bytearray(n_scratch)) if n_scratch else None
    if len(parts) == 1:
        return ByteMemory(parts[0], scratch=scratch)
    return PartedMemory(parts, (), (scratch,) if scratch else ())
