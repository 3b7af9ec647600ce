"""Buffers of one call that lie in parts: a block for every rank, each wherever its user has it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from gridcoll.engine.memory import Placement, address_of
from gridcoll.errors import PlanError
from gridcoll.plan.dataflow import Dataflow
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send


class PartedMemory:
    """An input and an output whose parts are numbered as if they stood one after another.

    Parameters
    ----------
    output, input : sequence of memoryview
        Contiguous, format ``B``. A chunk never reaches across two parts.
    """

    def __init__(
        self,
        output: Sequence[memoryview],
        input: Sequence[memoryview],  # noqa: A002 - the buffer's name in every plan
    ) -> None:
        self._parts = {"output": output, "input": input}
        self._starts = {
            name: list(accumulate(map(len, parts), initial=0))
            for name, parts in self._parts.items()
        }

    def view(self, chunk: Chunk) -> memoryview:
        """The bytes of ``chunk``, not copied. Raises `PlanError` for what is in no part."""
        parts, starts = self._parts.get(chunk.buffer, ()), self._starts.get(chunk.buffer, [0])
        # Of empty parts at one place, the last part that begins there may be the one with bytes.
        part = bisect_right(starts, chunk.start) - 1
        if not chunk.size:
            return memoryview(bytearray())
        if part >= len(parts) or chunk.stop > starts[part + 1]:
            raise PlanError(f"{chunk}: is not within one part of the call's {chunk.buffer} buffer")
        return parts[part][chunk.start - starts[part] : chunk.stop - starts[part]]

    def place(self, flow: Dataflow) -> Placement:
        """The chunks that ``flow`` reaches into, one by one."""
        chunks = (chunk for op in flow.program for chunk in _chunks(op))
        by_op = np.fromiter((address_of(self.view(chunk)) for chunk in chunks), np.int64)
        return Placement((0, 0, 0), by_op=by_op)

    def copy(self, source: Chunk, into: Chunk) -> None:
        self.view(into)[:] = self.view(source)

    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None:
        raise PlanError(f"reduce {source} into {into}: bytes have no operation")


def _chunks(op: Op) -> tuple[Chunk, Chunk]:
    """What ``op`` works on, and where that goes."""
    match op:
        case Send(chunk=chunk) | Recv(chunk=chunk):
            return chunk, chunk
        case Copy(source=source, into=into) | Reduce(source=source, into=into):
            return source, into
