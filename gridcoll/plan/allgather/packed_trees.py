"""Allgather and reduce-scatter by one tree per owner, with balanced load of interfaces and links.

Every block is a broadcast, and all broadcasts share interfaces and links. Trees are grown one after
another, edge by edge: the next edge is the one that ends first with the load so far. Then each tree
is grown again with the load of all others, in `N_PASSES` passes in all; the best trees are kept.
Hosts with slow interfaces forward nothing, and trees avoid thin links.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.wires import links_of
from gridcoll.plan.allgather.trees import Planner, candidate, plan_allgather
from gridcoll.plan.bcast.packed_trees import PACKED_TREES
from gridcoll.plan.cost import price_plan
from gridcoll.plan.packed_trees import LEAST_BYTES, is_unlike
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.units import format_size

MOST_RANKS = 40
"""Limit of ranks, since every rank grows all trees and simulates a plan."""

TOTAL_SEGMENTS = 96
"""Number of segments of all blocks together, about. Forwarding delays a block by one segment."""

N_PASSES = 3


class GivenTrees:
    """`BlockTrees` of any shape. ``parents[owner][rank]`` is the parent, -1 for the owner."""

    def __init__(self, parents: Sequence[Sequence[int]]) -> None:
        n = len(parents)
        self.order = tuple(range(n))
        self.stream_of = tuple(range(n))
        self._parents = parents
        self._children: list[list[list[int]]] = [[[] for _ in range(n)] for _ in range(n)]
        for owner, tree in enumerate(parents):
            below = [1] * n
            for rank in range(n):
                above = tree[rank]
                while above >= 0:
                    below[above] += 1
                    above = tree[above]
            for rank in sorted(range(n), key=lambda r, below=below: (-below[r], r)):  # type: ignore[misc]
                if tree[rank] >= 0:
                    self._children[owner][tree[rank]].append(rank)

    def parent(self, owner: int, rank: int) -> int:
        return self._parents[owner][rank]

    def children(self, owner: int, rank: int) -> Sequence[int]:
        return self._children[owner][rank]

    def upward_order(self, rank: int) -> list[list[int]]:
        """Return all owners in one list, the own one last."""
        n = len(self.order)
        return [[(rank + k) % n for k in range(1, n + 1)]]


class _Loads:
    """Busy times of interfaces and links with the edges so far. All blocks have the same size."""

    def __init__(self, model: GridModel, n_bytes: int) -> None:
        self.cluster = np.array(model.grid.cluster_of)
        ends = np.ix_(self.cluster, self.cluster)
        block_s = n_bytes / model.flow_bytes_per_s.diagonal()
        link_s = n_bytes / links_of(model)
        np.fill_diagonal(link_s, 0.0)
        self.port_s = block_s[self.cluster]
        self.link_s = link_s[ends]
        self.hop_s = (model.latency_s + model.gap_s(n_bytes // 8))[ends]
        # At a busy interface, a block waits on average for half of the load.
        self.wait_s = 0.5 * (len(self.cluster) - 1) * self.port_s
        self.apart = self.cluster[:, None] != self.cluster[None, :]
        self.out_s = np.zeros(len(self.cluster))
        self.link_load_s = np.zeros((model.n_clusters, model.n_clusters))

    def take(self, parents: Sequence[int], times: float = 1.0) -> None:
        """Add the load of a tree's edges; remove it with ``times`` -1."""
        for child, parent in enumerate(parents):
            if parent >= 0:
                self.out_s[parent] += times * self.port_s[parent]
                if self.apart[parent, child]:
                    link = self.cluster[parent], self.cluster[child]
                    self.link_load_s[link] += times * self.link_s[parent, child]

    def grow(self, owner: int) -> list[int]:
        """Return a tree grown by the edges that end first with the load so far."""
        n = len(self.out_s)
        parents, path_s = [-1] * n, np.full(n, np.inf)
        path_s[owner] = 0.0
        out_s, link_load_s = self.out_s.copy(), self.link_load_s.copy()
        missing = np.ones(n, dtype=bool)
        missing[owner] = False
        for _ in range(n - 1):
            link_loads_s = link_load_s[self.cluster[:, None], self.cluster[None, :]] + self.link_s
            busy_s = np.maximum(
                (out_s + self.port_s)[:, None], np.where(self.apart, link_loads_s, 0.0)
            )
            done_s = np.where(missing[None, :], busy_s + path_s[:, None] + self.hop_s, np.inf)
            sender, new = divmod(int(np.argmin(done_s)), n)
            parents[new], missing[new] = sender, False
            path_s[new] = path_s[sender] + self.hop_s[sender, new] + self.wait_s[new]
            out_s[sender] += self.port_s[sender]
            if self.apart[sender, new]:
                link = self.cluster[sender], self.cluster[new]
                link_load_s[link] += self.link_s[sender, new]
        return parents

    def busiest_s(self) -> float:
        return float(max(self.out_s.max(), self.link_load_s.max()))


def grow_trees(model: GridModel, n_bytes: int) -> list[list[int]]:
    """Return parents by owner and rank, for an allgather of ``n_bytes`` per rank."""
    loads = _Loads(model, n_bytes)
    # Take owners of all clusters in turn.
    turns = zip_longest(*(cluster.ranks for cluster in model.grid.clusters))
    owners = [rank for turn in turns for rank in turn if rank is not None]
    trees: list[list[int]] = [[] for _ in owners]
    for owner in owners:
        trees[owner] = loads.grow(owner)
        loads.take(trees[owner])
    best, best_s = list(trees), loads.busiest_s()
    for _ in range(N_PASSES - 1):
        for owner in owners:
            loads.take(trees[owner], -1.0)
            trees[owner] = loads.grow(owner)
            loads.take(trees[owner])
        if loads.busiest_s() < best_s * (1 - 1e-9):
            best, best_s = list(trees), loads.busiest_s()
    return best


def _reversed(model: GridModel) -> GridModel:
    """Return the model with the directions of links interchanged."""
    rows = model.aggregate_bytes_per_s
    return GridModel(
        model.grid,
        tuple(zip(*model.links, strict=True)),
        relay_gap=model.relay_gap,
        aggregate_bytes_per_s=tuple(zip(*rows, strict=True)) if rows else (),
    )


def packed_candidates(
    model: GridModel, n_bytes: int, planner: Planner, *, upwards: bool = False
) -> list[Candidate]:
    """Return one candidate, priced by simulation; none if it does not apply."""
    grid = model.grid
    n = grid.n_ranks
    if (
        model.n_clusters < 2
        or not 2 < n <= MOST_RANKS
        or n_bytes < LEAST_BYTES
        or grid.shares_hosts
        or not is_unlike(model)
    ):
        return []
    trees = GivenTrees(grow_trees(_reversed(model) if upwards else model, n_bytes))
    segment = -(-n_bytes // max(TOTAL_SEGMENTS // n, 1))
    predicted_s = price_plan(planner(trees, (n_bytes,) * n, segment, ""), model).makespan_s
    label = f"a tree per block, beside all others; {format_size(segment)} segments"

    def build_blocks(sizes: Sequence[int]) -> Plan:
        # Units may be elements: a segment has the same fraction of a block as in bytes.
        units = -(-sum(sizes) * segment // (n_bytes * n))
        return planner(trees, sizes, max(units, 1), f"{PACKED_TREES}: {label}")

    return [candidate(PACKED_TREES, label, predicted_s, n, build_blocks, segment_bytes=segment)]


GOOD_FOR = "long blocks where interfaces or links are unlike: slow ones hand on nothing"
SOURCE = "gridcoll; list scheduling (Graham 1966) of trees"


@algorithm("allgather", PACKED_TREES, GOOD_FOR, SOURCE)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    return packed_candidates(model, n_bytes, plan_allgather)
