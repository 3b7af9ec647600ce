"""Broadcast by scatter and collection: everyone gets a share, and shares go around a ring.

Barnett et al.'s (van de Geijn's) broadcast: twice the message through every interface whatever the
number of ranks, where a tree's root sends it several times.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.schedule.trees import find_shape


def _span(vertex: int, n: int) -> range:
    """The shares a vertex of the scatter's binomial tree gets: its own and its subtree's."""
    return range(vertex, min(vertex + (vertex & -vertex), n)) if vertex else range(n)


def plan_scatter_collection(ring: Sequence[int], n_units: int, label: str = "") -> Plan:
    """Broadcast ``n_units`` from ``ring[0]``: a share per rank.

    Shares go down a binomial tree in halves, then around ``ring``; what a rank got by the tree does
    not come again, so that nobody, the root least of all, overwrites what it has.
    """
    n = len(ring)
    bounds = [share * n_units // n for share in range(n + 1)]
    places = {rank: place for place, rank in enumerate(ring)}
    children = find_shape("binomial").children(n)

    def shares(span: range) -> Chunk:
        return Chunk("output", bounds[span.start], bounds[span.stop])

    def program_of(rank: int) -> Program:
        here = places[rank]
        mine, theirs = _span(here, n), _span((here + 1) % n, n)
        before, following = ring[here - 1], ring[(here + 1) % n]
        ops: list[Op] = []
        if here and shares(mine).size:
            ops.append(Recv(ring[here - (here & -here)], shares(mine), 0))
        ops += [
            Send(ring[child], shares(_span(child, n)), 0)
            for child in children[here]
            if shares(_span(child, n)).size
        ]
        latest: Chunk | None = None  # what is here already waits its turn behind what comes in
        for step in range(n):
            share = (here - step) % n
            chunk = shares(range(share, share + 1))
            if not chunk.size:
                continue
            if share not in mine:
                ops.append(Recv(before, chunk, step))
                latest = chunk
            if share not in theirs:
                ops.append(Send(following, chunk, step + 1, latest if share in mine else None))
        return tuple(ops)

    return Plan("bcast", label, n_units, ring[0], Programs(n, program_of))


def price_scatter_collection(model: GridModel, ring: Sequence[int], n_bytes: int) -> float:
    """Seconds until the last rank has the last share; shares counted as equally long.

    Walks all messages, those of one step around the ring at once.
    """
    n = len(ring)
    place = np.arange(n)
    cluster = np.array([model.grid.cluster_of[rank] for rank in ring])
    n_shares = np.array([len(_span(v, n)) for v in range(n)])
    counts, size_at = np.unique(n_shares, return_inverse=True)
    gap_s, alone_s = model.gap_and_alone_s(counts * (n_bytes / n))
    have, free = _scatter(cluster, size_at, gap_s, alone_s)
    got = have.copy()
    following = np.roll(cluster, -1)
    gap, alone = gap_s[cluster, following, 0], alone_s[cluster, following, 0]
    last = have.max()
    for step in range(n - 1):
        share = (place - step) % n
        sends = np.roll(~_holds(np.roll(share, 1), place, n_shares), -1)
        start = np.maximum(got, free)
        free = np.where(sends, start + gap, free)
        got = np.roll(np.where(sends, start + alone, np.roll(have, -1)), 1)
        last = max(last, got.max())
    return float(last)


def _holds(share: np.ndarray, place: np.ndarray, n_shares: np.ndarray) -> np.ndarray:
    """Whether each place of the ring got ``share`` by the tree."""
    return np.asarray((share >= place) & (share < place + n_shares))


def _scatter(
    cluster: np.ndarray, size_at: np.ndarray, gap_s: np.ndarray, alone_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """When each place has its shares, and when its interface is free again, (n,) each."""
    n = len(cluster)
    have, free = np.zeros(n), np.zeros(n)
    for v, children in enumerate(find_shape("binomial").children(n)):
        free[v] = have[v]
        for child in children:
            size = size_at[child]
            have[child] = free[v] + alone_s[cluster[v], cluster[child], size]
            free[v] += gap_s[cluster[v], cluster[v], size]
    return have, free
