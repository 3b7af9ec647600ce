"""The direct exchange in which all ranks serve rank 0 first, then rank 1: for comparison.

Paper 003 (section 5, Figure 11) measures it beside the rotated one and finds no difference. It
concludes that time is lost in the network, not at a host to which all send at once.
"""

from __future__ import annotations

from functools import lru_cache, partial

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.alltoall.cost import of_grid, priced_s
from gridcoll.plan.alltoall.exchange import blocks, exchange_plan, keep_own
from gridcoll.plan.alltoall.messages import Messages, Weights, by_rank, messages_of, rows_to_each
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.grid import Grid


def plan_unrotated(n_ranks: int, n_units: int, label: str = "direct-unrotated") -> Plan:
    """Return a plan in which all ranks send all blocks at once, in the rank order of receivers."""

    def program_of(rank: int) -> Program:
        others = [other for other in range(n_ranks) if other != rank]
        ops: list[Op] = [Recv(other, blocks("output", other, n_units), 0) for other in others]
        ops += [Send(other, blocks("input", other, n_units), 0) for other in others]
        return (*ops, keep_own(rank, n_units))

    return exchange_plan(label, n_units, Programs(n_ranks, program_of))


@lru_cache(maxsize=64)
def unrotated_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Return the messages of `plan_unrotated`."""
    ranks = np.arange(grid.n_ranks)
    targets = np.array([np.delete(ranks, rank) for rank in ranks]).reshape(len(ranks), -1)
    return messages_of([rows_to_each(ranks, targets, by_rank(grid, weights))])


@algorithm(
    "alltoall",
    "direct-unrotated",
    "for comparison: all send to the same rank at a time",
    "003 section 5, direct exchange, Figure 11",
    max_clusters=0,
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    n_ranks = model.grid.n_ranks
    if n_ranks == 1:
        return []
    label = "every block to its receiver, in rank order"
    predicted_s = priced_s(model, of_grid(unrotated_messages), n_bytes)
    plan = partial(plan_unrotated, n_ranks)
    return [Candidate.planned("direct-unrotated", label, predicted_s, plan)]
