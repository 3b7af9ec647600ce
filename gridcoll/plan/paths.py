"""Paths of blocks between clusters, which may lead over third clusters.

They are shorter than direct ones, or keep thin links and uplinks free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise

import numpy as np

from gridcoll.constants import DETOUR_GAIN
from gridcoll.model.arborescence import shortest_paths
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.model.wires import links_of

Paths = Sequence[Sequence[int]]
"""For each cluster, a row: the cluster before each cluster on the path there. Empty if all paths
are direct."""

MOST_CLUSTERS = 24
"""Limit of clusters for `balanced_paths`, which takes O(C^4) steps."""

N_PASSES = 3


def nearest_paths(one_way_s: np.ndarray) -> Paths:
    """Return the shortest paths between clusters over ``one_way_s``, (C, C).

    The direct way is taken unless it is longer by a factor of `DETOUR_GAIN`. Return nothing if it
    is taken everywhere.
    """
    n = len(one_way_s)
    cost = np.where(np.eye(n, dtype=bool), 0.0, one_way_s)
    path_s = shortest_paths(cost)
    is_longer = DETOUR_GAIN * path_s < cost
    if not is_longer.any():
        return ()
    paths = np.repeat(np.arange(n)[:, None], n, axis=1)
    for i in np.flatnonzero(is_longer.any(axis=1)).tolist():
        over_s = path_s[i, :, None] + cost
        over_s[i] = np.inf
        np.fill_diagonal(over_s, np.inf)
        paths[i, is_longer[i]] = over_s.argmin(axis=0)[is_longer[i]]
    found: Paths = paths.tolist()
    return found


def along_paths(
    paths: Paths,
    each: FloatArray,
    combine: Callable[[FloatArray, FloatArray], FloatArray],
    *,
    upwards: bool = False,
) -> FloatArray:
    """Return ``each`` of the links, (C, C, S), combined along the paths from every cluster.

    If ``upwards``, paths lead to the second cluster instead of coming from the first one.
    """
    if not paths:
        return each
    links = each.transpose(1, 0, 2) if upwards else each
    found = np.array(links)
    for home, previous in enumerate(paths):
        for c in range(len(paths)):
            if c != home and previous[c] != home:
                stops = [c]
                while stops[-1] != home:
                    stops.append(previous[stops[-1]])
                found[home, c] = reduce(combine, (links[b, a] for a, b in pairwise(stops)))
    return np.asarray(found.transpose(1, 0, 2) if upwards else found)


def crossing(sizes: np.ndarray, paths: Paths) -> np.ndarray:
    """Return how many blocks go from one cluster to another on their way from the owner, (C, C).

    ``sizes`` are the numbers of blocks of each cluster, (C,).
    """
    n = len(sizes)
    if not paths:
        return np.asarray(np.where(np.eye(n, dtype=bool), 0, sizes[:, None]))
    found = np.zeros((n, n))
    for home, previous in enumerate(paths):
        for c in range(n):
            if c != home:
                found[previous[c], c] += sizes[home]
    return found


def balanced_paths(model: GridModel, n_bytes: int, *, upwards: bool = False) -> Paths:
    """Return paths on which the busiest link, uplink or interface is busy for a short time.

    They are for blocks of ``n_bytes`` of all ranks, each of which enters every cluster once. The
    tree of each cluster is grown edge by edge; the next edge is the one that ends first with the
    load so far. Then each is grown again with the load of all others. If ``upwards``, blocks go the
    other way. Return nothing if direct paths are as good, or there are too many clusters.
    """
    n = model.n_clusters
    if not 2 < n <= MOST_CLUSTERS or n_bytes < 1:
        return ()
    loads = _Loads(model, n_bytes, upwards=upwards)
    homes = sorted(range(n), key=lambda c: (-model.grid.ranks_per_cluster[c], c))
    trees = [[home] * n for home in range(n)]
    for home in homes:
        loads.take(home, trees[home])
    best: list[list[int]] = []
    best_s = loads.busiest_s() / DETOUR_GAIN
    for _ in range(N_PASSES):
        for home in homes:
            loads.take(home, trees[home], -1.0)
            trees[home] = loads.grow(home)
            loads.take(home, trees[home])
        if loads.busiest_s() < best_s * (1 - 1e-9):
            best, best_s = list(trees), loads.busiest_s()
    return best or ()


class _Loads:
    """Busy times of interfaces, links and uplinks with the trees so far."""

    def __init__(self, model: GridModel, n_bytes: int, *, upwards: bool) -> None:
        sizes = np.array(model.grid.ranks_per_cluster, dtype=float)
        hosts = np.array(model.grid.hosts_per_cluster, dtype=float)
        links_s, hops_s = n_bytes / links_of(model), model.latency_s
        if upwards:
            links_s, hops_s = links_s.T, hops_s.T
        self.sizes, self.hops_s = sizes, hops_s
        self.link_s = np.where(np.eye(len(sizes), dtype=bool), 0.0, links_s)
        port_s = n_bytes / model.flow_bytes_per_s.diagonal() / hosts
        self.out_s = np.maximum(port_s, n_bytes / model.uplinks)
        """How long a block that leaves a cluster keeps its interfaces or its uplink busy."""
        inside = (
            (hosts - 1) / hosts * sizes.sum()
        )  # blocks that hosts send to others of the cluster
        self.busy_s = inside * port_s
        self.links_busy_s = np.zeros_like(self.link_s)

    def take(self, home: int, tree: Sequence[int], times: float = 1.0) -> None:
        """Add the load of a tree, a row of `Paths`; remove it with ``times`` -1."""
        n_blocks = times * self.sizes[home]
        for c, before in enumerate(tree):
            if c != home:
                self.busy_s[before] += n_blocks * self.out_s[before]
                self.links_busy_s[before, c] += n_blocks * self.link_s[before, c]

    def grow(self, home: int) -> list[int]:
        """Return a tree grown by the edges that end first with the load so far."""
        n, n_blocks = len(self.sizes), self.sizes[home]
        tree, path_s = [home] * n, np.full(n, np.inf)
        path_s[home] = 0.0
        busy_s, is_missing = self.busy_s.copy(), np.arange(n) != home
        links_s = self.links_busy_s + n_blocks * self.link_s
        for _ in range(n - 1):
            edges_s = np.maximum((busy_s + n_blocks * self.out_s)[:, None], links_s)
            done_s = np.where(is_missing, edges_s + path_s[:, None] + self.hops_s, np.inf)
            before, new = divmod(int(np.argmin(done_s)), n)
            tree[new], is_missing[new] = before, False
            path_s[new] = path_s[before] + self.hops_s[before, new]
            busy_s[before] += n_blocks * self.out_s[before]
        return tree

    def busiest_s(self) -> float:
        return float(max(self.busy_s.max(), self.links_busy_s.max()))
