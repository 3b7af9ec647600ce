"""One rank's program as numbers in one array, for an engine that is not written in Python."""

from __future__ import annotations

from itertools import accumulate, chain
from typing import TYPE_CHECKING

import numpy as np

from gridcoll.plan.ops import BUFFERS, Chunk, Copy, Op, Recv, Reduce, Send

if TYPE_CHECKING:
    from gridcoll.plan.dataflow import Dataflow

SEND, RECV, REDUCE_BEFORE, REDUCE_AFTER, COPY = range(5)

_NOWHERE = Chunk("output", 0, 0)


def flat_program(flow: Dataflow) -> np.ndarray:
    """``flow`` as an array of int64.

    The numbers of ops, lanes, releases, receives and ops that are ready; then of each op its kind,
    peer, tag, lane, buffer, start, size, the buffer and the start of where it goes, what it waits
    for, when it is due, and where its releases begin; then all releases; where the receives of each
    lane begin, all receives; what is ready. Lists that "begin" somewhere end where the next begins.
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
