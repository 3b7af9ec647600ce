"""Packed trees: each carries a share of the message that fits interfaces and links.

`model.tree_packing` finds the trees over hosts, and the share of each. Segments use the trees in
turn, in proportion to the shares; each time, hosts of a cluster change places in the tree, so that
all of them are equally busy. Hosts with slow interfaces are leaves where possible.

Trees of small depth have less bandwidth, those with most bandwidth may be deep. So packings for a
few limits of the depth in seconds are priced, and the fastest for this message is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from heapq import heapify, heapreplace
from typing import NamedTuple

import numpy as np

from gridcoll.constants import (
    THIN_LINK,
    UNLIKE_INTERFACES,
    WINDOWS_LIMIT,
    WINDOWS_SURELY_LIMIT,
)
from gridcoll.model.arborescence import shortest_ways
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.model.tree_packing import HostTree, Packing, Platform, pack_by_way
from gridcoll.model.wires import links_of
from gridcoll.plan.multi_tree import Node
from gridcoll.plan.trees import LARGEST_SEGMENT, SMALLEST_SEGMENT
from gridcoll.topology.grid import Grid

MOST_HOSTS = 64
"""Every rank looks at all edges between hosts."""

LEAST_BYTES = 8 << 10

N_SEGMENTS = (8, 16, 32, 64, 128, 256, 512)

WAYS = (1.0, 1.12, 1.25, 1.4, 1.6, 2.2, np.inf)
"""Limits of the time to the farthest host, as multiples of the least possible one."""

MOST_GROWN = 3
MOST_MOVES = 8
LEAST_MOVE = 0.002
"""A host is moved to another place in a tree if that saves this part of the time."""

SHORT_BYTES = 4 << 10
"""Path times are for a message of this length."""


Children = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class PackedTrees:
    """Trees over all ranks, a tree and a turn of its hosts for each segment."""

    grid: Grid
    kinds: tuple[tuple[tuple[int, ...], ...], ...]
    """The ranks of each host, by kind of host."""
    trees: tuple[HostTree, ...]
    """Over the hosts, kind by kind."""
    uses: tuple[tuple[int, int], ...]
    """By segment: which tree, and how many places hosts have moved on."""
    children: tuple[Children, ...]
    """By tree and host, those below it, as they are served."""
    root: int = -1
    """-1 for none."""

    @cached_property
    def _hosts(self) -> list[tuple[int, ...]]:
        return [host for hosts in self.kinds for host in hosts]

    @cached_property
    def _host_of(self) -> dict[int, int]:
        return {rank: at for at, ranks in enumerate(self._hosts) for rank in ranks}

    @cached_property
    def _numbers(self) -> dict[tuple[int, int], int]:
        return {use: number for number, use in enumerate(dict.fromkeys(self.uses))}

    def tree_of(self, segment: int) -> int:
        return self._numbers[self.uses[segment % len(self.uses)]]

    def _sender(self, place: int, turn: int) -> int:
        """The rank that sends for the host at ``place`` when hosts have moved ``turn`` on."""
        first = 0
        for hosts in self.kinds:
            if place < first + len(hosts):
                ranks = hosts[(place - first + turn) % len(hosts)]
                return self.root if self.root in ranks else ranks[turn % len(ranks)]
            first += len(hosts)
        raise IndexError(place)

    def _place(self, host: int, turn: int) -> int:
        first = 0
        for hosts in self.kinds:
            if host < first + len(hosts):
                return first + (host - first - turn) % len(hosts)
            first += len(hosts)
        raise IndexError(host)

    def node(self, rank: int, tree: int) -> Node:
        """The place of ``rank`` in the ``tree`` of some segments; host-mates come last."""
        which, turn = list(self._numbers)[tree]
        host = self._host_of[rank]
        place = self._place(host, turn)
        sender = self._sender(place, turn)
        if rank != sender:
            return Node(sender, ())
        above = self.trees[which].parents[place]
        below = tuple(self._sender(child, turn) for child in self.children[which][place])
        mates = tuple(other for other in self._hosts[host] if other != rank)
        return Node(self._sender(above, turn) if above >= 0 else -1, below + mates)


def children_of(platform: Platform, tree: HostTree) -> Children:
    """By host, those below it, the one with the longest path to its last descendant first."""
    below: list[list[int]] = [[] for _ in tree.parents]
    for child, parent in enumerate(tree.parents):
        if parent >= 0:
            below[parent].append(child)
    order = [tree.parents.index(-1)]
    for host in order:
        order += below[host]
    cluster = [platform.clusters[kind] for kind in platform.kind_of]
    way_s = [0.0] * len(order)
    for host in reversed(order):
        hops_s = platform.hops_s[cluster[host]]
        way_s[host] = max((hops_s[cluster[c]] + way_s[c] for c in below[host]), default=0.0)
    hops = platform.hops_s
    return tuple(
        tuple(sorted(each, key=lambda c, a=cluster[host]: (-hops[a][cluster[c]] - way_s[c], c)))  # type: ignore[misc]
        for host, each in enumerate(below)
    )


@dataclass(frozen=True)
class Found:
    """The best packing so far, and its time."""

    trees: PackedTrees
    segment_bytes: int
    total_s: float
    period_s: float
    packing: Packing


def is_unlike(model: GridModel) -> bool:
    """Whether interfaces or links differ so much that equal shares would wait for the slowest."""
    rates = model.flow_bytes_per_s.diagonal()
    if rates.max() > UNLIKE_INTERFACES * rates.min():
        return True
    between = model.link_bytes_per_s[~np.eye(model.n_clusters, dtype=bool)]
    return bool(len(between) and between.min() < THIN_LINK * rates.max())


def platform_of(
    model: GridModel, root: int = -1
) -> tuple[Platform, tuple[tuple[tuple[int, ...], ...], ...]]:
    """Kinds of hosts of ``model``, that of ``root`` alone, and their ranks."""
    counts: list[int] = []
    clusters: list[int] = []
    kinds: list[tuple[tuple[int, ...], ...]] = []
    root_kind = -1
    for c, cluster in enumerate(model.grid.clusters):
        hosts = [tuple(process.rank for process in node) for node in cluster.nodes]
        own = [host for host in hosts if root in host]
        for group in (own, [host for host in hosts if root not in host]):
            if group:
                root_kind = len(kinds) if group is own else root_kind
                counts.append(len(group))
                clusters.append(c)
                kinds.append(tuple(group))
    rates = model.flow_bytes_per_s.diagonal()
    hops_s = model.latency_s + model.gap_s(SHORT_BYTES)
    platform = Platform(
        tuple(counts),
        tuple(clusters),
        tuple(float(rates[c]) for c in clusters),
        tuple(map(tuple, _usable_links(model).tolist())),
        tuple(model.uplinks.tolist()),
        tuple(map(tuple, hops_s.tolist())),
        root_kind,
    )
    return platform, tuple(kinds)


@lru_cache(maxsize=256)
def use_in_turns(shares: tuple[float, ...], n: int) -> tuple[tuple[int, int], ...]:
    """Which tree each of ``n`` segments takes, and how many places its hosts have moved on.

    At any time the numbers of segments are as close to the shares as possible: a tree's next
    segment is due in the middle of the interval that it stands for.
    """
    due = [(0.5 / share, tree, 0) for tree, share in enumerate(shares) if share > 0]
    heapify(due)
    found = []
    for _ in range(n):
        _, tree, turn = due[0]
        heapreplace(due, (round((turn + 1.5) / shares[tree], 6), tree, turn + 1))
        found.append((tree, turn))
    return tuple(found)


class _Total(NamedTuple):
    """Total time, busy time of the busiest resource, and which host of which tree is last."""

    total_s: float
    busy_s: float
    tree: int
    host: int


class _Pricing:
    """Costs of one packing: depth of its trees, and load of hosts and links."""

    def __init__(self, model: GridModel, platform: Platform, packing: Packing) -> None:
        self.model, self.platform, self.packing = model, platform, packing
        self.kinds = np.array(platform.kind_of)
        self.clusters = np.array(platform.clusters)[self.kinds]
        self.both_ways = platform.root < 0
        self._link_rates, self._uplinks = np.array(platform.links), np.array(platform.uplinks)
        n = len(self.kinds)
        firsts = np.searchsorted(self.kinds, self.kinds)
        counts = np.array(platform.counts)[self.kinds]
        self._at = (firsts, np.arange(n) - firsts, counts)
        self.sends = np.zeros((len(packing.trees), n), dtype=int)
        self.links = np.zeros((len(packing.trees), model.n_clusters, model.n_clusters))
        for k, tree in enumerate(packing.trees):
            for child, parent in enumerate(tree.parents):
                if parent >= 0:
                    self.sends[k, parent] += 1
                    a, b = self.clusters[parent], self.clusters[child]
                    self.links[k, a, b] += a != b
                    if self.both_ways:
                        self.sends[k, child] += 1
                        self.links[k, b, a] += a != b

    def total(self, uses: Sequence[tuple[int, int]], segment_bytes: float) -> _Total:
        """Time of all segments, on trees as in ``uses``.

        A host has its last segment when all have followed the first one at the rate of the slowest
        edge on its path. Both ways, segments come up to the top of the tree before.
        """
        by_host_s, links_s = self._busy_s(uses, segment_bytes)
        ways_s, paces_s = self._ways_s(segment_bytes, by_host_s, links_s)
        all_but_one = (len(uses) - 1) / len(uses)
        busy_s = max(float(by_host_s.max()), float(links_s.max()))
        if self.both_ways:
            ways_s = ways_s + ways_s.max(axis=1, keepdims=True)
        last_s = ways_s + all_but_one * paces_s
        used = np.isin(np.arange(len(last_s)), [tree for tree, _ in uses])
        last_s = np.where(used[:, None], last_s, 0.0)
        tree, host = divmod(int(np.argmax(last_s)), last_s.shape[1])
        return _Total(float(last_s[tree, host]), busy_s, tree, host)

    def _ways_s(
        self, segment_bytes: float, by_host_s: FloatArray, links_s: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """A segment's way from each tree's top to its hosts, and the slowest edge, (T, H)."""
        gap_s, one_way_s = (
            each[:, :, 0] for each in self.model.gap_and_one_way_s(np.array([segment_bytes]))
        )
        port_s, hop_s = gap_s.diagonal().tolist(), one_way_s.tolist()
        clusters, busy_s, link_s = self.clusters.tolist(), by_host_s.tolist(), links_s.tolist()
        ways_s, paces_s = [], []
        for order, children in self._orders:
            way, pace = [0.0] * len(clusters), list(busy_s)
            for host in order:
                a = clusters[host]
                for k, child in enumerate(children[host]):
                    c = clusters[child]
                    way[child] = way[host] + k * port_s[a] + hop_s[a][c]
                    pace[child] = max(pace[host], busy_s[child], link_s[a][c] if a != c else 0.0)
            ways_s.append(way)
            paces_s.append(pace)
        return np.array(ways_s), np.array(paces_s)

    @cached_property
    def _orders(self) -> list[tuple[list[int], Children]]:
        """By tree, hosts from the top down, and those below each."""
        found = []
        for tree in self.packing.trees:
            children = children_of(self.platform, tree)
            order = [tree.parents.index(-1)]
            for host in order:
                order += children[host]
            found.append((order, children))
        return found

    def _busy_s(
        self, uses: Sequence[tuple[int, int]], segment_bytes: float
    ) -> tuple[FloatArray, FloatArray]:
        """How long each host's interface is busy, (H,), and each link, (C, C)."""
        which = np.array([tree for tree, _ in uses])
        turns = np.array([turn for _, turn in uses])
        firsts, places, counts = self._at
        moved = firsts + (places[None] - turns[:, None]) % counts[None]
        sent = np.take_along_axis(self.sends[which], moved, axis=1).sum(axis=0)
        gap_s = self.model.gap_and_one_way_s(np.array([segment_bytes]))[0][:, :, 0]
        port_s = gap_s.diagonal()[self.clusters]
        received = len(uses) if not self.both_ways else 0  # both ways: as many as are sent
        by_host_s = np.maximum(sent, received) * port_s
        crossed = self.links[which].sum(axis=0) * segment_bytes
        leaves_s, enters_s = (crossed.sum(axis=k) / self._uplinks for k in (1, 0))
        shared_s = np.maximum(leaves_s[:, None], enters_s[None, :])
        return by_host_s, np.maximum(crossed / self._link_rates, shared_s)


def best_packed(model: GridModel, n_bytes: int, root: int = -1) -> Found | None:
    """The fastest packing and number of segments; None if there is no tree."""
    platform, kinds = platform_of(model, root)
    best: _Tried | None = None
    grown = grown_trees(platform, n_bytes)
    for packing in (*grown, *reversed(_packings(platform))):
        if best is None or packing.busy_s * n_bytes < best.total.total_s:
            best = _best_cut(model, platform, packing, n_bytes, best)
    if best is None:
        return None
    mended = _mended(model, platform, best)
    if mended.packing is not best.packing:
        mended = _best_cut(model, platform, mended.packing, n_bytes, mended) or mended
    packing, uses, total = mended.packing, mended.uses, mended.total
    children = tuple(children_of(platform, tree) for tree in packing.trees)
    trees = PackedTrees(model.grid, kinds, packing.trees, uses, children, root)
    segment, n = mended.segment_bytes, len(uses)
    return Found(trees, segment, total.total_s, total.busy_s / n, packing)


class _Tried(NamedTuple):
    """A packing with the uses of its trees, and its time."""

    packing: Packing
    uses: tuple[tuple[int, int], ...]
    segment_bytes: int
    total: _Total


def _best_cut(
    model: GridModel, platform: Platform, packing: Packing, n_bytes: int, best: _Tried | None
) -> _Tried | None:
    """The best number of segments for ``packing``, if it is faster than ``best``."""
    pricing = _Pricing(model, platform, packing)
    for n in N_SEGMENTS:
        segment = -(-n_bytes // n)
        if not SMALLEST_SEGMENT // 2 <= segment <= LARGEST_SEGMENT:
            continue
        uses = use_in_turns(packing.shares, n)
        total = pricing.total(uses, segment)
        if best is None or total.total_s < best.total.total_s:
            best = _Tried(packing, uses, segment, total)
    return best


@lru_cache(maxsize=256)
def grown_trees(platform: Platform, n_bytes: int) -> tuple[Packing, ...]:
    """From each good top, a single tree that takes the edge with the earliest end first.

    Where latency counts as much as bandwidth, neither shortest paths nor packings are best.
    """
    hops, clusters = np.array(platform.hops_s), np.array(platform.clusters)
    far_s = shortest_ways(hops)[np.ix_(clusters, clusters)].max(axis=1)
    tops = [platform.root]
    if platform.root < 0:
        tops = sorted(range(len(clusters)), key=lambda k: (far_s[k], k))[:MOST_GROWN]
    return tuple(_grown(platform, n_bytes, top) for top in tops)


def _grown(platform: Platform, n_bytes: int, top: int) -> Packing:
    kinds = np.array(platform.kind_of)
    counts, of_kind = np.array(platform.counts), np.array(platform.clusters)
    clusters, n = of_kind[kinds], len(kinds)
    both_ways = platform.root < 0
    # Hosts of a kind take turns: each has its part of what the kind sends.
    port_s = (n_bytes / np.array(platform.rates) / counts)[kinds]
    links_s = n_bytes / np.array(platform.links)
    np.fill_diagonal(links_s, 0.0)
    hop_s = (1 + both_ways) * np.array(platform.hops_s)[np.ix_(clusters, clusters)]
    first = int(np.searchsorted(kinds, top))
    parents, left = [-1] * n, np.ones(n, dtype=bool)
    way_s, busy_s, pipe_s = np.zeros(n), np.zeros(len(counts)), np.zeros_like(links_s)
    left[first] = False
    for _ in range(n - 1):
        sends_s = (busy_s[kinds] + port_s)[:, None]
        if both_ways:
            sends_s = np.maximum(sends_s, sends_s.T)
        pipes_s = (pipe_s + links_s)[np.ix_(clusters, clusters)]
        done_s = np.maximum(sends_s, pipes_s) + way_s[:, None] + hop_s
        done_s = np.where(left[None, :] & ~left[:, None], done_s, np.inf)
        sender, new = divmod(int(np.argmin(done_s)), n)
        parents[new], left[new] = sender, False
        way_s[new] = way_s[sender] + hop_s[sender, new]
        busy_s[kinds[sender]] += port_s[sender]
        busy_s[kinds[new]] += both_ways * port_s[new]
        pipe_s[clusters[sender], clusters[new]] += links_s[clusters[sender], clusters[new]]
    return Packing((HostTree(tuple(parents)),), (1.0,), 0.0, 0.0)


def _mended(model: GridModel, platform: Platform, best: _Tried) -> _Tried:
    """Move the host that ends last below another one, as long as that helps."""
    firsts = np.searchsorted(np.array(platform.kind_of), np.arange(len(platform.counts))).tolist()
    for _ in range(MOST_MOVES):
        packing, total = best.packing, best.total
        parents = packing.trees[total.tree].parents
        if parents[total.host] < 0:
            break
        kind, beside = platform.kind_of[total.host], parents[total.host]
        alike = [
            h for h, above in enumerate(parents) if above == beside and platform.kind_of[h] == kind
        ]
        before = best
        for moved in (alike, [total.host]):
            for above in firsts:
                if above == beside or _is_below(parents, above, moved):
                    continue
                other = list(parents)
                for host in moved:
                    other[host] = above
                trees = list(packing.trees)
                trees[total.tree] = HostTree(tuple(other))
                tried = replace(packing, trees=tuple(trees))
                found = _Pricing(model, platform, tried).total(best.uses, best.segment_bytes)
                if found.total_s < best.total.total_s * (1 - LEAST_MOVE):
                    best = best._replace(packing=tried, total=found)
        if best is before:
            break
    return best


def _is_below(parents: Sequence[int], host: int, tops: Sequence[int]) -> bool:
    """Whether ``host`` is one of ``tops``, or below one."""
    while host >= 0:
        if host in tops:
            return True
        host = parents[host]
    return False


def _packings(platform: Platform) -> tuple[Packing, ...]:
    """Different packings, by the limit of the depth."""
    clusters = np.array(platform.clusters)
    far = shortest_ways(np.array(platform.hops_s))
    starts = [platform.root] if platform.root >= 0 else range(len(clusters))
    least = min(float(far[clusters[kind]][clusters].max()) for kind in starts)
    return pack_by_way(platform, tuple(least * part * (1 + 1e-9) for part in WAYS))


def label_of(found: Found) -> str:
    """How many trees, and which part the largest has."""
    used = len({tree for tree, _ in found.trees.uses})
    share = max(found.packing.shares)
    return "1 tree" if used == 1 else f"{used} trees, {share:.0%} over one"


def is_offered(model: GridModel, n_bytes: int) -> bool:
    """Whether packed trees are worth trying: unlike parts, few hosts, no limiting window."""
    n_hosts = sum(len(cluster.nodes) for cluster in model.grid.clusters)
    if not 2 < n_hosts <= MOST_HOSTS or n_bytes < LEAST_BYTES or model.n_clusters < 2:
        return False
    return is_unlike(model) and not _more_than_a_flow(model, WINDOWS_SURELY_LIMIT).any()


def _more_than_a_flow(model: GridModel, times: float) -> np.ndarray:
    """Between which clusters two hosts could send more than ``times`` what a flow carries."""
    flows, rates = model.flow_bytes_per_s, model.flow_bytes_per_s.diagonal()
    could = np.minimum(np.minimum(rates[:, None], rates[None]), model.link_bytes_per_s)
    return np.asarray(could > times * flows)


def _usable_links(model: GridModel) -> FloatArray:
    """Bandwidth of links; a flow's, where windows may limit it: a tree has one at a time."""
    limited = _more_than_a_flow(model, WINDOWS_LIMIT)
    return np.where(limited, model.flow_bytes_per_s, links_of(model))
