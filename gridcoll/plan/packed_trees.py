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
from typing import NamedTuple

import numpy as np

from gridcoll.constants import THIN_LINK, UNLIKE_INTERFACES, WINDOWS_LIMIT, WINDOWS_SURELY_LIMIT
from gridcoll.model.arborescence import shortest_paths
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.model.tree_packing import HostTree, Packing, Platform, pack_by_depth
from gridcoll.model.wires import links_of
from gridcoll.plan.meeting_trees import Met, meeting_trees
from gridcoll.plan.multi_tree import Node
from gridcoll.plan.tree_walk import Children, children_of, use_in_turns
from gridcoll.plan.trees import LARGEST_SEGMENT, SMALLEST_SEGMENT
from gridcoll.topology.grid import Grid

MOST_HOSTS, MOST_UNLIKE_HOSTS = 64, 512
"""Of grids whose parts are alike, where other plans are as good for more hosts; and of grids whose
parts are unlike."""

MOST_PACKED_CLUSTERS = 32
"""Packings are found among links: in 0.2 s for 32 unlike clusters, in up to 27 s for 50. With more,
single trees are all that is tried."""

LEAST_BYTES = 8 << 10

N_SEGMENTS = (8, 16, 32, 64, 128, 256, 512)

WAYS = (1.0, 1.12, 1.25, 1.4, 1.6, 2.2, np.inf)
"""Limits of the time to the farthest host, as multiples of the least possible one."""

MOST_GROWN = 3
MOST_MOVES = 8
LEAST_MOVE = 0.002
"""A host is moved to another place in a tree if that saves this part of the time."""

MOST_BUSY = 2 / 3
"""Where something is busy for more of the time, latency counts little: on three grids, tops that
meet saved a hundredth at most there, and a fifth below."""

SHORT_BYTES = 4 << 10
"""Path times are for a message of this length."""


@dataclass(frozen=True)
class PackedTrees:
    """Trees over all ranks, a tree and a turn of its hosts for each segment."""

    grid: Grid
    kinds: tuple[tuple[tuple[int, ...], ...], ...]
    """The ranks of each host, by kind of host."""
    trees: tuple[tuple[int, ...], ...]
    """The parents of the hosts, kind by kind; -1 for tops, which meet."""
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
        parents = self.trees[which]
        above = parents[place]
        below = tuple(self._sender(child, turn) for child in self.children[which][place])
        mates = tuple(other for other in self._hosts[host] if other != rank)
        if above >= 0:
            return Node(self._sender(above, turn), below + mates)
        tops = tuple(self._sender(top, turn) for top, up in enumerate(parents) if up < 0)
        return Node(-1, below + mates, tops if len(tops) > 1 else ())


@dataclass(frozen=True)
class Found:
    """The best packing so far, and its time."""

    trees: PackedTrees
    segment_bytes: int
    total_s: float
    period_s: float
    shares: tuple[float, ...]


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


class _Total(NamedTuple):
    """Total time, busy time of the busiest resource, and which host of which tree is last."""

    total_s: float
    busy_s: float
    tree: int
    host: int


class _TreeWork(NamedTuple):
    """What one segment makes of a tree over hosts."""

    order: list[int]
    """Hosts from the top down."""
    children: Children
    sends: FloatArray
    """Messages by host, (H,); both ways, those up the tree too."""
    links: FloatArray
    """Messages between clusters, (C, C)."""


class _Pricing:
    """Times of packings: depth of their trees, and load of hosts and links."""

    def __init__(self, model: GridModel, platform: Platform) -> None:
        self.model, self.platform = model, platform
        kinds = np.array(platform.kind_of)
        self.clusters = np.array(platform.clusters)[kinds]
        self.both_ways = platform.root < 0
        self._cluster_of = self.clusters.tolist()
        self._link_rates, self._uplinks = np.array(platform.links), np.array(platform.uplinks)
        firsts = np.searchsorted(kinds, kinds)
        self._at = (firsts, np.arange(len(kinds)) - firsts, np.array(platform.counts)[kinds])
        self._works: dict[HostTree, _TreeWork] = {}

    def _work(self, tree: HostTree) -> _TreeWork:
        """Kept: of the trees of a packing, one at a time is changed."""
        found = self._works.get(tree)
        if found is None:
            children = children_of(self.platform, tree.parents)
            order = [tree.parents.index(-1)]
            for host in order:
                order += children[host]
            parents = np.array(tree.parents)
            below = np.flatnonzero(parents >= 0)
            a, b = self.clusters[parents[below]], self.clusters[below]
            links = np.zeros((self.model.n_clusters, self.model.n_clusters))
            np.add.at(links, (a, b), a != b)
            sends = np.array([len(each) for each in children], float)
            if self.both_ways:
                links = links + links.T
                sends[below] += 1
            found = self._works[tree] = _TreeWork(order, children, sends, links)
        return found

    def total(
        self, trees: Sequence[HostTree], uses: Sequence[tuple[int, int]], segment_bytes: float
    ) -> _Total:
        """Time of all segments, on ``trees`` as in ``uses``.

        A host has its last segment when all have followed the first one at the rate of the slowest
        edge on its path. Both ways, segments come up to the top of the tree before.
        """
        which, turns = np.array(uses).T
        works = [self._work(tree) for tree in trees]
        gap_s, one_way_s = (
            each[:, :, 0] for each in self.model.gap_and_one_way_s(np.array([segment_bytes]))
        )
        by_host_s, links_s = self._busy_s(works, which, turns, segment_bytes, gap_s.diagonal())
        edges = [each.tolist() for each in (gap_s.diagonal(), one_way_s, by_host_s, links_s)]
        all_but_one = (len(uses) - 1) / len(uses)
        ends = []
        for tree in np.flatnonzero(np.bincount(which)).tolist():
            ways_s, paces_s = self._ways_s(works[tree], *edges)
            up_s = max(ways_s) if self.both_ways else 0.0
            last_s = [up_s + w + all_but_one * p for w, p in zip(ways_s, paces_s, strict=True)]
            ends.append((max(last_s), tree, last_s))
        total_s, tree, last_s = max(ends, key=lambda end: end[0])
        busy_s = max(float(by_host_s.max()), float(links_s.max()))
        return _Total(total_s, busy_s, tree, last_s.index(total_s))

    def _ways_s(
        self,
        work: _TreeWork,
        ports_s: list[float],
        hops_s: list[list[float]],
        busy_s: list[float],
        links_s: list[list[float]],
    ) -> tuple[list[float], list[float]]:
        """By host, a segment's way from the tree's top, and the slowest edge on that way."""
        cluster_of = self._cluster_of
        ways, paces = [0.0] * len(busy_s), list(busy_s)
        for host in work.order:
            a = cluster_of[host]
            start, port, hop, link, pace = (
                ways[host],
                ports_s[a],
                hops_s[a],
                links_s[a],
                paces[host],
            )
            for child in work.children[host]:
                c = cluster_of[child]
                ways[child] = start + hop[c]
                start += port
                paces[child] = max(pace, busy_s[child], link[c] if a != c else 0.0)
        return ways, paces

    def _busy_s(
        self,
        works: Sequence[_TreeWork],
        which: np.ndarray,
        turns: np.ndarray,
        segment_bytes: float,
        ports_s: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """How long each host's interface is busy, (H,), and each link, (C, C)."""
        firsts, places, counts = self._at
        moved = firsts + (places[None] - turns[:, None]) % counts[None]
        sends = np.array([work.sends for work in works])
        sent = sends[which[:, None], moved].sum(axis=0)
        received = len(which) if not self.both_ways else 0  # both ways: as many as are sent
        by_host_s = np.maximum(sent, received) * ports_s[self.clusters]
        n_uses = np.bincount(which, minlength=len(works))
        crossed = segment_bytes * sum(n * work.links for n, work in zip(n_uses, works, strict=True))
        leaves_s, enters_s = (crossed.sum(axis=k) / self._uplinks for k in (1, 0))
        shared_s = np.maximum(leaves_s[:, None], enters_s[None, :])
        return by_host_s, np.maximum(crossed / self._link_rates, shared_s)


def best_packed(model: GridModel, n_bytes: int, root: int = -1) -> Found | None:
    """The fastest packing and number of segments; None if there is no tree."""
    platform, kinds = platform_of(model, root)
    pricing = _Pricing(model, platform)
    best: _Tried | None = None
    grown = grown_trees(platform, n_bytes)
    packings = _packings(platform) if model.n_clusters <= MOST_PACKED_CLUSTERS else ()
    for packing in (*grown, *reversed(packings)):
        if best is None or packing.busy_s * n_bytes < best.total.total_s:
            best = _best_cut(pricing, packing, n_bytes, best)
    if best is None:
        return None
    mended = _mended(pricing, best)
    if mended.packing is not best.packing:
        mended = _best_cut(pricing, mended.packing, n_bytes, mended) or mended
    packing, total = mended.packing, mended.total
    parents = tuple(tree.parents for tree in packing.trees)
    found = Met(total.total_s, parents, packing.shares, len(mended.uses), total.busy_s)
    if root < 0 and is_unlike(model) and total.busy_s < MOST_BUSY * total.total_s:
        found = meeting_trees(model, platform, n_bytes, found)
    uses, n = use_in_turns(found.shares, found.n_segments), found.n_segments
    children = tuple(children_of(platform, tree) for tree in found.trees)
    trees = PackedTrees(model.grid, kinds, found.trees, uses, children, root)
    return Found(trees, -(-n_bytes // n), found.total_s, found.sent_s / n, found.shares)


class _Tried(NamedTuple):
    """A packing with the uses of its trees, and its time."""

    packing: Packing
    uses: tuple[tuple[int, int], ...]
    segment_bytes: int
    total: _Total


def _best_cut(
    pricing: _Pricing, packing: Packing, n_bytes: int, best: _Tried | None
) -> _Tried | None:
    """The best number of segments for ``packing``, if it is faster than ``best``."""
    for n in N_SEGMENTS:
        segment = -(-n_bytes // n)
        if not SMALLEST_SEGMENT // 2 <= segment <= LARGEST_SEGMENT:
            continue
        uses = use_in_turns(packing.shares, n)
        total = pricing.total(packing.trees, uses, segment)
        if best is None or total.total_s < best.total.total_s:
            best = _Tried(packing, uses, segment, total)
    return best


@lru_cache(maxsize=256)
def grown_trees(platform: Platform, n_bytes: int) -> tuple[Packing, ...]:
    """From each good top, a single tree that takes the edge with the earliest end first.

    Where latency counts as much as bandwidth, neither shortest paths nor packings are best.
    """
    hops, clusters = np.array(platform.hops_s), np.array(platform.clusters)
    far_s = shortest_paths(hops)[np.ix_(clusters, clusters)].max(axis=1)
    tops = [platform.root]
    if platform.root < 0:
        tops = sorted(range(len(clusters)), key=lambda k: (far_s[k], k))[:MOST_GROWN]
    return tuple(_grown(platform, n_bytes, top) for top in tops)


def _grown(platform: Platform, n_bytes: int, top: int) -> Packing:
    kinds = np.array(platform.kind_of)
    counts, of_kind = np.array(platform.counts), np.array(platform.clusters)
    clusters, n, n_kinds = of_kind[kinds], len(kinds), len(counts)
    both_ways = platform.root < 0
    # Hosts of a kind take turns: each has its part of what the kind sends.
    port_s = n_bytes / np.array(platform.rates) / counts
    links_s = n_bytes / np.array(platform.links)
    np.fill_diagonal(links_s, 0.0)
    hop_s = (1 + both_ways) * np.array(platform.hops_s)[np.ix_(clusters, of_kind)]
    parents, taken = [-1] * n, np.zeros(n, dtype=bool)
    way_s, busy_s, pipe_s = np.zeros(n), np.zeros(n_kinds), np.zeros_like(links_s)
    # Of the hosts of a kind that are left, the first is as good as any.
    following, left = np.searchsorted(kinds, np.arange(n_kinds)), counts.copy()

    def take(kind: int) -> int:
        host = int(following[kind])
        following[kind] += 1
        left[kind] -= 1
        taken[host] = True
        return host

    take(top)
    for _ in range(n - 1):
        used_s = busy_s + port_s
        sends_s = used_s[kinds][:, None]
        if both_ways:
            sends_s = np.maximum(sends_s, used_s)
        pipes_s = (pipe_s + links_s)[np.ix_(clusters, of_kind)]
        done_s = np.maximum(sends_s, pipes_s) + way_s[:, None] + hop_s
        done_s = np.where(taken[:, None] & (left > 0), done_s, np.inf)
        sender, kind = divmod(int(np.argmin(done_s)), n_kinds)
        new = take(kind)
        parents[new] = sender
        way_s[new] = way_s[sender] + hop_s[sender, kind]
        busy_s[kinds[sender]] += port_s[kinds[sender]]
        busy_s[kind] += both_ways * port_s[kind]
        pipe_s[clusters[sender], of_kind[kind]] += links_s[clusters[sender], of_kind[kind]]
    return Packing((HostTree(tuple(parents)),), (1.0,), 0.0, 0.0)


def _mended(pricing: _Pricing, best: _Tried) -> _Tried:
    """Move the host that ends last below another one, as long as that helps."""
    platform = pricing.platform
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
                found = pricing.total(trees, best.uses, best.segment_bytes)
                if found.total_s < best.total.total_s * (1 - LEAST_MOVE):
                    best = best._replace(packing=replace(packing, trees=tuple(trees)), total=found)
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
    far = shortest_paths(np.array(platform.hops_s))
    starts = [platform.root] if platform.root >= 0 else range(len(clusters))
    least = min(float(far[clusters[kind]][clusters].max()) for kind in starts)
    return pack_by_depth(platform, tuple(least * part * (1 + 1e-9) for part in WAYS))


def label_of(found: Found) -> str:
    """How many trees, and which part the largest has."""
    used = len({tree for tree, _ in found.trees.uses})
    tops = max(tree.count(-1) for tree in found.trees.trees)
    meet = f" of {tops} tops that meet" if tops > 1 else ""
    share = max(found.shares)
    return f"1 tree{meet}" if used == 1 else f"{used} trees{meet}, {share:.0%} over one"


def is_offered(model: GridModel, n_bytes: int) -> bool:
    """Whether packed trees are worth trying: not too many hosts, no limiting window."""
    n_hosts = sum(len(cluster.nodes) for cluster in model.grid.clusters)
    most = MOST_UNLIKE_HOSTS if is_unlike(model) else MOST_HOSTS
    if not 2 < n_hosts <= most or n_bytes < LEAST_BYTES or model.n_clusters < 2:
        return False
    return not _more_than_a_flow(model, WINDOWS_SURELY_LIMIT).any()


def _more_than_a_flow(model: GridModel, times: float) -> np.ndarray:
    """Between which clusters two hosts could send more than ``times`` what a flow carries."""
    flows, rates = model.flow_bytes_per_s, model.flow_bytes_per_s.diagonal()
    could = np.minimum(np.minimum(rates[:, None], rates[None]), model.link_bytes_per_s)
    return np.asarray(could > times * flows)


def _usable_links(model: GridModel) -> FloatArray:
    """Bandwidth of links; a flow's, where windows may limit it: a tree has one at a time."""
    limited = _more_than_a_flow(model, WINDOWS_LIMIT)
    return np.where(limited, model.flow_bytes_per_s, links_of(model))
