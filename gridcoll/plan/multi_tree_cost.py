"""Predicts times of several trees over a grid, for all numbers of trees, shapes and segment sizes.

The first segment goes down its tree as if it were alone; the others follow at the rate of the
busiest interface or link. Clusters of equal size cost the same, so pricing thousands of ranks takes
no longer than pricing a few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import permutations

import numpy as np
from msgspec import Struct

from gridcoll.constants import TIE_FACTOR
from gridcoll.model.arborescence import shortest_paths
from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.multi_tree import MultiTree, Transfers, first_host, grow_tree
from gridcoll.plan.trees import LARGEST_SEGMENT, SMALLEST_SEGMENT
from gridcoll.schedule.trees import degrees, profile
from gridcoll.topology.grid import Grid
from gridcoll.topology.levels import Groups, join_nearest

N_TREES = (1, 2, 4, 8, 16, 32, 64, 128)

MOST_EXACT = 15
"""As many trees as hosts, and twice as many, are tried if the largest cluster has at most so many.
Each host is then the entry of equally many. With them, simulated broadcasts of 4 and 16 MiB take 0
to 16 % less on five uneven grids of up to 13 hosts per cluster. With 20 and 31 hosts per cluster
they take 1 % less to 4 % more, though up to 6 % less is predicted."""

MOST_SIZES = 32
"""At most so many segment sizes are priced, the largest first."""

SHAPES_OF_ONE = ("flat", "binomial", "binary", "chain")
SHAPES_OF_MANY = ("binary", "binomial", "flat")
"""Shapes inside clusters, for one tree and for several."""

TREES_PER_HOST = 2
"""Number of trees per host of the largest cluster, tried besides numbers up to one per host. More
trees than hosts share out what the root's cluster, which has one host less, has to send. With even
more trees, or if clusters cannot share them equally, predictions are too low: on 88 hosts, 31 of
them in the largest cluster, 4 MiB took 0.99, 1.05 and 1.12 times the predicted time with 16, 32 and
64 trees. They are also too low in one cluster, where no latency hides that segments wait for one
another."""

SEGMENTS_PER_TREE = 3
"""Least number of segments per tree if there are more trees than hosts."""

CHILDREN_PER_HOST = (0.0, 0.06, 0.1, 0.15, 0.4, 1.0, 1e9)
"""A cluster sends to at most one other cluster, plus so many per host. More of them keep interfaces
busy longer, but shorten paths."""


CHILDREN_OF_BOTH = (2, 3, 4)
"""To how many other clusters one sends at most in two trees over clusters together. On average it
is two, so with two the second tree may need long links."""

CHILDREN_PER_HOST_IN_GROUPS = (0.06, 1.0)
"""The same for trees over groups of clusters, whose paths are short already."""

MOST_MEETING = 8
"""Most groups that exchange partial results: each of their tops sends its result to all others."""


class PricedTrees(Struct, frozen=True):
    """The best trees, their segment size in bytes, predicted seconds, and seconds per segment."""

    trees: MultiTree
    segment_bytes: int
    total_s: float
    period_s: float


@lru_cache(maxsize=4096)
def host_load(shape: str, n_hosts: int, n_trees: int) -> tuple[FloatArray, FloatArray]:
    """Return sends inside the cluster, and uses as its entry, per segment and host, (H,) each."""
    firsts = np.array([first_host(tree, n_trees, n_hosts) for tree in range(n_trees)])
    vertex = (np.arange(n_hosts)[:, None] - firsts[None]) % n_hosts
    sends = degrees(shape, n_hosts)[vertex].mean(axis=1)
    entries = np.bincount(firsts, minlength=n_hosts) / n_trees
    return sends, entries


@lru_cache(maxsize=16384)
def busiest(shape: str, n_hosts: int, n_trees: int, n_out: float) -> float:
    """Return the busiest host's sends per segment; at least 1, since it receives each segment.

    Its cluster sends a segment to ``n_out`` others on average.
    """
    if not n_hosts:
        return max(n_out, 1.0)
    sends, entries = host_load(shape, n_hosts, n_trees)
    return max(1.0, float((sends + n_out * entries).max()))


class Loads(Struct, frozen=True):
    """Loads of trees over clusters that are taken in turn, for S segment sizes.

    Numbers of trees are those for each of them.
    """

    kinds: tuple[tuple[float, float], ...]
    """The K different pairs of number of hosts and number of clusters that get a segment."""
    port_s: FloatArray
    """(K, S) array. How long a segment keeps the slowest interface of each kind busy."""
    flows_s: dict[int, FloatArray]
    """How long a segment keeps the busiest flow between clusters, by number of trees, (S,) each."""
    links_s: FloatArray
    """(S,) array. How long a segment keeps the busiest link busy."""

    def period_s(self, shape: str, n_trees: int) -> FloatArray:
        """Return how long a segment keeps the busiest interface, link or flow on average, (S,)."""
        sends = np.array([busiest(shape, int(n), n_trees, out) for n, out in self.kinds])
        longest = np.maximum((sends[:, None] * self.port_s).max(axis=0), self.links_s)
        return np.asarray(np.maximum(longest, self.flows_s.get(n_trees, self.links_s)))


class Pricing:
    """Prices trees for one message; from the host of ``root``, unless that is -1."""

    def __init__(self, model: GridModel, n_bytes: int, root: int) -> None:
        self.model, self.n_bytes, self.root = model, n_bytes, root
        least = n_bytes // LARGEST_SEGMENT + 1
        most = max(n_bytes // SMALLEST_SEGMENT, 1)
        counts = {1 << k for k in range(32)} | {3 << k for k in range(15)}
        counts |= {n_trees << k for k in range(15) for n_trees in numbers_of_trees(model.grid)}
        some = sorted(n for n in counts if least <= n <= most)[:MOST_SIZES]
        self.n_segments = np.array(some, dtype=float)
        self.segment = np.ceil(n_bytes / self.n_segments)
        """Numbers of segments to try, and their bytes, (S,) each."""
        every = range(model.n_clusters)
        links = list(every), list(every)
        self.port_s, self.hop_s = model.gap_and_one_way_s(self.segment, links)
        home_gap_s, home_s = model.gap_and_one_way_s(np.zeros(1), links)
        clusters = model.grid.clusters
        self.hosts = np.array(model.grid.hosts_per_cluster)
        self.top = model.grid.cluster_of[root] if root >= 0 else -1
        if root >= 0:
            self.hosts[self.top] -= 1
        slots = np.array([max(cluster.node_sizes) for cluster in clusters])[:, None]
        self.mates_s = np.where(slots > 1, home_s + (slots - 2) * home_gap_s, 0.0)

    def paths(self, transfers: Transfers) -> tuple[FloatArray, np.ndarray]:
        """Return when each cluster's entry has the first segment, (C, S), and to how many other
        clusters it sends, (C,).
        """
        senders, receivers = [s for s, _ in transfers], [r for _, r in transfers]
        arrival = np.zeros_like(self.port_s)
        if self.root >= 0 and self.hosts[self.top]:
            arrival[self.top] = self.hop_s[self.top]
        n_out = np.zeros(len(self.hosts), dtype=int)
        if transfers:
            _, one_way_s = self.model.gap_and_one_way_s(self.segment, (senders, receivers))
            for (sender, receiver), hop_s in zip(transfers, one_way_s, strict=True):
                arrival[receiver] = arrival[sender] + n_out[sender] * self.port_s[sender] + hop_s
                n_out[sender] += 1
        return arrival, n_out

    def meeting_s(self, transfers: Transfers, first_s: FloatArray) -> FloatArray:
        """Return the time of the first segment of an allreduce, (S,): up, between tops and down.

        ``first_s`` is the time from the top of its group to all ranks of each cluster, (C, S).
        """
        top_of = np.arange(len(first_s))
        for sender, receiver in transfers:
            top_of[receiver] = top_of[sender]
        tops = np.array(sorted(set(top_of.tolist())))  # np.unique would import numpy.ma, in 10 ms
        group_s = np.array([first_s[top_of == top].max(axis=0) for top in tops])
        both_s = group_s[:, None] + group_s[None]
        if len(tops) > 1:
            ends = np.repeat(tops, len(tops)), np.tile(tops, len(tops))
            _, hop_s = self.model.gap_and_one_way_s(
                self.segment, (ends[0].tolist(), ends[1].tolist())
            )
            between_s = hop_s.reshape(both_s.shape) + (len(tops) - 2) * self.port_s[tops][:, None]
            both_s = both_s + np.where(np.eye(len(tops), dtype=bool)[..., None], 0.0, between_s)
        return np.asarray(both_s.max(axis=(0, 1)))

    def inside_s(self, shape: str) -> FloatArray:
        """Return the time from each cluster's entry to its last rank, (C, S).

        It starts when the entry has sent to other clusters.
        """
        found = np.array(np.broadcast_to(self.mates_s, self.port_s.shape))
        for n_hosts in set(self.hosts.tolist()) - {0, 1}:
            counts = profile(shape, n_hosts)
            alike = np.flatnonzero(self.hosts == n_hosts)
            hops = counts.latencies[:, None, None]
            waits = counts.gaps[:, None, None] - hops
            found[alike] += (waits * self.port_s[alike] + hops * self.hop_s[alike]).max(axis=0)
        return found

    def loads(
        self, in_turn: Sequence[Transfers], n_out: FloatArray, tops: Sequence[int] = ()
    ) -> Loads:
        """Return the load of interfaces and links per segment, for trees of any shape and number.

        Each segment takes one of the trees over clusters ``in_turn``. On average, ``n_out`` other
        clusters, (C,), get it from each. ``tops`` are clusters that exchange partial results.
        """
        n_out = np.array(n_out, float)
        n_out[list(tops)] += len(tops) - 1
        pairs, which = np.unique(np.stack([self.hosts, n_out]), axis=1, return_inverse=True)
        port_s = np.zeros((pairs.shape[1], len(self.segment)))
        np.maximum.at(port_s, which.reshape(-1), self.port_s)
        kinds = tuple((n_hosts, out) for n_hosts, out in pairs.T.tolist())
        # How much of the message each link carries.
        links: Counter[tuple[int, int]] = Counter()
        for transfers in in_turn:
            links.update((*transfers, *permutations(tops, 2)))
        nothing = np.zeros(len(self.segment))
        if not links:
            return Loads(kinds, port_s, {}, nothing)
        part = np.array(list(links.values())) / len(in_turn)
        senders, receivers = (list(ends) for ends in zip(*links, strict=True))
        gap_s, _ = self.model.gap_and_one_way_s(self.segment, (senders, receivers))
        most = np.maximum(self.hosts[senders], self.hosts[receivers])
        flows_s = {
            n_trees: (gap_s * (part / np.minimum(most, n_trees))[:, None]).max(axis=0)
            for n_trees in numbers_of_trees(self.model.grid)
            if n_trees <= TREES_PER_HOST * max(self.model.grid.hosts_per_cluster)
        }
        uplinks = self.model.uplinks
        slowest_s = max(
            (part / self.model.link_bytes_per_s[senders, receivers]).max(),
            (np.bincount(senders, part, len(uplinks)) / uplinks).max(),
            (np.bincount(receivers, part, len(uplinks)) / uplinks).max(),
        )
        links_s = self.segment * slowest_s
        return Loads(kinds, port_s, flows_s, np.asarray(links_s))


def _latency_between_s(model: GridModel) -> FloatArray:
    """Return the latency between clusters, (C, C), with zeros on the diagonal."""
    latency_s = np.array(model.latency_s)
    np.fill_diagonal(latency_s, 0.0)
    return latency_s


@lru_cache(maxsize=256)
def _trees_from(key: ModelKey, top: int, n_top_hosts: int) -> tuple[Transfers, ...]:
    """Return different trees over clusters from ``top``, where ``n_top_hosts`` hosts send."""
    model = key.model
    if model.n_clusters == 1:
        return ((),)
    hosts = np.array(model.grid.hosts_per_cluster)
    hosts[top] = n_top_hosts
    latency_s = _latency_between_s(model)
    n = len(hosts)
    most = (np.minimum(1 + part * hosts, n).astype(int).tolist() for part in CHILDREN_PER_HOST)
    return tuple(dict.fromkeys(grow_tree(latency_s, top, each) for each in most))


@lru_cache(maxsize=256)
def _pairs_from(key: ModelKey, top: int) -> tuple[tuple[Transfers, Transfers], ...]:
    """Return different pairs of trees over clusters from ``top``, to be taken in turn.

    A cluster has few others below it in the second tree if it has many in the first.
    """
    n = key.model.n_clusters
    if n < 4:
        return ()
    latency_s = _latency_between_s(key.model)
    found = []
    for most in CHILDREN_OF_BOTH:
        share = [most] * n
        share[top] = most // 2  # it has others below it in both
        first = grow_tree(latency_s, top, share)
        n_below = np.bincount([sender for sender, _ in first], minlength=n)
        found.append((first, grow_tree(latency_s, top, (most - n_below).tolist())))
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=64)
def _groups(key: ModelKey) -> tuple[Groups, ...]:
    """Return partitions into groups of nearby clusters.

    The first has at most `MOST_MEETING` groups, each other at most half as many as the one before.
    """
    found: list[Groups] = []
    for _, groups in join_nearest(key.model.latency_s):
        if 1 < len(groups) <= (len(found[-1]) // 2 if found else MOST_MEETING):
            found.append(groups)
    return tuple(found)


@lru_cache(maxsize=256)
def _trees_in(key: ModelKey, groups: Groups, tops: tuple[int, ...]) -> tuple[Transfers, ...]:
    """Return different sets of trees over ``groups`` of clusters, each from its top of ``tops``."""
    latency_s = _latency_between_s(key.model)
    hosts = np.array(key.model.grid.hosts_per_cluster)
    found = []
    for part in CHILDREN_PER_HOST_IN_GROUPS:
        transfers: list[tuple[int, int]] = []
        for group, top in zip(groups, tops, strict=True):
            members = np.array(group)
            most = np.minimum(1 + part * hosts[members], len(group)).astype(int).tolist()
            inside = grow_tree(latency_s[np.ix_(members, members)], group.index(top), most)
            transfers += [(group[sender], group[receiver]) for sender, receiver in inside]
        found.append(tuple(transfers))
    return tuple(dict.fromkeys(found))


def _tops(model: GridModel, n_bytes: int, groups: Groups) -> tuple[int, ...]:
    """Return the top of each group: the cluster with the least sum of the latencies to and from
    the rest of the group and the time of its exchange with other tops.
    """
    latency_s = _latency_between_s(model)
    hosts = np.array(model.grid.hosts_per_cluster)
    exchange_s = (len(groups) - 1) * model.gap_s(n_bytes).diagonal() / hosts
    found = []
    for group in groups:
        members = np.array(group)
        inside_s = latency_s[np.ix_(members, members)]
        total_s = inside_s.max(axis=0) + inside_s.max(axis=1) + exchange_s[members]
        found.append(group[int(total_s.argmin())])
    return tuple(found)


def numbers_of_trees(grid: Grid) -> tuple[int, ...]:
    """Return the numbers of trees to try, ascending."""
    most_hosts = max(grid.hosts_per_cluster)
    exact = (most_hosts, TREES_PER_HOST * most_hosts) if most_hosts <= MOST_EXACT else ()
    return tuple(sorted({*N_TREES, *exact}))


def _kinds(grid: Grid, most_segments: float) -> Iterator[tuple[str, int]]:
    """Yield the shapes and numbers of trees that are worth pricing."""
    most_hosts = max(grid.hosts_per_cluster)
    for n_trees in numbers_of_trees(grid):
        if n_trees == 1 or n_trees <= min(most_segments, most_hosts):
            for shape in SHAPES_OF_ONE if n_trees == 1 else SHAPES_OF_MANY:
                if shape not in ("flat", "chain") or most_hosts <= 4 * n_trees:
                    yield shape, n_trees
        elif len(grid.clusters) > 1 and n_trees == TREES_PER_HOST * most_hosts:
            yield SHAPES_OF_MANY[0], n_trees


def best_trees(
    model: GridModel, n_bytes: int, top: int, root: int, *, both_ways: bool = False
) -> PricedTrees:
    """Return the fastest number of trees, shape, tree over clusters and segment size.

    ``both_ways`` is for an allreduce, up and down again: interfaces pass everything twice, and a
    segment goes down when its longest path up has ended. Trees over several groups of clusters are
    then tried as well.
    """
    key, pricing = ModelKey(model), Pricing(model, n_bytes, root)
    rest = pricing.n_segments - 1
    found: list[tuple[float, int, FloatArray, int, tuple[Transfers, ...], str, int]] = []
    kinds = list(_kinds(model.grid, float(pricing.n_segments.max())))
    most_hosts = max(model.grid.hosts_per_cluster)
    inside = {shape: pricing.inside_s(shape) for shape in dict.fromkeys(s for s, _ in kinds)}
    port_s = pricing.port_s.max(axis=0)
    forests: list[tuple[tuple[int, ...], tuple[Transfers, ...]]]
    forests = [((top,), (each,)) for each in _trees_from(key, top, int(pricing.hosts[top]))]
    forests += [((top,), each) for each in _pairs_from(key, top)]
    for groups in _groups(key) if both_ways else ():
        tops = _tops(model, n_bytes, groups)
        forests += [(tops, (each,)) for each in _trees_in(key, groups, tops)]
    for tops, in_turn in forests:
        reached = [pricing.paths(transfers) for transfers in in_turn]
        loads = pricing.loads(in_turn, np.mean([n_out for _, n_out in reached], axis=0), tops)
        last_s, meeting_s = dict.fromkeys(inside, 0.0 * rest), dict.fromkeys(inside, 0.0 * rest)
        for transfers, (entry_s, n_out) in zip(in_turn, reached, strict=True):
            served_s = entry_s + n_out[:, None] * pricing.port_s * (pricing.hosts > 1)[:, None]
            for shape, each in inside.items():
                first_s = np.maximum(entry_s, served_s + each)
                last_s[shape] = np.maximum(last_s[shape], first_s.max(axis=0))
                if both_ways:
                    meeting = pricing.meeting_s(transfers, first_s)
                    meeting_s[shape] = np.maximum(meeting_s[shape], meeting)
        for shape, n_each in kinds:
            n_trees = n_each * len(in_turn)
            period_s = loads.period_s(shape, n_each)
            total_s = last_s[shape] + rest * period_s
            if both_ways:
                total_s = np.maximum(
                    meeting_s[shape] + rest * period_s,
                    last_s[shape] + rest * (period_s + port_s),
                )
            fits = pricing.n_segments % n_trees == 0
            if n_trees > most_hosts:
                fits &= pricing.n_segments >= SEGMENTS_PER_TREE * n_trees
            if not fits.any():
                continue
            total_s = np.where(fits, total_s, np.inf)
            at = int(np.flatnonzero(total_s <= TIE_FACTOR * total_s.min())[0])
            found.append((float(total_s[at]), at, period_s, tops[0], in_turn, shape, n_trees))
    total, at, period, top, in_turn, shape, n_trees = min(found, key=lambda one: one[0])
    trees = MultiTree(model.grid, top, in_turn[0], shape, n_trees, root, in_turn[1:])
    return PricedTrees(trees, int(pricing.segment[at]), total, float(period[at]))


def segments_of(found: PricedTrees, n_units: int, n_bytes: int) -> tuple[int, float]:
    """Return units per segment, and seconds per unit (0 for a single segment).

    ``n_bytes`` is the size class of the message of ``n_units``.
    """
    n_segments = max(-(-n_bytes // max(found.segment_bytes, 1)), 1)
    segment = max(-(-n_units // n_segments), 1)
    return segment, found.period_s / segment if n_segments > 1 else 0.0


def nearest_to_all(model: GridModel) -> int:
    """Return the cluster with the least sum of the longest distances from and to other clusters."""
    distance = shortest_paths(_latency_between_s(model))
    hosts = model.grid.hosts_per_cluster
    farthest = distance.max(axis=0) + distance.max(axis=1)
    return min(range(len(hosts)), key=lambda c: (farthest[c], -hosts[c], c))
