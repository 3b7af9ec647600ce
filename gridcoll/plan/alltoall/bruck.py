"""Bruck's all-to-all: about log2(P) messages per rank, each with half of all blocks."""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.exchange import blocks, copy_blocks, exchange_plan
from gridcoll.plan.alltoall.messages import IntArray, Messages, messages_of, rows_of
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm

MOST_RANKS_APART = 512
"""Over several clusters, where nearly every step crosses between them and waits for the one before:
to price it among more takes longer than the call."""


def bruck_steps(n_ranks: int) -> list[list[int]]:
    """``steps[k]``: the distances with bit ``k`` set, whose blocks move ``2^k`` ranks on in it."""
    n_steps = (n_ranks - 1).bit_length()
    return [[d for d in range(n_ranks) if d >> k & 1] for k in range(n_steps)]


def plan_bruck(n_ranks: int, n_units: int, label: str = "bruck") -> Plan:
    """Bruck et al. 1997: a block for the rank ``d`` further takes a hop for every bit of ``d``.

    Scratch is one send buffer that blocks stand in by distance, and half of one each to send from
    and to receive into.
    """
    steps = bruck_steps(n_ranks)
    widest = max((len(step) for step in steps), default=0)

    def program_of(rank: int) -> Program:
        turned = [((rank + d) % n_ranks, d) for d in range(n_ranks)]
        ops: list[Op] = copy_blocks("input", "scratch", turned, n_units)
        for k, step in enumerate(steps):
            out = blocks("scratch", n_ranks, n_units, len(step))
            come = blocks("scratch", n_ranks + widest, n_units, len(step))
            packing = [(d, n_ranks + at) for at, d in enumerate(step)]
            unpacking = [(n_ranks + widest + at, d) for at, d in enumerate(step)]
            ops += copy_blocks("scratch", "scratch", packing, n_units)
            ops.append(Send((rank + (1 << k)) % n_ranks, out, k))
            ops.append(Recv((rank - (1 << k)) % n_ranks, come, k))
            ops += copy_blocks("scratch", "scratch", unpacking, n_units)
        back = [(d, (rank - d) % n_ranks) for d in range(n_ranks)]
        return (*ops, *copy_blocks("scratch", "output", back, n_units))

    scratch = (n_ranks + 2 * widest,) * n_ranks
    return exchange_plan(label, n_units, Programs(n_ranks, program_of), scratch)


@lru_cache(maxsize=64)
def bruck_messages(n_ranks: int) -> Messages:
    """Of `plan_bruck`."""
    ranks, steps = np.arange(n_ranks), bruck_steps(n_ranks)
    rows, needs, before = list[FloatArray](), list[IntArray](), set[int]()
    for k, step in enumerate(steps):
        to = (ranks + (1 << k)) % n_ranks
        rows.append(rows_of(ranks, to, len(step)))
        # A block came with the step of its next lower bit; and steps leave in order.
        before |= {(d % (1 << k)).bit_length() - 1 for d in step} - {-1}
        for e in sorted(before):
            come = (ranks - (1 << e)) % n_ranks
            needs.append(np.stack([k * n_ranks + ranks, e * n_ranks + come], axis=1))
    return messages_of(rows, needs)


@algorithm("alltoall", "bruck", "tiny blocks among many ranks of one cluster", "Bruck et al. 1997")
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    n_ranks = model.grid.n_ranks
    if n_ranks == 1 or (model.n_clusters > 1 and n_ranks > MOST_RANKS_APART):
        return []
    label = f"{(n_ranks - 1).bit_length()} steps"
    predicted_s = price_messages_s(model, bruck_messages(n_ranks), n_bytes)
    return [Candidate.planned("bruck", label, predicted_s, partial(plan_bruck, n_ranks))]
