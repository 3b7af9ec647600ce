"""The broadcast methods of `GridComm`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mpi4py import MPI
from numpy import ndarray

from gridcoll.comm.arguments.buffers import read_message, view_of
from gridcoll.comm.context import Context, Key
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.moving import agree, agree_on_objects, blank_memory, valid_root
from gridcoll.comm.pickles import Arrived, Pickled, begin, kind_of, pickle_of
from gridcoll.engine.executor import Memory
from gridcoll.engine.memory import ByteMemory, PartedMemory
from gridcoll.engine.natives import native_call
from gridcoll.engine.repeat import Form
from gridcoll.plan import Dataflow

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec

BCAST_HEADER_BYTES = 1024
"""Length of the head of an object broadcast: the pickle's length and as much of it as fits."""


class BroadcastMethods(GridMethods):
    """`Bcast` and `bcast`."""

    def Bcast(self, buf: BufSpec, root: int = 0) -> None:
        """Like `mpi4py.MPI.Comm.Bcast`, by a grid-aware plan if that is predicted to be faster."""
        plain = type(buf) is ndarray and type(root) is int
        key = ("Bcast", buf.nbytes, root) if plain else None  # type: ignore[union-attr]
        if fast_call := self._fast_path.get(key):
            return fast_call(self, buf, root)
        if key is None and type(root) is int and type(view := view_of(buf)) is memoryview:
            key = ("Bcast", view.nbytes, root)
            if fast_call := self._fast_path.get(key):
                return fast_call(self, view, root)
        return self._read_and_broadcast(buf, root, key)

    def _read_and_broadcast(self, buf: Any, root: int, key: Key | None = None) -> None:
        context = self._planning_context()
        if context is None or (rank := valid_root(context, "Bcast", root)) is None:
            return super().Bcast(buf, root)
        root = rank
        writable = context.rank != root
        try:
            message = read_message(buf, writable=writable)
        except Exception:
            agree(context, "Bcast", root, None)
            raise
        n_bytes = len(message.view)
        agree(context, "Bcast", root, n_bytes, buf)
        decision = context.decide("bcast", n_bytes, root)
        if (flow := decision.flow) is None:
            return self._natively(context, "Bcast", decision.native, key, buf, root)
        context.run(flow, _memory(flow, message.view))
        if message.store:
            message.store()
        _add_repeat(context, key, flow, n_bytes, writable=writable)
        return None

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Like `mpi4py.MPI.Comm.bcast`: the length, pickle and buffers flow down the grid."""
        context = self._planning_context()
        if context is None or (rank := valid_root(context, "bcast", root)) is None:
            return super().bcast(obj, root)
        root = rank
        agree_on_objects(context, "bcast", root, lambda: context.rank == root and pickle_of(obj))
        pickled = pickle_of(obj) if context.rank == root else None
        return broadcast_pickle(context, pickled, root).load()


def broadcast_pickle(context: Context, pickled: Pickled | None, root: int) -> Arrived:
    """Broadcast the pickle of ``root``. Only the root knows its length. Collective."""
    head = memoryview(
        pickled.head(BCAST_HEADER_BYTES) if pickled else bytearray(BCAST_HEADER_BYTES)
    )
    _broadcast(context, [head], root)
    data, missing = begin(head)
    if pickled:
        missing[:] = pickled.rest(BCAST_HEADER_BYTES)
    _broadcast(context, [missing], root)
    arrived = Arrived(kind_of(head), data)
    if pickled:
        arrived.copy_parts(pickled.parts)  # the root returns a copy, too, and sends from it
    _broadcast(context, arrived.parts, root)
    return arrived


def _broadcast(context: Context, parts: Sequence[memoryview], root: int) -> None:
    """Broadcast ``parts`` as one message. All ranks know their sizes."""
    n_bytes = sum(map(len, parts))
    if not n_bytes:
        return None
    key = ("Bcast", n_bytes, root) if len(parts) == 1 else None
    if key and (fast_call := context.fast_path.get(key)):
        return fast_call(context.comm, parts[0], root)
    decision = context.decide("bcast", n_bytes, root)
    if (flow := decision.flow) is not None:
        context.run(flow, _memory(flow, *parts))
        _add_repeat(context, key, flow, n_bytes, writable=context.rank != root)
    else:
        native = native_call(decision.native, "Bcast")

        def broadcast_each() -> None:
            for part in parts:
                native(context.comm, [part, MPI.BYTE], root)

        context.stamped(broadcast_each)()
    return None


def _add_repeat(
    context: Context, key: Key | None, flow: Dataflow, n_bytes: int, *, writable: bool
) -> None:
    context.repeat(
        key,
        flow,
        lambda: blank_memory(flow, n_bytes),
        BroadcastMethods._read_and_broadcast,
        output=Form(1, n_bytes),
        writes=writable,
    )


def _memory(flow: Dataflow, *parts: memoryview) -> Memory:
    """Return memory of the message, and a few scratch bytes for plans with a rendezvous."""
    n_scratch = flow.scratch_units
    scratch = memoryview(bytearray(n_scratch)) if n_scratch else None
    if len(parts) == 1:
        return ByteMemory(parts[0], scratch=scratch)
    return PartedMemory(parts, (), (scratch,) if scratch else ())
