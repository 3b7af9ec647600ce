"""Blocks of all ranks in one buffer: where each block is, and how runs of blocks move."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count
from typing import TypeAlias

from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import Program
from gridcoll.plan.trees import cut_segments

LARGEST_MESSAGE = 1 << 30
"""In units; some MPI libraries cannot count beyond twice that."""


@dataclass(frozen=True)
class Standing:
    """Blocks of ``ranks`` in that order, from unit ``first`` of ``buffer`` on."""

    buffer: str
    ranks: Sequence[int]
    sizes: Sequence[int]
    """``sizes[rank]``: units of that rank's block."""
    first: int = 0

    @cached_property
    def _starts(self) -> dict[int, int]:
        sizes = (self.sizes[rank] for rank in self.ranks)
        return dict(zip(self.ranks, accumulate(sizes, initial=self.first), strict=False))

    def block(self, rank: int) -> Chunk:
        """The block of ``rank``."""
        start = self._starts[rank]
        return Chunk(self.buffer, start, start + self.sizes[rank])

    def runs(self, ranks: Iterable[int]) -> list[Chunk]:
        """The blocks of ``ranks`` in that order, adjacent ones joined, without empty ones."""
        found: list[Chunk] = []
        for chunk in map(self.block, ranks):
            if not chunk.size:
                continue
            if found and found[-1].stop == chunk.start:
                found[-1] = Chunk(self.buffer, found[-1].start, chunk.stop)
            else:
                found.append(chunk)
        return found


def copy_runs(ranks: Sequence[int], source: Standing, into: Standing) -> list[Op]:
    """Copy the blocks of ``ranks`` from one place to another."""
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
    """Writes numbered sends to a peer and receives from it, in pieces of ``longest`` at most."""

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
"""By peer, the units of each part of what goes to it or comes from it."""


def exchange_parts(sends: Parts, receives: Parts) -> Program:
    """Program of a rank that exchanges parts of sizes known only to sender and receiver.

    Parts follow each other, to be sent in input and received in output, by peer in the order of the
    mappings. No message contains two parts, so that each may have its own memory.
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
    """``chunk`` in pieces no longer than ``longest`` units; none if it is empty."""
    return [
        Chunk(chunk.buffer, chunk.start + start, chunk.start + stop)
        for start, stop in cut_segments(chunk.size, longest)
    ]
