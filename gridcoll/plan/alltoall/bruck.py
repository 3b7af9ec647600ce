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
"""Limit of ranks over several clusters, where nearly every step crosses between clusters and waits
for the one before: with more ranks, pricing takes longer than the call."""


def bruck_steps(n_ranks: int) -> list[list[int]]:
    """Return the distances whose blocks move ``2^k`` ranks on in step ``k``: bit ``k`` is set."""
    n_steps = (n_ranks - 1).bit_length()
    return [[d for d in range(n_ranks) if d >> k & 1] for k in range(n_steps)]


def plan_bruck(n_ranks: int, n_units: int, label: str = "bruck") -> Plan:
    """Return the plan of Bruck et al. 1997.

    A block for the rank at distance ``d`` takes a hop for every bit set in ``d``. Scratch has room
    for one send buffer with the blocks by distance, and half a buffer each to send from and to
    receive into.
    """
    steps = bruck_steps(n_ranks)
    most_moved = max((len(step) for step in steps), default=0)

    def program_of(rank: int) -> Program:
        rotation = [((rank + d) % n_ranks, d) for d in range(n_ranks)]
        ops: list[Op] = copy_blocks("input", "scratch", rotation, n_units)
        for k, step in enumerate(steps):
            send_chunk = blocks("scratch", n_ranks, n_units, len(step))
            recv_chunk = blocks("scratch", n_ranks + most_moved, n_units, len(step))
            packing = [(d, n_ranks + at) for at, d in enumerate(step)]
            unpacking = [(n_ranks + most_moved + at, d) for at, d in enumerate(step)]
            ops += copy_blocks("scratch", "scratch", packing, n_units)
            ops.append(Send((rank + (1 << k)) % n_ranks, send_chunk, k))
            ops.append(Recv((rank - (1 << k)) % n_ranks, recv_chunk, k))
            ops += copy_blocks("scratch", "scratch", unpacking, n_units)
        back = [(d, (rank - d) % n_ranks) for d in range(n_ranks)]
        return (*ops, *copy_blocks("scratch", "output", back, n_units))

    scratch = (n_ranks + 2 * most_moved,) * n_ranks
    return exchange_plan(label, n_units, Programs(n_ranks, program_of), scratch)


@lru_cache(maxsize=64)
def bruck_messages(n_ranks: int) -> Messages:
    """Return the messages of `plan_bruck`."""
    ranks, steps = np.arange(n_ranks), bruck_steps(n_ranks)
    rows, needs, needed_steps = list[FloatArray](), list[IntArray](), set[int]()
    for k, step in enumerate(steps):
        receivers = (ranks + (1 << k)) % n_ranks
        rows.append(rows_of(ranks, receivers, len(step)))
        # A block came with the step of its next lower bit. Steps leave in order.
        needed_steps |= {(d % (1 << k)).bit_length() - 1 for d in step} - {-1}
        for e in sorted(needed_steps):
            senders = (ranks - (1 << e)) % n_ranks
            needs.append(np.stack([k * n_ranks + ranks, e * n_ranks + senders], axis=1))
    return messages_of(rows, needs)


@algorithm("alltoall", "bruck", "tiny blocks among many ranks of one cluster", "Bruck et al. 1997")
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    n_ranks = model.grid.n_ranks
    if n_ranks == 1 or (model.n_clusters > 1 and n_ranks > MOST_RANKS_APART):
        return []
    label = f"{(n_ranks - 1).bit_length()} steps"
    predicted_s = price_messages_s(model, bruck_messages(n_ranks), n_bytes)
    return [Candidate.planned("bruck", label, predicted_s, partial(plan_bruck, n_ranks))]
