"""Blocks of all ranks in one buffer: where each block is, and ops that move runs of blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, count
from typing import TypeAlias

from msgspec import Struct

from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import Program
from gridcoll.plan.trees import cut_segments

LARGEST_MESSAGE = 1 << 30
"""Limit in units; some MPI libraries cannot count beyond twice that."""


class BlockLayout(Struct, frozen=True, dict=True):
    """The layout of a buffer: the blocks of ``ranks`` in that order, from unit ``first`` on."""

    buffer: str
    ranks: Sequence[int]
    sizes: Sequence[int]
    """``sizes[rank]``: units of the block of ``rank``."""
    first: int = 0

    @cached_property
    def _starts(self) -> dict[int, int]:
        sizes = (self.sizes[rank] for rank in self.ranks)
        return dict(zip(self.ranks, accumulate(sizes, initial=self.first), strict=False))

    def block(self, rank: int) -> Chunk:
        """Return the block of ``rank``."""
        start = self._starts[rank]
        return Chunk(self.buffer, start, start + self.sizes[rank])

    def runs(self, ranks: Iterable[int]) -> list[Chunk]:
        """Return the non-empty blocks of ``ranks`` in that order; adjacent ones are joined."""
        found: list[Chunk] = []
        for chunk in map(self.block, ranks):
            if not chunk.size:
                continue
            if found and found[-1].stop == chunk.start:
                found[-1] = Chunk(self.buffer, found[-1].start, chunk.stop)
            else:
                found.append(chunk)
        return found


def copy_runs(ranks: Sequence[int], source: BlockLayout, into: BlockLayout) -> list[Op]:
    """Return ops that copy the blocks of ``ranks`` from one layout to another."""
    ops: list[Op] = []
    for rank in ranks:
        here, there = source.block(rank), into.block(rank)
        last = ops[-1] if ops else None
        if (
            isinstance(last, Copy)
            and (last.source.stop, last.into.stop) == (here.start, there.start)
        ):  # fmt: skip
            ops[-1] = Copy(
                Chunk(here.buffer, last.source.start, here.stop),
                Chunk(there.buffer, last.into.start, there.stop),
            )
        elif here.size:
            ops.append(Copy(here, there))
    return ops


class Messages:
    """Makes numbered sends to a peer and receives from it, in pieces of up to ``longest`` units."""

    def __init__(self, peer: int, longest: int = LARGEST_MESSAGE) -> None:
        self._peer, self._longest = peer, longest
        self._sent, self._received = count(), count()

    def send(self, chunk: Chunk) -> list[Op]:
        pieces = cut_chunk(chunk, self._longest)
        return [Send(self._peer, piece, next(self._sent)) for piece in pieces]

    def receive(self, chunk: Chunk) -> list[Op]:
        pieces = cut_chunk(chunk, self._longest)
        return [Recv(self._peer, piece, next(self._received)) for piece in pieces]


Parts: TypeAlias = Mapping[int, Sequence[int]]
"""For each peer, the units of each part that is sent to it or received from it."""


def exchange_parts(sends: Parts, receives: Parts) -> Program:
    """Return the program of a rank that exchanges parts whose sizes only sender and receiver know.

    Parts to be sent follow each other in the input, received ones in the output, by peer in the
    order of the mappings. No message contains two parts, so each part may be in its own memory.
    """
    ops: list[Op] = []
    at = 0
    for peer, sizes in receives.items():
        messages = Messages(peer)
        for size in sizes:
            ops += messages.receive(Chunk("output", at, at := at + size))
    at = 0
    for peer, sizes in sends.items():
        messages = Messages(peer)
        for size in sizes:
            ops += messages.send(Chunk("input", at, at := at + size))
    return tuple(ops)


def cut_chunk(chunk: Chunk, longest: int = LARGEST_MESSAGE) -> list[Chunk]:
    """Return pieces of ``chunk`` of at most ``longest`` units each; none if it is empty."""
    return [
        Chunk(chunk.buffer, chunk.start + start, chunk.start + stop)
        for start, stop in cut_segments(chunk.size, longest)
    ]
