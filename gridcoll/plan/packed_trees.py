"""Packed trees: each carries a share of the message that fits interfaces and links.

`model.tree_packing` finds the trees over hosts, and the share of each. Segments use the trees in
turn, in proportion to the shares. Each time, hosts of a cluster change places in the tree, so that
all of them are equally busy. Hosts with slow interfaces are leaves where possible.

In an allreduce, every edge of a tree carries one message each way. At the top this need not be one
after the other: the top and the child with the longest path below it exchange partial results, so
that a segment takes no longer than the longest path of the tree. From one top it would take twice
the way to the farthest host.

Trees of small depth have less bandwidth, and those with the most bandwidth may be deep. So packings
for a few limits of the depth (in seconds) are priced, and the fastest for this message is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.constants import THIN_LINK, WINDOWS_LIMIT, WINDOWS_SURELY_LIMIT
from gridcoll.model.arborescence import shortest_paths
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.model.tree_packing import HostTree, Packing, Platform, pack_by_depth
from gridcoll.model.wires import links_of
from gridcoll.plan.meeting_trees import meeting_trees
from gridcoll.plan.multi_tree import Node
from gridcoll.plan.split_shares import MOST_SPLIT, split_shares
from gridcoll.plan.tree_search import TimedTrees, is_worth_a_search, rooted_trees
from gridcoll.plan.tree_walk import Children, children_of, use_in_turns
from gridcoll.plan.trees import LARGEST_SEGMENT, SMALLEST_SEGMENT
from gridcoll.topology.grid import Grid

MOST_HOSTS, MOST_UNLIKE_HOSTS = 64, 512
"""Packed trees are offered for at most so many hosts: the first number holds if interfaces and
links are similar, where other plans are as good for more hosts; the second if they differ."""

MOST_PACKED_CLUSTERS = 32
"""Packings are computed for at most so many clusters: that takes 0.2 s for 32 clusters that differ,
up to 27 s for 50. With more clusters, only single trees are tried."""

LEAST_BYTES = 8 << 10
"""Packed trees are not offered for shorter messages."""

N_SEGMENTS = (8, 16, 32, 64, 128, 256, 512)
"""Numbers of segments that are tried."""

MORE_SEGMENTS_GAIN = 0.02
"""In an allreduce, more segments must save at least this fraction of the time. Twice as many keep
processors twice as busy with combining and passing on, which the model does not see: 1 MiB on
`patchwork` in segments of 2 KiB, predicted 1.6 % faster than in segments of 4 KiB, took up to 1.4
times as long under Open MPI. Broadcasts gain from short segments what is predicted."""

DEPTH_LIMITS = (1.0, 1.12, 1.25, 1.4, 1.6, 2.2, np.inf)
"""Limits of the time to the farthest host, as multiples of the least possible time."""

MOST_GROWN = 3
"""How many of the most central kinds of hosts single trees are grown from."""

MOST_MOVES = 8
LEAST_GAIN = 0.002
"""Hosts are moved to another place in a tree at most `MOST_MOVES` times, and only if that saves at
least the fraction `LEAST_GAIN` of the time."""

SHORT_BYTES = 4 << 10
"""Path times are for a message of this length."""


class PackedTrees(Struct, frozen=True, dict=True):
    """Trees over all ranks. Each segment uses one of them, with its hosts rotated by some places.

    The hosts of a tree are numbered kind by kind. A place of the tree is such a number.
    """

    grid: Grid
    kinds: tuple[tuple[tuple[int, ...], ...], ...]
    """``kinds[kind][host]``: the ranks of a host."""
    trees: tuple[tuple[int, ...], ...]
    """``trees[tree][host]``: the parent of a host; -1 for tops, which meet."""
    uses: tuple[tuple[int, int], ...]
    """For each segment, its tree, and by how many places hosts are rotated within their kind."""
    children: tuple[Children, ...]
    """``children[tree][host]``: the hosts below a host, in the order in which it sends to them."""
    root: int = -1
    """The root rank, or -1 if there is none."""

    @cached_property
    def _hosts(self) -> list[tuple[int, ...]]:
        return [host for hosts in self.kinds for host in hosts]

    @cached_property
    def _host_of(self) -> dict[int, int]:
        return {rank: at for at, ranks in enumerate(self._hosts) for rank in ranks}

    @cached_property
    def _tree_numbers(self) -> dict[tuple[int, int], int]:
        return {use: number for number, use in enumerate(dict.fromkeys(self.uses))}

    def tree_of(self, segment: int) -> int:
        return self._tree_numbers[self.uses[segment % len(self.uses)]]

    def _kind_at(self, place: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        """Return the first place of the kind that ``place`` belongs to, and the kind's hosts."""
        first = 0
        for hosts in self.kinds:
            if place < first + len(hosts):
                return first, hosts
            first += len(hosts)
        raise IndexError(place)

    def _sender(self, place: int, turn: int) -> int:
        """Return the rank that sends for the host at ``place`` if hosts are rotated by ``turn``."""
        first, hosts = self._kind_at(place)
        ranks = hosts[(place - first + turn) % len(hosts)]
        return self.root if self.root in ranks else ranks[turn % len(ranks)]

    def _place(self, host: int, turn: int) -> int:
        """Return the place of ``host`` if hosts are rotated by ``turn``."""
        first, hosts = self._kind_at(host)
        return first + (host - first - turn) % len(hosts)

    def node(self, rank: int, tree: int) -> Node:
        """Return the node of ``rank`` in ``tree``, a number from `tree_of`.

        Other ranks of the same host are its last children.
        """
        which, turn = list(self._tree_numbers)[tree]
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


class PricedPacking(Struct, frozen=True):
    """The best packing, with its predicted time.

    Ranks send their own data no faster than one segment each ``period_s``.
    """

    trees: PackedTrees
    segment_bytes: int
    total_s: float
    period_s: float
    shares: tuple[float, ...]


def is_unlike(model: GridModel) -> bool:
    """Whether interfaces or links differ so much that equal shares would wait for the slowest."""
    if model.has_unlike_interfaces:
        return True
    between = model.link_bytes_per_s[~np.eye(model.n_clusters, dtype=bool)]
    fastest = model.flow_bytes_per_s.diagonal().max()
    return bool(len(between) and between.min() < THIN_LINK * fastest)


def platform_of(
    model: GridModel, root: int = -1
) -> tuple[Platform, tuple[tuple[tuple[int, ...], ...], ...]]:
    """Return the kinds of hosts of ``model`` and the ranks of each host, by kind.

    The host of ``root`` is a kind of its own.
    """
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


def _top_mate(children: Children, top: int) -> int:
    """Return the child that meets ``top`` in an allreduce: the one with the longest path below."""
    return children[top][0]


class _Total(NamedTuple):
    """Total time, busy time of the busiest resource, and the host of which tree that ends last."""

    total_s: float
    busy_s: float
    tree: int
    host: int


class _TreeLoad(NamedTuple):
    """The messages that one segment causes in a tree over hosts."""

    order: list[int]
    """Hosts from the top down."""
    children: Children
    sends: FloatArray
    """Messages that each host sends, (H,); those up the tree count for trees used both ways."""
    links: FloatArray
    """Messages between clusters, (C, C)."""


class _Pricing:
    """Predicts times of packings from the depth of their trees and the load of hosts and links."""

    def __init__(self, model: GridModel, platform: Platform) -> None:
        self.model, self.platform = model, platform
        kinds = np.array(platform.kind_of)
        self.clusters = np.array(platform.clusters)[kinds]
        self.both_ways = platform.root < 0
        self._cluster_of = self.clusters.tolist()
        self._link_rates, self._uplinks = np.array(platform.links), np.array(platform.uplinks)
        firsts = np.searchsorted(kinds, kinds)
        self._places = (firsts, np.arange(len(kinds)) - firsts, np.array(platform.counts)[kinds])
        self._loads: dict[HostTree, _TreeLoad] = {}

    def _load(self, tree: HostTree) -> _TreeLoad:
        """Return the load of ``tree``. It is cached, since trees are changed one at a time."""
        found = self._loads.get(tree)
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
            found = self._loads[tree] = _TreeLoad(order, children, sends, links)
        return found

    def total(
        self, trees: Sequence[HostTree], uses: Sequence[tuple[int, int]], segment_bytes: float
    ) -> _Total:
        """Return the time of all segments, on ``trees`` as in ``uses``.

        A host has its last segment when all have followed the first one at the rate of the slowest
        edge on its path. In an allreduce, segments go up the tree first, and two tops meet.
        """
        which, turns = np.array(uses).T
        loads = [self._load(tree) for tree in trees]
        gap_s, one_way_s = (
            each[:, :, 0] for each in self.model.gap_and_one_way_s(np.array([segment_bytes]))
        )
        by_host_s, links_s = self._busy_s(loads, which, turns, segment_bytes, gap_s.diagonal())
        edges = [each.tolist() for each in (gap_s.diagonal(), one_way_s, by_host_s, links_s)]
        all_but_one = (len(uses) - 1) / len(uses)
        ends = []
        for tree in np.flatnonzero(np.bincount(which)).tolist():
            paths_s, periods_s = self._paths_s(loads[tree], *edges)
            last_s = [
                path + all_but_one * period for path, period in zip(paths_s, periods_s, strict=True)
            ]
            ends.append((max(last_s), tree, last_s))
        total_s, tree, last_s = max(ends, key=lambda end: end[0])
        busy_s = max(float(by_host_s.max()), float(links_s.max()))
        return _Total(total_s, busy_s, tree, last_s.index(total_s))

    def _paths_s(
        self,
        load: _TreeLoad,
        ports_s: list[float],
        hops_s: list[list[float]],
        busy_s: list[float],
        links_s: list[list[float]],
    ) -> tuple[list[float], list[float]]:
        """Return, for each host, when it has the first segment, and the period of the slowest edge
        between it and the top.
        """
        cluster_of = self._cluster_of
        paths, periods, top = [0.0] * len(busy_s), list(busy_s), load.order[0]
        mate = _top_mate(load.children, top) if self.both_ways else -1
        below = [False] * len(busy_s)  # whether a host is the mate, or below it
        for host in load.order:
            a = cluster_of[host]
            start, port, hop, link, period = (
                paths[host],
                ports_s[a],
                hops_s[a],
                links_s[a],
                periods[host],
            )
            for child in load.children[host]:
                c = cluster_of[child]
                periods[child] = max(period, busy_s[child], link[c] if a != c else 0.0)
                below[child] = below[host] or child == mate
                if child != mate:
                    paths[child] = start + hop[c]
                    start += port
        if self.both_ways:
            deepest_s = max(path for path, low in zip(paths, below, strict=True) if not low)
            deepest_below_s = max(path for path, low in zip(paths, below, strict=True) if low)
            meet_s = hops_s[cluster_of[top]][cluster_of[mate]]
            all_s = max(deepest_s, deepest_below_s + meet_s)
            all_below_s = max(deepest_below_s, deepest_s + meet_s)
            paths = [
                path + (all_below_s if low else all_s)
                for path, low in zip(paths, below, strict=True)
            ]
        return paths, periods

    def _busy_s(
        self,
        loads: Sequence[_TreeLoad],
        which: np.ndarray,
        turns: np.ndarray,
        segment_bytes: float,
        ports_s: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Return how long each host's interface is busy, (H,), and each link, (C, C)."""
        firsts, places, counts = self._places
        moved = firsts + (places[None] - turns[:, None]) % counts[None]
        sends = np.array([load.sends for load in loads])
        sent = sends[which[:, None], moved].sum(axis=0)
        received = len(which) if not self.both_ways else 0  # in an allreduce, as many as are sent
        by_host_s = np.maximum(sent, received) * ports_s[self.clusters]
        n_uses = np.bincount(which, minlength=len(loads))
        crossed_bytes = segment_bytes * sum(
            n * load.links for n, load in zip(n_uses, loads, strict=True)
        )
        leaves_s, enters_s = (crossed_bytes.sum(axis=k) / self._uplinks for k in (1, 0))
        shared_s = np.maximum(leaves_s[:, None], enters_s[None, :])
        return by_host_s, np.maximum(crossed_bytes / self._link_rates, shared_s)


def best_packed(
    model: GridModel, n_bytes: int, root: int = -1, upwards: bool = False
) -> PricedPacking | None:
    """Return the fastest packing and number of segments; None if there is no tree.

    With a ``root``, the trees are for a broadcast, or with ``upwards`` for a reduction.
    """
    platform, kinds = platform_of(model, root)
    pricing = _Pricing(model, platform)
    best: _Priced | None = None
    least_gain = MORE_SEGMENTS_GAIN if root < 0 else 0.0
    grown = grown_trees(platform, n_bytes)
    packings = _packings(platform) if model.n_clusters <= MOST_PACKED_CLUSTERS else ()
    for packing in (*grown, *reversed(packings)):
        if best is None or packing.busy_s * n_bytes < best.total.total_s:
            best = _best_cut(pricing, packing, n_bytes, least_gain, best)
    if best is None:
        return None
    improved = _improved(pricing, best)
    if improved.packing is not best.packing:
        improved = _best_cut(pricing, improved.packing, n_bytes, least_gain, improved) or improved
    found = _timed_trees(improved)
    if root < 0:
        found = found._replace(trees=tuple(_with_two_tops(platform, tree) for tree in found.trees))
    if is_searched(model, len(platform.kind_of)):
        if root >= 0:
            starts = [found]
            if 2 < model.n_clusters <= MOST_SPLIT:
                split = _best_cut(pricing, _split(platform, n_bytes), n_bytes, 0.0, None)
                starts += [_timed_trees(split)] if split else []
            found = rooted_trees(model, platform, n_bytes, starts, upwards)
        elif is_worth_a_search(found):
            found = meeting_trees(model, platform, n_bytes, found)
    uses, n = use_in_turns(found.shares, found.n_segments), found.n_segments
    children = tuple(children_of(platform, tree) for tree in found.trees)
    trees = PackedTrees(model.grid, kinds, found.trees, uses, children, root)
    return PricedPacking(trees, -(-n_bytes // n), found.total_s, found.sending_s / n, found.shares)


def is_searched(model: GridModel, n_hosts: int) -> bool:
    """Whether trees are searched.

    Where all parts of a grid are alike, this gained nothing; among many hosts, there is no time for
    enough changes.
    """
    return n_hosts <= MOST_HOSTS and is_unlike(model)


def _with_two_tops(platform: Platform, parents: tuple[int, ...]) -> tuple[int, ...]:
    """Return ``parents`` with a second top, which exchanges results with the first one."""
    mate = _top_mate(children_of(platform, parents), parents.index(-1))
    return tuple(-1 if host == mate else above for host, above in enumerate(parents))


def _timed_trees(priced: _Priced) -> TimedTrees:
    """Return ``priced`` with its predicted time."""
    packing, total = priced.packing, priced.total
    parents = tuple(tree.parents for tree in packing.trees)
    return TimedTrees(total.total_s, parents, packing.shares, len(priced.uses), total.busy_s)


class _Priced(NamedTuple):
    """A packing, the tree and rotation that each segment uses, and the time of all that."""

    packing: Packing
    uses: tuple[tuple[int, int], ...]
    segment_bytes: int
    total: _Total


def _best_cut(
    pricing: _Pricing, packing: Packing, n_bytes: int, least_gain: float, best: _Priced | None
) -> _Priced | None:
    """Return ``packing`` with its best number of segments if that is faster, else ``best``.

    More segments must save the fraction ``least_gain``.
    """
    cut: _Priced | None = None
    for n in N_SEGMENTS:
        segment = -(-n_bytes // n)
        if not SMALLEST_SEGMENT // 2 <= segment <= LARGEST_SEGMENT:
            continue
        uses = use_in_turns(packing.shares, n)
        total = pricing.total(packing.trees, uses, segment)
        if cut is None or total.total_s < (1 - least_gain) * cut.total.total_s:
            cut = _Priced(packing, uses, segment, total)
    if best is None or (cut and cut.total.total_s < best.total.total_s):
        return cut
    return best


@lru_cache(maxsize=256)
def grown_trees(platform: Platform, n_bytes: int) -> tuple[Packing, ...]:
    """Return, for each good top, a single tree that is grown by the edge that ends earliest.

    Where latency matters as much as bandwidth, neither shortest paths nor packings are best.
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
    # Hosts of a kind take turns: each sends an equal part of what the kind sends.
    port_s = n_bytes / np.array(platform.rates) / counts
    links_s = n_bytes / np.array(platform.links)
    np.fill_diagonal(links_s, 0.0)
    hop_s = (1 + both_ways) * np.array(platform.hops_s)[np.ix_(clusters, of_kind)]
    parents, taken = [-1] * n, np.zeros(n, dtype=bool)
    path_s, busy_s, used_links_s = np.zeros(n), np.zeros(n_kinds), np.zeros_like(links_s)
    # Hosts of a kind are alike, so the first one left is as good as any.
    following, left = np.searchsorted(kinds, np.arange(n_kinds)), counts.copy()

    def take(kind: int) -> int:
        host = int(following[kind])
        following[kind] += 1
        left[kind] -= 1
        taken[host] = True
        return host

    take(top)
    for _ in range(n - 1):
        used_ports_s = busy_s + port_s
        sends_s = used_ports_s[kinds][:, None]
        if both_ways:
            sends_s = np.maximum(sends_s, used_ports_s)
        crosses_s = (used_links_s + links_s)[np.ix_(clusters, of_kind)]
        done_s = np.maximum(sends_s, crosses_s) + path_s[:, None] + hop_s
        done_s = np.where(taken[:, None] & (left > 0), done_s, np.inf)
        sender, kind = divmod(int(np.argmin(done_s)), n_kinds)
        new = take(kind)
        parents[new] = sender
        path_s[new] = path_s[sender] + hop_s[sender, kind]
        busy_s[kinds[sender]] += port_s[kinds[sender]]
        busy_s[kind] += both_ways * port_s[kind]
        used_links_s[clusters[sender], of_kind[kind]] += links_s[clusters[sender], of_kind[kind]]
    return Packing((HostTree(tuple(parents)),), (1.0,), 0.0, 0.0)


def _split(platform: Platform, n_bytes: int) -> Packing:
    """Return a tree per cluster: the root sends it a share, which it sends to all others.

    Inside clusters, segments pass from host to host. The algorithm ``split`` has the same trees.
    """
    kinds, home = platform.kind_of, platform.clusters[platform.root]
    lines: dict[int, list[int]] = {}
    for host in sorted(range(len(kinds)), key=lambda host: (kinds[host] != platform.root, host)):
        lines.setdefault(platform.clusters[kinds[host]], []).append(host)
    inside = [-1] * len(kinds)
    for line in lines.values():
        for above, below in pairwise(line):
            inside[below] = above
    others = [c for c in lines if c != home]
    transfers = [[(home, first), *((first, c) for c in others if c != first)] for first in others]
    trees = []
    for pairs in transfers:
        parents = list(inside)
        for sender, receiver in pairs:
            parents[lines[receiver][0]] = lines[sender][-1]
        trees.append(HostTree(tuple(parents)))
    shares = split_shares(transfers, np.array(platform.hops_s), np.array(platform.links), n_bytes)
    return Packing(tuple(trees), tuple(shares.tolist()), 0.0, 0.0)


def _improved(pricing: _Pricing, best: _Priced) -> _Priced:
    """Move the host that ends last below another host, as long as that helps."""
    platform = pricing.platform
    firsts = np.searchsorted(np.array(platform.kind_of), np.arange(len(platform.counts))).tolist()
    for _ in range(MOST_MOVES):
        packing, total = best.packing, best.total
        parents = packing.trees[total.tree].parents
        if parents[total.host] < 0:
            break
        kind, parent = platform.kind_of[total.host], parents[total.host]
        alike = [
            h for h, above in enumerate(parents) if above == parent and platform.kind_of[h] == kind
        ]
        before = best
        for moved in (alike, [total.host]):
            for above in firsts:
                if above == parent or _is_below(parents, above, moved):
                    continue
                other = list(parents)
                for host in moved:
                    other[host] = above
                trees = list(packing.trees)
                trees[total.tree] = HostTree(tuple(other))
                found = pricing.total(trees, best.uses, best.segment_bytes)
                if found.total_s < best.total.total_s * (1 - LEAST_GAIN):
                    best = best._replace(packing=replace(packing, trees=tuple(trees)), total=found)
        if best is before:
            break
    return best


def _is_below(parents: Sequence[int], host: int, tops: Sequence[int]) -> bool:
    """Whether ``host`` is one of ``tops`` or below one of them."""
    while host >= 0:
        if host in tops:
            return True
        host = parents[host]
    return False


def _packings(platform: Platform) -> tuple[Packing, ...]:
    """Return different packings, one for each limit of the depth."""
    clusters = np.array(platform.clusters)
    distance_s = shortest_paths(np.array(platform.hops_s))
    starts = [platform.root] if platform.root >= 0 else range(len(clusters))
    least_s = min(float(distance_s[clusters[kind]][clusters].max()) for kind in starts)
    return pack_by_depth(platform, tuple(least_s * limit * (1 + 1e-9) for limit in DEPTH_LIMITS))


def label_of(found: PricedPacking) -> str:
    """Describe the trees: how many there are, and the largest share of the message."""
    used = len({tree for tree, _ in found.trees.uses})
    tops = max(tree.count(-1) for tree in found.trees.trees)
    meet = f" of {tops} tops that meet" if tops > 1 else ""
    share = max(found.shares)
    return f"1 tree{meet}" if used == 1 else f"{used} trees{meet}, {share:.0%} over one"


def is_offered(model: GridModel, n_bytes: int) -> bool:
    """Whether packed trees are worth trying: not too many hosts, and no limiting TCP window."""
    n_hosts = sum(model.grid.hosts_per_cluster)
    most = MOST_UNLIKE_HOSTS if is_unlike(model) else MOST_HOSTS
    if not 2 < n_hosts <= most or n_bytes < LEAST_BYTES or model.n_clusters < 2:
        return False
    return not _exceeds_flow(model, WINDOWS_SURELY_LIMIT).any()


def _exceeds_flow(model: GridModel, times: float) -> np.ndarray:
    """Return where interfaces and link carry more than ``times`` what one flow does, (C, C)."""
    flows, rates = model.flow_bytes_per_s, model.flow_bytes_per_s.diagonal()
    possible = np.minimum(np.minimum(rates[:, None], rates[None]), model.link_bytes_per_s)
    return np.asarray(possible > times * flows)


def _usable_links(model: GridModel) -> FloatArray:
    """Return the bandwidth of links that a tree can use, (C, C).

    A tree has one flow at a time, so where windows may limit flows it is the rate of one flow.
    """
    limited = _exceeds_flow(model, WINDOWS_LIMIT)
    return np.where(limited, model.flow_bytes_per_s, links_of(model))
