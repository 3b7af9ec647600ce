"""A direct exchange for links between clusters that are thinner than interfaces: by turns.

With all blocks under way at once, dozens of flows fill the queue before such a link, and segments
are lost. In turn, a link carries a block at a time, and all links carry at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.choose import Algorithm, Candidate, register
from gridcoll.plan.collectives.alltoall import blocks, exchange_plan, keep_own
from gridcoll.plan.collectives.alltoall_messages import paced_messages
from gridcoll.plan.collectives.alltoall_price import price_messages_s
from gridcoll.plan.collectives.pace import PACE, PACED_BYTES
from gridcoll.plan.ops import Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs

MOST_RANKS = 128
"""Every rank has a time for every other, and all of them are priced."""


@dataclass(frozen=True)
class Turn:
    """When a rank's block for ``target`` may leave, in seconds after the start."""

    target: int
    due_s: float


def turns_of(model: GridModel, n_bytes: int) -> tuple[tuple[Turn, ...], ...]:
    """By rank, its blocks of ``n_bytes`` for all others in the order in which they leave.

    The ``n`` ranks of a cluster take turns at each of its links: one has every ``n``-th slot, as
    long as the link takes for a block. What stays inside a cluster goes in between.
    """
    grid, rates = model.grid, model.link_bytes_per_s
    found = []
    for rank in range(grid.n_ranks):
        home = grid.cluster_of[rank]
        place, n_home = grid.clusters[home].places[rank], len(grid.clusters[home])
        turns = []
        for c, cluster in enumerate(grid.clusters):
            inside = c == home
            rate = np.delete(rates[home], home).max() if inside else rates[home, c]
            slot_s = PACE * n_bytes / float(rate)
            first = n_home / 2 if inside else place
            others = [each for each in cluster.ranks if each != rank]
            at = place % max(len(others), 1)
            for k, target in enumerate([*others[at:], *others[:at]]):
                turns.append(Turn(target, (first + k * n_home) * slot_s))
        found.append(tuple(sorted(turns, key=lambda turn: turn.due_s)))
    return tuple(found)


def plan_in_turn(model: GridModel, n_units: int, label: str = "in-turn") -> Plan:
    """Every block to its receiver when it is its turn.

    Parameters
    ----------
    model : GridModel
        Of two clusters or more.
    n_units : int
        Size of a block, in bytes.
    label : str
    """
    turns = turns_of(model, n_units)

    def program_of(rank: int) -> Program:
        receives = [
            Recv(source, blocks("output", source, n_units), 0)
            for source in range(len(turns))
            if source != rank
        ]
        sends = [
            Send(
                turn.target,
                blocks("input", turn.target, n_units),
                0,
                due_us=int(turn.due_s * 1e6),
            )
            for turn in turns[rank]
        ]
        return (*receives, *sends, keep_own(rank, n_units))

    return exchange_plan(label, n_units, Programs(len(turns), program_of))


def _links_limit(model: GridModel, n_bytes: int) -> bool:
    """Whether a link is busy longer than any interface."""
    sizes = np.array([len(cluster) for cluster in model.grid.clusters], float)
    between = ~np.eye(len(sizes), dtype=bool)
    links_s = (np.outer(sizes, sizes) * n_bytes / model.link_bytes_per_s)[between]
    ports_s = (model.grid.n_ranks - 1) * np.diagonal(model.gap_s(n_bytes))
    return bool(links_s.max() > ports_s.max())


def _in_turn(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Where links do not limit, no order of theirs is better than another."""
    if (
        model.n_clusters == 1
        or model.grid.n_ranks > MOST_RANKS
        or n_bytes < PACED_BYTES
        or not _links_limit(model, n_bytes)
    ):
        return []
    label = "a block at a time over every link"
    by_rank = [[turn.target for turn in turns] for turns in turns_of(model, n_bytes)]
    messages = paced_messages(tuple(zip(*by_rank, strict=True)))
    predicted_s = price_messages_s(model, messages, n_bytes)

    def build(n_units: int) -> Plan:
        return plan_in_turn(model, n_units, f"in-turn: {label}")

    return [Candidate("in-turn", label, predicted_s, build)]


register(
    "alltoall",
    Algorithm(
        "in-turn",
        "long blocks where links between clusters are thinner than interfaces, and would lose some",
        "gridcoll; a direct exchange by the clock",
        _in_turn,
    ),
)
