"""Reductions of Python objects: one crossing between clusters, combined in mpi4py's own order.

Parts of the bracket that lie in one cluster are combined inside it, as a tree; what they come to
goes straight to where all is combined. Nobody knows how long a partial result is before it is
there, so that every message has a head that says it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import mpi4py
from mpi4py import MPI

from gridcoll.comm.agreement import require_equal
from gridcoll.comm.context import Context
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.broadcast import broadcast_bytes
from gridcoll.engine.memory import ByteMemory
from gridcoll.errors import GridcollError
from gridcoll.plan import Chunk, Op, Recv, Send, dataflow
from gridcoll.plan.choose import NATIVE
from gridcoll.plan.collectives.allreduce_candidates import find_hub
from gridcoll.plan.collectives.bracket import Block, children_in, parent_in, whole_blocks

Combine: TypeAlias = Callable[[Any, Any], Any]

HEAD_BYTES = 1024
"""First message: the length of a partial result and as much of it as fits."""

_LENGTH = struct.Struct("<q")
_ROOM = HEAD_BYTES - _LENGTH.size
_GOOD, _FAILED = b"\0", b"\1"
"""First byte of what is sent: a pickle follows, or the text of an error."""


class ObjectReductionMethods(GridMethods):
    """`reduce` and `allreduce`. `scan` and `exscan` are MPI's own."""

    def reduce(self, sendobj: Any, op: MPI.Op | Combine = MPI.SUM, root: int = 0) -> Any | None:
        """As `mpi4py.MPI.Comm.reduce`, in its order for any ``op``.

        Raises `GridcollError` where ``op`` or pickling failed on another rank.
        """
        context = self._context
        if context is None or _left_to_mpi(context, "reduce"):
            return super().reduce(sendobj, op, root)
        rank = context.as_rank(root)
        if rank is None:
            return super().reduce(sendobj, op, root)
        if context.settings.check:
            require_equal(context.private, "reduce", f"reduce root={rank}")
        result = _reduce(context, sendobj, op, rank)
        if result.error is not None:
            raise result.error
        return result.value if context.rank == rank else None

    def allreduce(self, sendobj: Any, op: MPI.Op | Combine = MPI.SUM) -> Any:
        """As `mpi4py.MPI.Comm.allreduce`, in its order for any ``op``.

        Raises `GridcollError` where ``op`` or pickling failed on another rank.
        """
        context = self._context
        if context is None or _left_to_mpi(context, "allreduce"):
            return super().allreduce(sendobj, op)
        if context.settings.check:
            require_equal(context.private, "allreduce", "allreduce")
        grid = context.model.grid
        hub = grid.clusters[find_hub(context.model)].coordinator
        partial = _reduce(context, sendobj, op, hub)
        data = b""
        if context.rank == hub:
            data, partial = _pack(partial)
        everybodys = _unpack(broadcast_bytes(context, data, hub))
        error = partial.error or everybodys.error
        if error is not None:
            raise error
        return everybodys.value


def _left_to_mpi(context: Context, collective: str) -> bool:
    """Whether to make no plan; without ``rc.fast_reduce``, mpi4py's order is another one."""
    settings = context.settings
    if context.native_only or not mpi4py.rc.fast_reduce:
        return True
    if NATIVE in (settings.force, settings.algorithms.get(collective)):
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


def _pack(partial: _Partial) -> tuple[bytes, _Partial]:
    """What is sent, and what it then stands for: not everything can be pickled."""
    pickled = _attempt(lambda: MPI.pickle.dumps(partial.value))
    error = partial.error or pickled.error
    if error is None:
        return _GOOD + pickled.value, partial
    text = str(error)
    if not isinstance(error, GridcollError):
        text = f"reduction of objects: another rank's {type(error).__name__}: {error}"
    return _FAILED + text.encode(), _Partial(error=error)


def _unpack(data: bytearray) -> _Partial:
    if data[:1] == _FAILED:
        return _Partial(error=GridcollError(data[1:].decode()))
    return _attempt(lambda: MPI.pickle.loads(data[1:]))


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
    partial = _attempt(lambda: MPI.pickle.loads(MPI.pickle.dumps(sendobj)))
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
    data, partial = _pack(partial)
    message = (_LENGTH.pack(len(data)) + data).ljust(HEAD_BYTES, b"\0")
    ops: list[Op] = [Send(peer, Chunk("input", 0, HEAD_BYTES), 0)]
    if len(message) > HEAD_BYTES:
        ops.append(Send(peer, Chunk("input", HEAD_BYTES, len(message)), 1))
    context.run(dataflow(tuple(ops)), ByteMemory(input=memoryview(message)))
    return partial


def _receive(context: Context, peers: Sequence[int]) -> list[_Partial]:
    """What every one of ``peers`` sends."""
    heads = _receive_bytes(context, peers, [HEAD_BYTES] * len(peers), 0)
    lengths = [_LENGTH.unpack_from(head)[0] for head in heads]
    rests = _receive_bytes(context, peers, [max(length - _ROOM, 0) for length in lengths], 1)
    return [
        _unpack(bytearray(b"".join((head[_LENGTH.size :][:length], rest))))
        for head, length, rest in zip(heads, lengths, rests, strict=True)
    ]


def _receive_bytes(
    context: Context, peers: Sequence[int], lengths: Sequence[int], tag: int
) -> list[memoryview]:
    """So many bytes from each of ``peers``, all at once; nothing for none."""
    ends = list(accumulate(lengths, initial=0))
    data = memoryview(bytearray(ends[-1]))
    ops = [
        Recv(peer, Chunk("output", start, stop), tag)
        for peer, (start, stop) in zip(peers, pairwise(ends), strict=True)
        if stop > start
    ]
    context.run(dataflow(tuple(ops)), ByteMemory(data))
    return [data[start:stop] for start, stop in pairwise(ends)]
