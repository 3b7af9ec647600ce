"""Allreduce around a ring of all ranks: least bytes through every network interface."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gridcoll.errors import PlanError
from gridcoll.plan.collectives.bcast import cut_segments
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send
from gridcoll.plan.plan import Plan, Program, Programs


def plan_ring(ring: Sequence[int], n_units: int, segment_units: int, label: str = "") -> Plan:
    """Allreduce of ``n_units`` elements around ``ring``, a block per rank.

    A block starts at its rank, is combined at every further one, and goes around once more; each
    of its segments moves on as soon as it is combined. Every rank gets what was combined once, so
    all have the same bits; the order of combination is the ring's, another one for each block.

    Parameters
    ----------
    ring : sequence of int
        All ranks, each sending to the next.
    n_units : int
    segment_units : int
        Longest segment.
    label : str
    """
    n = len(ring)
    if sorted(ring) != list(range(n)):
        raise PlanError(f"ring: must visit every rank once, got {list(ring)}")
    bounds = [block * n_units // n for block in range(n + 1)]
    # Tags number a channel's messages: those of the first turn, then those of the second.
    blocks: list[list[tuple[int, int, int]]] = []
    tag = 0
    for start, stop in pairwise(bounds):
        cuts = cut_segments(stop - start, segment_units)
        blocks.append([(tag + k, start + a, start + b) for k, (a, b) in enumerate(cuts)])
        tag += len(cuts)
    n_tags = tag

    def program_of(rank: int) -> Program:
        if n == 1:
            return (Copy(Chunk("input", 0, n_units), Chunk("output", 0, n_units)),)
        at = ring.index(rank)
        before, after = ring[at - 1], ring[(at + 1) % n]
        ops: list[Op] = []
        for step in range(n):
            for tag, start, stop in blocks[(at - step) % n]:
                ours, result = Chunk("input", start, stop), Chunk("output", start, stop)
                if step:
                    ops += [Recv(before, result, tag), Reduce(ours, result)]
                turn = n_tags if step == n - 1 else 0
                ops.append(Send(after, result if step else ours, tag + turn))
        for step in range(n - 1):
            for tag, start, stop in blocks[(at - step) % n]:
                result = Chunk("output", start, stop)
                ops.append(Recv(before, result, tag + n_tags))
                if step < n - 2:
                    ops.append(Send(after, result, tag + n_tags))
        return tuple(ops)

    return Plan("allreduce", label, n_units, -1, Programs(n, program_of))
