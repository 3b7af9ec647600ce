"""Allgather and reduce-scatter by one tree per owner, with balanced load of interfaces and links.

Every block is a broadcast, and all broadcasts share interfaces and links. Trees are grown one after
another, edge by edge: the next edge is the one that ends first with the load so far. Then each tree
is grown again with the load of all others, in `N_PASSES` passes in all; the best trees are kept.
Hosts with slow interfaces forward nothing, and trees avoid thin links. The edges connect hosts: a
host hands a block to its other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
from msgspec.structs import replace

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.tree_packing import Platform
from gridcoll.model.wires import links_of
from gridcoll.plan.allgather.trees import Planner, candidate, is_simulated, plan_allgather
from gridcoll.plan.bcast.packed_trees import PACKED_TREES
from gridcoll.plan.cost import price_plan
from gridcoll.plan.packed_trees import platform_of
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.plan.tree_search import Parents
from gridcoll.plan.tree_walk import DOWNWARDS, UPWARDS, Children, TreeWalk, children_of
from gridcoll.plan.trees import SMALLEST_SEGMENT
from gridcoll.topology.units import format_size

TOTAL_SEGMENTS = 96
"""Number of segments of all blocks together, about. Forwarding delays a block by one segment."""

N_PASSES = 3

WAITS = (0.5, 0.2)
"""Parts of an interface's load that a block is taken to wait for on its way. With less, trees are
deeper and balance loads better; the faster trees in a simulation are taken. With 0.05, and with
random changes as for broadcasts, simulated times were shorter, but on patchwork real ones 30 %
longer: all owners send at once, and TCP does not send their messages in the simulated order."""


class OwnedTrees:
    """`BlockTrees` from a tree over hosts for each owner, given by parents and children of hosts.

    A block enters each other host once, by ranks that take turns. These hand it to the others last,
    as that keeps no interface busy.
    """

    def __init__(
        self,
        hosts: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]],
        children: Sequence[Children],
    ) -> None:
        n = len(parents)
        self.order = tuple(range(n))
        self.stream_of = tuple(range(n))
        self._hosts, self._above, self._below = hosts, parents, children
        self._host_of = {rank: at for at, host in enumerate(hosts) for rank in host}

    def _entry(self, owner: int, host: int) -> int:
        """Return the rank of a host that gets the owner's block first."""
        ranks = self._hosts[host]
        return owner if owner in ranks else ranks[owner % len(ranks)]

    def parent(self, owner: int, rank: int) -> int:
        host = self._host_of[rank]
        entry, above = self._entry(owner, host), self._above[owner][host]
        if rank != entry:
            return entry
        return self._entry(owner, above) if above >= 0 else -1

    def children(self, owner: int, rank: int) -> Sequence[int]:
        host = self._host_of[rank]
        if rank != self._entry(owner, host):
            return ()
        below = (self._entry(owner, other) for other in self._below[owner][host])
        return [*below, *(mate for mate in self._hosts[host] if mate != rank)]

    def upward_order(self, rank: int) -> list[list[int]]:
        """Return all owners in one list, the own one last."""
        n = len(self.order)
        return [[(rank + k) % n for k in range(1, n + 1)]]


class _Loads:
    """Busy times of interfaces, links and uplinks with the edges so far, which connect hosts.

    All blocks have the same size.
    """

    def __init__(self, model: GridModel, n_bytes: int, wait: float) -> None:
        grid = model.grid
        self.cluster = np.repeat(np.arange(model.n_clusters), grid.hosts_per_cluster)
        ends = np.ix_(self.cluster, self.cluster)
        block_s = n_bytes / model.flow_bytes_per_s.diagonal()
        link_s = n_bytes / links_of(model)
        np.fill_diagonal(link_s, 0.0)
        self.port_s = block_s[self.cluster]
        self.link_s = link_s[ends]
        self.hop_s = (model.latency_s + model.gap_s(n_bytes // 8))[ends]
        self.uplink_s = n_bytes / model.uplinks
        self.wait_s = wait * (grid.n_ranks - 1) * self.port_s
        self.apart = self.cluster[:, None] != self.cluster[None, :]
        self.out_s = np.zeros(len(self.cluster))
        self.link_load_s = np.zeros((model.n_clusters, model.n_clusters))
        self.uplink_load_s = np.zeros((2, model.n_clusters))  # out of clusters, and into them

    def take(self, parents: Sequence[int], times: float = 1.0) -> None:
        """Add the load of a tree's edges; remove it with ``times`` -1."""
        for child, parent in enumerate(parents):
            if parent >= 0:
                self._add(parent, child, times)

    def _add(self, parent: int, child: int, times: float) -> None:
        self.out_s[parent] += times * self.port_s[parent]
        if self.apart[parent, child]:
            a, b = self.cluster[parent], self.cluster[child]
            self.link_load_s[a, b] += times * self.link_s[parent, child]
            self.uplink_load_s[0, a] += times * self.uplink_s[a]
            self.uplink_load_s[1, b] += times * self.uplink_s[b]

    def grow(self, owner: int) -> Parents:
        """Add a tree of hosts, and return their parents in it, -1 for host ``owner``.

        Its edges are those that end first with the load so far.
        """
        n, cluster = len(self.out_s), self.cluster
        parents, path_s = [-1] * n, np.full(n, np.inf)
        path_s[owner] = 0.0
        missing = np.ones(n, dtype=bool)
        missing[owner] = False
        for _ in range(n - 1):
            out_s, in_s = self.uplink_load_s + self.uplink_s
            crossing_s = self.link_load_s[cluster[:, None], cluster] + self.link_s
            crossing_s = np.maximum(crossing_s, out_s[cluster][:, None])
            crossing_s = np.maximum(crossing_s, in_s[cluster])
            busy_s = np.maximum(
                (self.out_s + self.port_s)[:, None], np.where(self.apart, crossing_s, 0.0)
            )
            done_s = np.where(missing[None, :], busy_s + path_s[:, None] + self.hop_s, np.inf)
            sender, new = divmod(int(np.argmin(done_s)), n)
            parents[new], missing[new] = sender, False
            path_s[new] = path_s[sender] + self.hop_s[sender, new] + self.wait_s[new]
            self._add(sender, new, 1.0)
        return tuple(parents)

    def busiest_s(self) -> float:
        """Return how long the busiest interface, link or uplink sends."""
        return float(max(self.out_s.max(), self.link_load_s.max(), self.uplink_load_s.max()))


def grow_trees(
    model: GridModel, n_bytes: int, home_of: Sequence[int], wait: float
) -> tuple[Parents, ...]:
    """Return a tree over hosts for each owner, for an allgather of ``n_bytes`` per rank.

    ``home_of`` has the host of each rank. A block is taken to wait at a busy interface for the
    part ``wait`` of its load.
    """
    loads = _Loads(model, n_bytes, wait)
    # Take owners of all clusters in turn.
    turns = zip_longest(*(cluster.ranks for cluster in model.grid.clusters))
    owners = [rank for turn in turns for rank in turn if rank is not None]
    trees: list[Parents] = [()] * len(owners)
    for owner in owners:
        trees[owner] = loads.grow(home_of[owner])
    best, best_s = list(trees), loads.busiest_s()
    for _ in range(N_PASSES - 1):
        for owner in owners:
            loads.take(trees[owner], -1.0)
            trees[owner] = loads.grow(home_of[owner])
        if loads.busiest_s() < best_s * (1 - 1e-9):
            best, best_s = list(trees), loads.busiest_s()
    return tuple(best)


def _reversed(model: GridModel) -> GridModel:
    """Return the model with the directions of links interchanged."""
    rows = model.aggregate_bytes_per_s
    return replace(
        model,
        links=tuple(zip(*model.links, strict=True)),
        aggregate_bytes_per_s=tuple(zip(*rows, strict=True)) if rows else (),
    )


def hosts_of(model: GridModel) -> tuple[Platform, list[tuple[int, ...]], list[int]]:
    """Return the platform of ``model``, the ranks of each host, and the host of each rank."""
    platform, kinds = platform_of(model)
    hosts = [host for kind in kinds for host in kind]
    home = {rank: at for at, host in enumerate(hosts) for rank in host}
    return platform, hosts, [home[rank] for rank in range(model.grid.n_ranks)]


def packed_candidates(
    model: GridModel, n_bytes: int, planner: Planner, *, upwards: bool = False
) -> list[Candidate]:
    """Return one candidate, priced by simulation; none if it does not apply."""
    if not is_simulated(model, n_bytes):
        return []
    n = model.grid.n_ranks
    platform, hosts, home_of = hosts_of(model)
    down = _reversed(model) if upwards else model
    walk = TreeWalk(model, platform, n * n_bytes, UPWARDS if upwards else DOWNWARDS)
    n_segments = max(min(TOTAL_SEGMENTS // n, n_bytes // SMALLEST_SEGMENT), 1)
    uses = [(owner, 0) for _ in range(n_segments) for owner in range(n)]
    parents = min(
        (grow_trees(down, n_bytes, home_of, wait) for wait in WAITS),
        key=lambda trees: walk.total_s(trees, uses, 0.0),
    )
    trees = OwnedTrees(hosts, parents, [children_of(platform, tree) for tree in parents])
    segment = -(-n_bytes // n_segments)
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
