"""Dependencies between the ops of a program, and the program as one array for the C engine."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Generic, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.plan.ops import BUFFERS, Chunk, Copy, Op, Recv, Reduce, Send, reads, writes
from gridcoll.plan.plan import Program

V = TypeVar("V")


class IntervalMap(Generic[V]):
    """Values over ``[0, infinity)``, stored as runs; at first, one run of ``initial``.

    ``cut(value, offset)`` gives the value of the second part when a run is cut ``offset`` units
    after its start; by default, both parts have the same value.
    """

    def __init__(self, initial: V, cut: Callable[[V, int], V] = lambda value, _: value) -> None:
        self._starts = [0]
        self._values = [initial]
        self._cut = cut

    def _split(self, at: int) -> int:
        """Return the index of the run that starts at ``at``; cut a run there if necessary."""
        index = bisect_left(self._starts, at)
        if index < len(self._starts) and self._starts[index] == at:
            return index
        self._starts.insert(index, at)
        run = index - 1
        self._values.insert(index, self._cut(self._values[run], at - self._starts[run]))
        return index

    def get(self, start: int, stop: int) -> list[tuple[int, V]]:
        """Return ``(length, value)`` of the runs that make up ``[start, stop)``, in order."""
        if start >= stop:
            return []
        runs = []
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            end = self._starts[index + 1] if index + 1 < len(self._starts) else stop
            end = min(end, stop)
            value = self._values[index]
            offset = start - self._starts[index]
            runs.append((end - start, self._cut(value, offset) if offset else value))
            start = end
            index += 1
        return runs

    def set(self, start: int, runs: list[tuple[int, V]]) -> None:
        """Overwrite the values from ``start`` on by ``(length, value)`` runs."""
        stop = start + sum(length for length, _ in runs)
        if start == stop:
            return
        first, last = self._split(start), self._split(stop)
        starts, at = [], start
        for length, _ in runs:
            starts.append(at)
            at += length
        self._starts[first:last] = starts
        self._values[first:last] = [value for _, value in runs]

    def update(self, start: int, stop: int, change: Callable[[V], V]) -> None:
        """Replace each value in ``[start, stop)`` by ``change(value)``."""
        if start >= stop:
            return
        first, last = self._split(start), self._split(stop)
        self._values[first:last] = [change(value) for value in self._values[first:last]]


def without_data(op: Send) -> Send:
    """Return the same message without its data."""
    return replace(op, chunk=Chunk(op.chunk.buffer, op.chunk.start, op.chunk.start))


def refused(flow: Dataflow) -> Dataflow:
    """Return ``flow`` for a rank that has no data to send; ranks that need the data fail."""
    ops = (without_data(op) if isinstance(op, Send) else op for op in flow.program)
    return Dataflow(tuple(ops), flow.n_waits, flow.releases)


class Dataflow(Struct, frozen=True, dict=True):
    """Dependencies among the ops of one rank.

    ``n_waits[i]`` is the number of ops that must be complete before op ``i`` may start;
    ``releases[i]`` are the ops that wait for op ``i``.
    """

    program: Program
    n_waits: tuple[int, ...]
    releases: tuple[tuple[int, ...], ...]

    @cached_property
    def scratch_units(self) -> int:
        """Units of scratch that the program uses."""
        return self.extent["scratch"]

    @cached_property
    def needs(self) -> tuple[tuple[int, ...], ...]:
        """For each op, the ops that it waits for; the inverse of ``releases``."""
        found: list[list[int]] = [[] for _ in self.program]
        for index, later in enumerate(self.releases):
            for waiting in later:
                found[waiting].append(index)
        return tuple(map(tuple, found))

    @cached_property
    def lane_of(self) -> tuple[int, ...]:
        """For each op, the lane of the transfer; -1 for local ops.

        Receives from one peer in one stream are a lane, and so are sends to one peer. Transfers of
        a lane end in program order.
        """
        lanes: dict[tuple[str, int, int], int] = {}
        return tuple(
            -1 if key is None else lanes.setdefault(key, len(lanes))
            for key in map(_lane_key, self.program)
        )

    @cached_property
    def tags(self) -> tuple[int, ...]:
        """For each op, the MPI tag of its message; 0 for local ops.

        Messages to one peer are numbered in the order of their tags in the plan, and the peer
        numbers them in the same way. A plan of many segments and ranks may have more tags than MPI
        has, and two messages with the same tag could be confused.
        """
        by_peer: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for index, op in enumerate(self.program):
            if isinstance(op, Send | Recv):
                direction = "send" if isinstance(op, Send) else "recv"
                by_peer.setdefault((direction, op.peer), []).append((op.tag, index))
        found = [0] * len(self.program)
        for messages in by_peer.values():
            for number, (_, index) in enumerate(sorted(messages)):
                found[index] = number
        return tuple(found)

    @cached_property
    def receives(self) -> tuple[tuple[int, ...], ...]:
        """For each lane, its receives in program order; empty for lanes of sends."""
        lanes: list[list[int]] = [[] for _ in range(max(self.lane_of, default=-1) + 1)]
        for index, (op, lane) in enumerate(zip(self.program, self.lane_of, strict=True)):
            if isinstance(op, Recv):
                lanes[lane].append(index)
        return tuple(tuple(lane) for lane in lanes)

    @cached_property
    def ready(self) -> tuple[int, ...]:
        """The sends and local ops that wait for nothing, in program order."""
        return tuple(
            index
            for index, op in enumerate(self.program)
            if not self.n_waits[index] and not isinstance(op, Recv)
        )

    @cached_property
    def extent(self) -> dict[str, int]:
        """How many units of each buffer the program uses."""
        extent = dict.fromkeys(BUFFERS, 0)
        for chunk in self._chunks:
            extent[chunk.buffer] = max(extent[chunk.buffer], chunk.stop)
        return extent

    @cached_property
    def longest(self) -> int:
        """Units of the longest chunk."""
        return max((chunk.size for chunk in self._chunks), default=0)

    @cached_property
    def _chunks(self) -> set[Chunk]:
        return {chunk for op in self.program for chunk in (*reads(op), *writes(op))}

    @cached_property
    def reduces(self) -> bool:
        """Whether anything is combined."""
        return any(isinstance(op, Reduce) for op in self.program)

    @cached_property
    def flat(self) -> np.ndarray:
        """The program as an array of int64; see `flat_program`."""
        return flat_program(self)


def _lane_key(op: Op) -> tuple[str, int, int] | None:
    if isinstance(op, Recv):
        return "recv", op.peer, op.stream
    return ("send", op.peer, 0) if isinstance(op, Send) else None


class _Use(Struct, frozen=True):
    """The op that last wrote a run of units, and all ops that have read it since."""

    writer: int = -1
    readers: frozenset[int] = frozenset()


def dataflow(program: Program) -> Dataflow:
    """Return the dependencies of ``program``.

    A read waits for the last write; a write waits for the last write and all reads since. Two ops
    that touch no common unit may run in any order, whatever their positions in the program: segment
    *k* can leave over one link while *k+1* arrives over another.
    """
    touched = [(reads(op), writes(op)) for op in program]
    disjoint = _disjoint_buffers(chunk for both in touched for part in both for chunk in part)
    uses: dict[str, IntervalMap[_Use]] = {}
    blocks: dict[Chunk, tuple[int, list[int]]] = {}
    releases: list[list[int]] = [[] for _ in program]
    n_waits = []
    for index, (read, written) in enumerate(touched):
        needed: set[int] = set()
        for chunk in read:
            if chunk.buffer not in disjoint:
                needed |= _read(index, chunk, uses)
            elif chunk.start < chunk.stop:
                writer, readers = blocks.setdefault(chunk, (-1, []))
                needed.add(writer)
                readers.append(index)
        for chunk in written:
            if chunk.buffer not in disjoint:
                needed |= _write(index, chunk, uses)
            elif chunk.start < chunk.stop:
                writer, readers = blocks.get(chunk, (-1, []))
                needed.add(writer)
                needed.update(readers)
                blocks[chunk] = index, []
        needed -= {-1, index}
        n_waits.append(len(needed))
        for earlier in needed:
            releases[earlier].append(index)
    return Dataflow(program, tuple(n_waits), tuple(map(tuple, releases)))


def _disjoint_buffers(chunks: Iterable[Chunk]) -> set[str]:
    """Return the buffers in which any two chunks are equal or have no unit in common.

    Most plans have only such buffers. A chunk then needs one look-up instead of a search for runs.
    """
    ordered = sorted({chunk for chunk in chunks if chunk.start < chunk.stop})
    overlapping = {
        before.buffer
        for before, after in pairwise(ordered)
        if before.buffer == after.buffer and after.start < before.stop
    }
    return set(BUFFERS) - overlapping


def _read(index: int, chunk: Chunk, uses: dict[str, IntervalMap[_Use]]) -> set[int]:
    """Record that op ``index`` reads ``chunk``; return the ops it must wait for."""
    use = uses.setdefault(chunk.buffer, IntervalMap(_Use()))
    needed = {last.writer for _, last in use.get(chunk.start, chunk.stop)}
    use.update(chunk.start, chunk.stop, lambda last: _Use(last.writer, last.readers | {index}))
    return needed


def _write(index: int, chunk: Chunk, uses: dict[str, IntervalMap[_Use]]) -> set[int]:
    """Record that op ``index`` overwrites ``chunk``; return the ops it must wait for."""
    use = uses.setdefault(chunk.buffer, IntervalMap(_Use()))
    needed: set[int] = set()
    for _, last in use.get(chunk.start, chunk.stop):
        needed.add(last.writer)
        needed |= last.readers
    use.set(chunk.start, [(chunk.size, _Use(index))])
    return needed


SEND, RECV, REDUCE_BEFORE, REDUCE_AFTER, COPY = range(5)

_NOWHERE = Chunk("output", 0, 0)


def flat_program(flow: Dataflow) -> np.ndarray:
    """Return ``flow`` as an array of int64.

    First the counts of ops, lanes, releases, receives and ready ops. Then for each op: kind, peer,
    tag, lane, buffer, start, size, buffer and start of its destination, number of ops it waits for,
    due time, index of its first release. Then all releases; for each lane the index of its first
    receive; all receives; the ready ops. A list of an op or a lane ends where the next one begins.
    """
    first_release = list(accumulate(map(len, flow.releases), initial=0))
    first_receive = list(accumulate(map(len, flow.receives), initial=0))
    columns = zip(flow.program, flow.tags, flow.lane_of, flow.n_waits, first_release, strict=False)
    ops = (_row(*columns_of_op) for columns_of_op in columns)
    end = (0,) * 11 + (first_release[-1],)
    counts = (
        *(len(flow.program), len(flow.receives), first_release[-1]),
        *(first_receive[-1], len(flow.ready)),
    )
    numbers = chain(
        counts,
        chain.from_iterable(ops),
        end,
        chain.from_iterable(flow.releases),
        first_receive,
        chain.from_iterable(flow.receives),
        flow.ready,
    )
    return np.fromiter(numbers, np.int64)


def _row(op: Op, tag: int, lane: int, n_waits: int, first_release: int) -> tuple[int, ...]:
    peer = due_us = 0
    into = _NOWHERE
    match op:
        case Send():
            kind, peer, source, due_us = SEND, op.peer, op.chunk, op.due_us
        case Recv():
            kind, peer, source = RECV, op.peer, op.chunk
        case Reduce():
            kind = REDUCE_BEFORE if op.source_first else REDUCE_AFTER
            source, into = op.source, op.into
        case Copy():
            kind, source, into = COPY, op.source, op.into
    return (
        *(kind, peer, tag, lane),
        *(BUFFERS.index(source.buffer), source.start, source.size),
        *(BUFFERS.index(into.buffer), into.start, n_waits, due_us, first_release),
    )
