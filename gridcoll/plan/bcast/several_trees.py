"""Ways to broadcast over a grid by several trees at once, each carrying some of the segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import lcm

import numpy as np

from gridcoll.constants import ALIKE_TREES, WINDOW_SPARE
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.segments import MANY_CLUSTERS, tree_candidate
from gridcoll.plan.pacing import thin_links
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.plan.trees import SMALLEST_SEGMENT, GridTree, chain_tree
from gridcoll.schedule.paths import shortest_path

N_LEAST_SEGMENTS = 8
"""Several trees need this many of the smallest segments to share out."""

MOST_LANES = 16
MOST_STARS = 24
MOST_SPLIT = 16
"""With more clusters, a tree per cluster takes long to price."""

TURNS_PER_TREE = 16
"""Shares are rounded to as many turns, on average."""


@algorithm(
    "bcast",
    "lanes",
    "long messages over links that one flow cannot fill",
    "gridcoll",
    most_clusters=MANY_CLUSTERS,
)
def _lanes(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Several chains that enter and leave every cluster at other ranks: more flows per WAN link.

    As many lanes as the prediction favours, where several flows carry more than one.
    """
    if model.n_clusters == 1 or n_bytes < N_LEAST_SEGMENTS * SMALLEST_SEGMENT:
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
    return _fewest(model, hops, tried)


def _fewest(
    model: GridModel, hops: Sequence[tuple[int, int]], tried: Mapping[int, Candidate]
) -> list[Candidate]:
    """Of the candidates, ordered by number of trees, one of the fastest.

    The first with spare flows over all ``hops`` between clusters, else the one with most trees.
    """
    if not tried:
        return []
    large = float(1 << 20)
    gap_s = model.gap_s(large)
    bytes_wanted = [
        gap_s[i, j] * min(large / max(gap_s[i, i], gap_s[j, j]), model.link_bytes_per_s[i, j])
        for i, j in hops
    ]
    least_s = min(c.predicted_s or 0.0 for c in tried.values())
    alike = {n: c for n, c in tried.items() if (c.predicted_s or 0.0) <= ALIKE_TREES * least_s}
    enough = [n for n in alike if n * large >= WINDOW_SPARE * max(bytes_wanted, default=0.0)]
    return [alike[enough[0] if enough else max(alike)]]


@algorithm(
    "bcast",
    "stars",
    "middle sizes: a chain's throughput over fewer hops",
    "gridcoll; inside a cluster a pipelined scatter/collection (Steffenel & Mounié 2007)",
    most_clusters=MANY_CLUSTERS,
)
def _stars(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Trees of few hops: each segment enters a cluster at another rank, which sends it to all.

    A chain passes through every rank in turn. Here every rank is the entry of some segments and
    sends those to its whole cluster, so that a segment is two hops from the next cluster; all
    interfaces are as busy as in a chain.
    """
    sizes = [len(cluster) for cluster in model.grid.clusters]
    source = model.grid.cluster_of[root]
    if max(sizes) < 3 or n_bytes < N_LEAST_SEGMENTS * SMALLEST_SEGMENT:
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
    return _fewest(model, transfers, tried)


@algorithm(
    "bcast",
    "split",
    "long messages where links between clusters are thinner than interfaces",
    "gridcoll; scatter and allgather between clusters, as Steffenel & Mounié 2007 inside one",
    most_clusters=MOST_SPLIT,
)
def _split(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """A tree per cluster: the root sends each its share, and it sends that to all others.

    All links between clusters work at once, each with one share instead of the whole: good where
    links, not interfaces, are thin. There, shares are such that all arrive at the same time;
    elsewhere they are equal.
    """
    source = model.grid.cluster_of[root]
    others = [c for c in shortest_path(model.latency_s, source) if c != source]
    if len(others) < 2 or n_bytes < N_LEAST_SEGMENTS * SMALLEST_SEGMENT:
        return []
    trees = [
        chain_tree(
            model.grid, root, ((source, first), *((first, c) for c in others if c != first)), lane
        )
        for lane, first in enumerate(others)
    ]
    turns = trees
    if thin_links(model)[source].any():
        uneven = [trees[k] for k in _turns(_shares(model, n_bytes, trees))]
        turns = uneven if len(set(uneven)) > 1 else trees
    return [tree_candidate("split", model, n_bytes, turns, paced=True)]


def _shares(model: GridModel, n_bytes: int, trees: Sequence[GridTree]) -> np.ndarray:
    """The share of each of ``trees``, so that all end at the same time.

    By latencies and bandwidths; 0 for a tree that would end too late. No two use the same link.
    """
    latency_s, link = model.latency_s, model.link_bytes_per_s
    delays_s = np.array([_way_s(tree, latency_s) for tree in trees])
    rates = np.array([min(link[hop] for hop in tree.transfers) for tree in trees])
    order = np.argsort(delays_s)
    end_s = 0.0
    for n in range(len(trees), 0, -1):
        used = order[:n]
        end_s = float((n_bytes + delays_s[used] @ rates[used]) / rates[used].sum())
        if end_s >= delays_s[used[-1]]:
            break
    return np.asarray(np.maximum(end_s - delays_s, 0.0) * rates / n_bytes)


def _way_s(tree: GridTree, latency_s: np.ndarray) -> float:
    """Latency of the farthest cluster along a tree of two levels."""
    enter, *others = tree.transfers
    return float(latency_s[enter] + max(latency_s[hop] for hop in others))


def _turns(shares: np.ndarray) -> list[int]:
    """The tree of each turn: in proportion to shares, as evenly as possible."""
    n_given = np.zeros(len(shares))
    turns = []
    for k in range(TURNS_PER_TREE * len(shares)):
        turns.append(int(np.argmax((k + 1) * shares - n_given)))
        n_given[turns[-1]] += 1
    return turns
