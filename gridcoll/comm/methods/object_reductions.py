"""Reductions of Python objects: one crossing between clusters, combined in mpi4py's own order.

Parts of mpi4py's bracketing that lie in one cluster are combined there, along a tree. Each partial
result goes directly to the rank that combines all of them. Lengths of partial results are not known
before, so every message starts with a head that contains its length. Short objects of an
``allreduce`` are sent to all ranks at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import mpi4py
from mpi4py import MPI
from msgspec import Struct

from gridcoll.comm.context import Context
from gridcoll.comm.decisions import PLAIN
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.broadcast import BCAST_HEADER_BYTES, broadcast_pickle
from gridcoll.comm.methods.moving import gather_heads, heads_flow, move_parts, valid_root
from gridcoll.comm.pickles import (
    HEADER_BYTES,
    Arrived,
    Kind,
    Pickled,
    assemble,
    copy_object,
    kind_of,
    n_missing,
    pickle_of,
)
from gridcoll.engine.agreement import require_equal
from gridcoll.errors import GridcollError
from gridcoll.plan import Dataflow
from gridcoll.plan.bracket import Block, children_in, parent_in, whole_blocks

Combine: TypeAlias = Callable[[Any, Any], Any]

REDUCE_HEADER_BYTES = 1024
"""Length of the head: the length of a partial result and as much of it as fits."""


class ObjectReductionMethods(GridMethods):
    """`reduce` and `allreduce`. `scan` and `exscan` are MPI's own."""

    def reduce(self, sendobj: Any, op: MPI.Op | Combine = MPI.SUM, root: int = 0) -> Any | None:
        """Like `mpi4py.MPI.Comm.reduce`, combining in its order for any ``op``.

        Raises `GridcollError` if ``op`` or pickling failed on another rank.
        """
        context = self._context
        if context is None or (rank := valid_root(context, "reduce", root)) is None:
            return super().reduce(sendobj, op, root)
        if context.settings.check:
            require_equal(context.comm, "reduce", f"reduce root={rank}")
        if _left_to_mpi(context, "reduce"):
            return super().reduce(sendobj, op, root)
        result = _reduce(context, sendobj, op, rank)
        if result.error is not None:
            raise result.error
        return result.value if context.rank == rank else None

    def allreduce(self, sendobj: Any, op: MPI.Op | Combine = MPI.SUM) -> Any:
        """Like `mpi4py.MPI.Comm.allreduce`, combining in its order for any ``op``.

        Raises `GridcollError` if ``op`` or pickling failed on another rank.
        """
        context = self._context
        if context is None:
            return super().allreduce(sendobj, op)
        if context.settings.check:
            require_equal(context.comm, "allreduce", "allreduce")
        if _left_to_mpi(context, "allreduce"):
            return super().allreduce(sendobj, op)
        result = _reduce_for_everyone(context, sendobj, op)
        if result.error is not None:
            raise result.error
        return result.value


def _reduce_for_everyone(context: Context, sendobj: Any, op: Combine) -> _Partial:
    """Return the result, on every rank; short objects take one crossing of the grid."""
    hub = context.decisions.hub
    flow = _flow_of_heads(context, hub)
    shorts = None
    if flow is not None:
        ours, partial = _pack(_Partial(sendobj))
        if ours.kind == Kind.PICKLE and isinstance(op, MPI.Op) and op.is_predefined:
            ours = Pickled(ours.data, Kind.PREDEFINED_OP)
        shorts = gather_heads(context, flow, memoryview(ours.head())).short()
    if shorts is None:
        partial = _reduce(context, sendobj, op, hub)
    else:
        # Only MPI's predefined operations are certain to give equal results on all ranks.
        everywhere = all(kind == Kind.PREDEFINED_OP for kind, _ in shorts)
        if (everywhere or context.rank == hub) and partial.error is None:
            partial = _combine_all(op, shorts)
        if everywhere:
            return partial
    pickled = None
    if context.rank == hub:
        pickled, partial = _pack(partial)
    result = _unpack(broadcast_pickle(context, pickled, hub))
    # Our own error says more than its copy from the collector.
    return partial if partial.error is not None else result


def _flow_of_heads(context: Context, hub: int) -> Dataflow | None:
    """Return how to gather the heads of all objects on all ranks; None if a reduction is faster.

    A reduction goes to the hub and back, and each direction takes about as long as a broadcast.
    """
    choice = context.decisions.choice
    gathered_s = choice("allgather", HEADER_BYTES, 0, PLAIN).winner.predicted_s
    down_s = choice("bcast", BCAST_HEADER_BYTES, hub).winner.predicted_s
    if gathered_s is None or down_s is None or gathered_s > 2 * down_s:
        return None
    return heads_flow(context, "allgather", 0)


def _combine_all(op: Combine, objects: Sequence[tuple[int, bytes]]) -> _Partial:
    """Return all ranks' objects combined, or the first error among them."""
    for kind, data in objects:
        if kind == Kind.ERROR:
            return _Partial(error=GridcollError(data.decode()))
    load = MPI.pickle.loads

    def combined(block: Block) -> Any:
        if block.stop - block.start == 1:
            return load(objects[block.start][1])
        left, right = block.halves
        return op(combined(left), combined(right))

    return _attempt(lambda: combined(Block(0, len(objects))))


def _left_to_mpi(context: Context, collective: str) -> bool:
    """Whether mpi4py does the call; without ``rc.fast_reduce``, it combines in another order."""
    settings = context.settings
    if context.native_only or not mpi4py.rc.fast_reduce:
        return True
    if context.decisions.is_forced_native(collective):
        return True
    if context.model.n_clusters == 1 and settings.force != "grid":
        return True
    context.channel.open()
    return False


class _Partial(Struct, frozen=True):
    """A partial result, or an error."""

    value: Any = None
    error: Exception | None = None


def _attempt(make: Callable[[], Any]) -> _Partial:
    try:
        return _Partial(make())
    except Exception as failure:
        return _Partial(error=failure)


def _pack(partial: _Partial) -> tuple[Pickled, _Partial]:
    """Return the message for a partial result, and what it contains.

    The latter is an error if the value cannot be pickled.
    """
    pickled = _attempt(lambda: pickle_of(partial.value))
    error = partial.error or pickled.error
    if error is None:
        return pickled.value, partial
    text = str(error)
    if not isinstance(error, GridcollError):
        text = f"reduction of objects: another rank's {type(error).__name__}: {error}"
    return Pickled(text.encode(), Kind.ERROR), _Partial(error=error)


def _unpack(arrived: Arrived) -> _Partial:
    if arrived.kind == Kind.ERROR:
        return _Partial(error=GridcollError(bytes(arrived.data).decode()))
    return _attempt(arrived.load)


def _combine(op: Combine, left: _Partial, right: _Partial) -> _Partial:
    error = left.error or right.error
    if error is not None:
        return _Partial(error=error)
    return _attempt(lambda: op(left.value, right.value))


def _reduce(context: Context, sendobj: Any, op: Combine, collector: int) -> _Partial:
    """Return the result at ``collector``, and on other ranks the partial result. Collective.

    If an error occurs on a rank, all ranks still send and receive as planned.
    """
    blocks = whole_blocks(context.model.grid.cluster_of)
    ours = next(block for block in blocks if context.rank < block.stop)
    # Copy by pickling, as mpi4py does: an operation may modify its arguments.
    partial = _attempt(lambda: copy_object(sendobj))
    for child in _receive(context, children_in(ours, context.rank)):
        partial = _combine(op, partial, child)
    parent = parent_in(ours, context.rank)
    if parent >= 0 or context.rank != collector:
        partial = _send(context, collector if parent < 0 else parent, partial)
    if context.rank != collector:
        return partial
    leaders = [block.start for block in blocks if block.start != context.rank]
    parts = dict(zip(leaders, _receive(context, leaders), strict=True))
    parts.setdefault(context.rank, partial)
    by_block = {block: parts[block.start] for block in blocks}
    result = _bracket(op, Block(0, blocks[-1].stop), by_block)
    # Our own error says more than its copy from the collector.
    return partial if partial.error is not None else result


def _bracket(op: Combine, block: Block, parts: Mapping[Block, _Partial]) -> _Partial:
    if block in parts:
        return parts[block]
    left, right = (_bracket(op, half, parts) for half in block.halves)
    return _combine(op, left, right)


def _send(context: Context, peer: int, partial: _Partial) -> _Partial:
    """Send ``partial`` and return what was sent, an error if ``partial`` cannot be pickled."""
    pickled, partial = _pack(partial)
    head, rest = memoryview(pickled.head(REDUCE_HEADER_BYTES)), pickled.rest(REDUCE_HEADER_BYTES)
    for parts in ((head,), (rest,), pickled.parts):
        move_parts(context, {peer: parts}, {})
    return partial


def _receive(context: Context, peers: Sequence[int]) -> list[_Partial]:
    """Return what each of ``peers`` sends."""
    heads = {peer: memoryview(bytearray(REDUCE_HEADER_BYTES)) for peer in peers}
    move_parts(context, {}, {peer: (head,) for peer, head in heads.items()})
    rests = {peer: memoryview(bytearray(n_missing(head))) for peer, head in heads.items()}
    move_parts(context, {}, {peer: (rest,) for peer, rest in rests.items()})
    parted = {
        peer: assemble(head, rests[peer])
        for peer, head in heads.items()
        if kind_of(head) == Kind.INDEX
    }
    move_parts(context, {}, {peer: arrived.parts for peer, arrived in parted.items()})
    return [
        _unpack(parted.get(peer) or assemble(head, rests[peer])) for peer, head in heads.items()
    ]
