"""Broadcasts over a grid by several trees at once, each carrying some of the segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import lcm

import numpy as np

from gridcoll.constants import TREES_TIE_FACTOR, WINDOW_HEADROOM
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.segments import MANY_CLUSTERS, tree_candidate
from gridcoll.plan.pacing import thin_links
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.plan.split_shares import MOST_SPLIT, split_shares
from gridcoll.plan.trees import SMALLEST_SEGMENT, GridTree, chain_tree
from gridcoll.schedule.paths import shortest_path

LEAST_SEGMENTS = 8
"""Several trees are only tried for messages of at least so many of the smallest segments."""

MOST_LANES = 16
MOST_STARS = 24

TURNS_PER_TREE = 16
"""Shares are rounded to turns, of which there are so many per tree on average."""


@algorithm(
    "bcast",
    "lanes",
    "long messages over links that one flow cannot fill",
    "gridcoll",
    max_clusters=MANY_CLUSTERS,
)
def _lanes(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return several chains that enter and leave every cluster at different ranks.

    So there are more flows per WAN link. The number of lanes is the best by prediction. Lanes are
    only offered if several flows carry more than one.
    """
    if model.n_clusters == 1 or n_bytes < LEAST_SEGMENTS * SMALLEST_SEGMENT:
        return []
    source = model.grid.cluster_of[root]
    order = shortest_path(model.latency_s, source)
    hops = list(pairwise(order))
    if not any(model.windows_limit[hop] for hop in hops):
        return []
    n_ends = max(len(model.grid.clusters[source]) - 1, 1)
    most = min(MOST_LANES, n_ends * max(len(model.grid.clusters[c]) for c in order[1:]))
    tried = {
        n_lanes: tree_candidate(
            "lanes", model, n_bytes, [chain_tree(model.grid, root, hops, k) for k in range(n_lanes)]
        )
        for n_lanes in (2, 3, 4, 6, 8, 12, 16)
        if n_lanes <= most
    }
    return _fewest_trees(model, hops, tried)


def _fewest_trees(
    model: GridModel, hops: Sequence[tuple[int, int]], tried: Mapping[int, Candidate]
) -> list[Candidate]:
    """Return one of the fastest candidates of ``tried``, whose keys are numbers of trees.

    It is the one with the fewest trees that have spare flows over all ``hops`` between clusters,
    or the one with the most trees if there is none.
    """
    if not tried:
        return []
    large = float(1 << 20)
    gap_s = model.gap_s(large)
    wanted_bytes = [
        gap_s[i, j] * min(large / max(gap_s[i, i], gap_s[j, j]), model.link_bytes_per_s[i, j])
        for i, j in hops
    ]
    least_s = min(c.predicted_s or 0.0 for c in tried.values())
    fastest = {
        n: c for n, c in tried.items() if (c.predicted_s or 0.0) <= TREES_TIE_FACTOR * least_s
    }
    enough = [n for n in fastest if n * large >= WINDOW_HEADROOM * max(wanted_bytes, default=0.0)]
    return [fastest[enough[0] if enough else max(fastest)]]


@algorithm(
    "bcast",
    "stars",
    "middle sizes: a chain's throughput over fewer hops",
    "gridcoll; inside a cluster a pipelined scatter/collection (Steffenel & Mounié 2007)",
    max_clusters=MANY_CLUSTERS,
)
def _stars(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return trees of few hops: segments enter a cluster at different ranks, which send to all.

    A chain passes through every rank in turn. In stars, every rank is the entry of some segments
    and sends those to its whole cluster, so that a segment is two hops from the next cluster. All
    interfaces are as busy as in a chain.
    """
    sizes = model.grid.ranks_per_cluster
    source = model.grid.cluster_of[root]
    if max(sizes) < 3 or n_bytes < LEAST_SEGMENTS * SMALLEST_SEGMENT:
        return []
    order = shortest_path(model.latency_s, source)
    shapes = tuple("fan" if c == source else "flat" for c in range(len(sizes)))
    relays = tuple(min(1, size - 1) for size in sizes)
    transfers = tuple(pairwise(order))
    n_ends = max(sizes[source] - 1, 1)
    even = lcm(n_ends, *(sizes[c] for c in order[1:]))
    counts = {n for n in (n_ends, 2 * n_ends, even, max(sizes)) if 2 <= n <= MOST_STARS}
    tried = {
        n: tree_candidate(
            "stars",
            model,
            n_bytes,
            [GridTree(root, transfers, shapes, relays, lane) for lane in range(n)],
        )
        for n in sorted(counts)
    }
    return _fewest_trees(model, transfers, tried)


@algorithm(
    "bcast",
    "split",
    "long messages where links between clusters are thinner than interfaces",
    "gridcoll; scatter and allgather between clusters, as Steffenel & Mounié 2007 inside one",
    max_clusters=MOST_SPLIT,
)
def _split(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return a tree per cluster: the root sends it a share, which it sends to all others.

    All links between clusters are used at once, each for one share instead of the whole message.
    This is good if links are thinner than interfaces. If the root's links are thin, shares are such
    that all arrive at the same time; otherwise they are equal.
    """
    source = model.grid.cluster_of[root]
    others = [c for c in shortest_path(model.latency_s, source) if c != source]
    if len(others) < 2 or n_bytes < LEAST_SEGMENTS * SMALLEST_SEGMENT:
        return []
    trees = [
        chain_tree(
            model.grid, root, ((source, first), *((first, c) for c in others if c != first)), lane
        )
        for lane, first in enumerate(others)
    ]
    turns = trees
    if thin_links(model)[source].any():
        transfers = [tree.transfers for tree in trees]
        shares = split_shares(transfers, model.latency_s, model.link_bytes_per_s, n_bytes)
        uneven = [trees[k] for k in _turns(shares)]
        turns = uneven if len(set(uneven)) > 1 else trees
    return [tree_candidate("split", model, n_bytes, turns, paced=True)]


def _turns(shares: np.ndarray) -> list[int]:
    """Return the tree of each turn: in proportion to shares, as evenly as possible."""
    n_given = np.zeros(len(shares))
    turns = []
    for k in range(TURNS_PER_TREE * len(shares)):
        turns.append(int(np.argmax((k + 1) * shares - n_given)))
        n_given[turns[-1]] += 1
    return turns
