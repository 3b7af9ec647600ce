"""Reductions of Python objects: one crossing between clusters, combined in mpi4py's own order.

Parts of the bracket that lie in one cluster are combined inside it, as a tree; what they come to
goes straight to where all is combined. Nobody knows how long a partial result is before it is
there, so that every message has a head that says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import mpi4py
from mpi4py import MPI

from gridcoll.comm.context import Context
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.broadcast import broadcast_pickle
from gridcoll.comm.methods.moving import move_parts
from gridcoll.comm.pickles import (
    Arrived,
    Kind,
    Pickled,
    copy_of,
    kind_of,
    n_missing,
    pickle_of,
    put_together,
)
from gridcoll.engine.agreement import require_equal
from gridcoll.errors import GridcollError
from gridcoll.plan.bracket import Block, children_in, parent_in, whole_blocks
from gridcoll.schedule.paths import find_hub

Combine: TypeAlias = Callable[[Any, Any], Any]

HEAD_BYTES = 1024
"""First message: the length of a partial result and as much of it as fits."""


class ObjectReductionMethods(GridMethods):
    """`reduce` and `allreduce`. `scan` and `exscan` are MPI's own."""

    def reduce(self, sendobj: Any, op: MPI.Op | Combine = MPI.SUM, root: int = 0) -> Any | None:
        """As `mpi4py.MPI.Comm.reduce`, in its order for any ``op``.

        Raises `GridcollError` where ``op`` or pickling failed on another rank.
        """
        context = self._context
        if context is None or (rank := context.as_rank(root)) is None:
            return super().reduce(sendobj, op, root)
        if context.settings.check:
            require_equal(context.private, "reduce", f"reduce root={rank}")
        if _left_to_mpi(context, "reduce"):
            return super().reduce(sendobj, op, root)
        result = _reduce(context, sendobj, op, rank)
        if result.error is not None:
            raise result.error
        return result.value if context.rank == rank else None

    def allreduce(self, sendobj: Any, op: MPI.Op | Combine = MPI.SUM) -> Any:
        """As `mpi4py.MPI.Comm.allreduce`, in its order for any ``op``.

        Raises `GridcollError` where ``op`` or pickling failed on another rank.
        """
        context = self._context
        if context is None:
            return super().allreduce(sendobj, op)
        if context.settings.check:
            require_equal(context.private, "allreduce", "allreduce")
        if _left_to_mpi(context, "allreduce"):
            return super().allreduce(sendobj, op)
        grid = context.model.grid
        hub = grid.clusters[find_hub(context.model.latency_s)].coordinator
        partial = _reduce(context, sendobj, op, hub)
        pickled = None
        if context.rank == hub:
            pickled, partial = _pack(partial)
        everybodys = _unpack(broadcast_pickle(context, pickled, hub))
        error = partial.error or everybodys.error
        if error is not None:
            raise error
        return everybodys.value


def _left_to_mpi(context: Context, collective: str) -> bool:
    """Whether to make no plan; without ``rc.fast_reduce``, mpi4py's order is another one."""
    settings = context.settings
    if context.native_only or not mpi4py.rc.fast_reduce:
        return True
    if context.decisions.asks_for_native(collective):
        return True
    return context.model.n_clusters == 1 and settings.force != "grid"


@dataclass(frozen=True)
class _Partial:
    """A partial result, or why there is none."""

    value: Any = None
    error: Exception | None = None


def _attempt(make: Callable[[], Any]) -> _Partial:
    try:
        return _Partial(make())
    except Exception as failure:
        return _Partial(error=failure)


def _pack(partial: _Partial) -> tuple[Pickled, _Partial]:
    """What is sent, and what it then stands for: not everything can be pickled."""
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
    """The result at ``collector``; elsewhere what this rank made of its part.

    Collective. After an error on some rank all still send and receive what they would have.
    """
    blocks = whole_blocks(context.model.grid.cluster_of)
    ours = next(block for block in blocks if context.rank < block.stop)
    # Through a pickle, as in mpi4py: an operation may change what it is given.
    partial = _attempt(lambda: copy_of(sendobj))
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
    # Our own error says more than what came back of it.
    return partial if partial.error is not None else result


def _bracket(op: Combine, block: Block, parts: Mapping[Block, _Partial]) -> _Partial:
    if block in parts:
        return parts[block]
    left, right = (_bracket(op, half, parts) for half in block.halves)
    return _combine(op, left, right)


def _send(context: Context, peer: int, partial: _Partial) -> _Partial:
    """Send ``partial``; returns what it is taken for."""
    pickled, partial = _pack(partial)
    head, rest = memoryview(pickled.head(HEAD_BYTES)), pickled.rest(HEAD_BYTES)
    for parts in ((head,), (rest,), pickled.parts):
        move_parts(context, {peer: parts}, {})
    return partial


def _receive(context: Context, peers: Sequence[int]) -> list[_Partial]:
    """What every one of ``peers`` sends."""
    heads = {peer: memoryview(bytearray(HEAD_BYTES)) for peer in peers}
    move_parts(context, {}, {peer: (head,) for peer, head in heads.items()})
    rests = {peer: memoryview(bytearray(n_missing(head))) for peer, head in heads.items()}
    move_parts(context, {}, {peer: (rest,) for peer, rest in rests.items()})
    parted = {
        peer: put_together(head, rests[peer])
        for peer, head in heads.items()
        if kind_of(head) == Kind.INDEX
    }
    move_parts(context, {}, {peer: arrived.parts for peer, arrived in parted.items()})
    return [
        _unpack(parted.get(peer) or put_together(head, rests[peer])) for peer, head in heads.items()
    ]
