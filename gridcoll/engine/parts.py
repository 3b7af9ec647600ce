"""Buffers of one call that lie in parts, each wherever its owner has it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from gridcoll.engine.memory import Placement, address_of
from gridcoll.errors import PlanError
from gridcoll.plan.dataflow import Dataflow
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a chunk is that reaches across parts: memory in several places, one message."""

    views: tuple[memoryview, ...]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.views))


@dataclass(frozen=True, slots=True)
class Typed:
    """Memory as a datatype describes it: a message whose bytes MPI gathers and spreads itself.

    ``spec`` is buffer, count and datatype, as mpi4py takes them; ``nbytes`` is what crosses a wire.
    """

    spec: tuple[Any, int, Any]
    nbytes: int

    def __len__(self) -> int:
        return self.nbytes


Part = memoryview | Typed


class PartedMemory:
    """Buffers whose parts are numbered as if they stood one after another.

    Parameters
    ----------
    output, input, scratch : sequence of Part
        Views are contiguous, format ``B``. A typed part is taken as a whole, by one message.
        ``input`` is never written.
    """

    def __init__(
        self,
        output: Sequence[Part],
        input: Sequence[Part],  # noqa: A002 - the buffer's name in every plan
        scratch: Sequence[Part] = (),
    ) -> None:
        self._parts = {"output": output, "input": input, "scratch": scratch}
        self._starts = {
            name: list(accumulate(map(len, parts), initial=0))
            for name, parts in self._parts.items()
        }

    def view(self, chunk: Chunk) -> memoryview | Pieces | Typed:
        """The bytes of ``chunk``, not copied. Raises `PlanError` for what is in no part."""
        pieces = tuple(self._pieces(chunk))
        if len(pieces) == 1:
            return pieces[0]
        return Pieces(_views(pieces, chunk)) if pieces else memoryview(bytearray())

    def _pieces(self, chunk: Chunk) -> Iterator[Part]:
        parts, starts = self._parts[chunk.buffer], self._starts[chunk.buffer]
        if chunk.stop > starts[-1]:
            raise PlanError(f"{chunk}: the call's {chunk.buffer} buffer is {starts[-1]} bytes")
        at = chunk.start
        while at < chunk.stop:
            # Of empty parts at one place, the last part that begins there is the one with bytes.
            part = bisect_right(starts, at) - 1
            stop = min(chunk.stop, starts[part + 1])
            yield _cut(parts[part], at - starts[part], stop - starts[part], chunk)
            at = stop

    def place(self, flow: Dataflow) -> Placement | None:
        """The chunks that ``flow`` reaches into, one by one; None if one reaches across parts."""
        views = [self.view(chunk) for op in flow.program for chunk in _chunks(op)]
        addresses = [address_of(view) for view in views if isinstance(view, memoryview)]
        if len(addresses) < len(views):
            return None
        return Placement((0, 0, 0), by_op=np.array(addresses, np.int64))

    def copy(self, source: Chunk, into: Chunk) -> None:
        at = into.start
        for piece in _views(self._pieces(source), source):
            done = 0
            for place in _views(self._pieces(Chunk(into.buffer, at, at + len(piece))), into):
                place[:] = piece[done : done + len(place)]
                done += len(place)
            at += done

    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None:
        raise PlanError(f"reduce {source} into {into}: bytes have no operation")


def _cut(part: Part, start: int, stop: int, chunk: Chunk) -> Part:
    if isinstance(part, memoryview):
        return part[start:stop]
    if start or stop < len(part):
        raise PlanError(f"{chunk}: no message of its own for {part.spec[2]}")
    return part


def _views(parts: Iterable[Part], chunk: Chunk) -> tuple[memoryview, ...]:
    views: list[memoryview] = []
    for part in parts:
        if not isinstance(part, memoryview):
            raise PlanError(f"{chunk}: what a datatype describes has no bytes in a row")
        views.append(part)
    return tuple(views)


def _chunks(op: Op) -> tuple[Chunk, Chunk]:
    """What ``op`` works on, and where that goes."""
    match op:
        case Send(chunk=chunk) | Recv(chunk=chunk):
            return chunk, chunk
        case Copy(source=source, into=into) | Reduce(source=source, into=into):
            return source, into
