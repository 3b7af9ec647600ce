"""Predicts times of segmented trees in the steady state, fast enough to try hundreds before a call.

The model is pLogP with one port, full duplex: a network interface passes one segment at a time in
each direction, and a link passes one segment per gap of the link. The first segment goes down the
tree; the others follow at the rate of the slowest interface or link on their path. Ranks of one
host share its interface; a message between them does not use it.

`price_tree` prices a tree over clusters by counts of its shapes, `price_ranks` a tree that was laid
over ranks without regard to clusters, and `price_several` several trees at once, each carrying its
share of the segments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from msgspec import Struct

from gridcoll.model.closed_forms import REQUEST_BYTES
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.trees import GridTree, RankTree
from gridcoll.schedule.trees import degrees, find_shape, profile
from gridcoll.topology.grid import Grid

Hosts = tuple[int, ...]
"""For each host, how many consecutive ranks of the line it has."""


class LineCosts(Struct, frozen=True):
    """Sends and hops until a rank of the line has the first segment, and the load per segment."""

    waits: FloatArray
    hops: FloatArray
    """(k, 2) arrays. Column 0 counts between hosts, column 1 inside hosts. ``waits`` counts earlier
    sends of the ranks on the path, ``hops`` the edges of the path. A rank is left out if another
    one has at least its counts in all columns; so the rank that ends last is among those left."""
    busiest: float
    """Messages per segment that the busiest interface sends or receives."""


@lru_cache(maxsize=4096)
def line_costs(shape: str, hosts: Hosts) -> LineCosts:
    """Return the `LineCosts` of ``shape`` over a line of ``hosts``."""
    if max(hosts) == 1:
        found = profile(shape, len(hosts))
        none = np.zeros_like(found.gaps)
        waits, hops = found.gaps - found.latencies, found.latencies
        return LineCosts(
            np.stack([waits, none], axis=1), np.stack([hops, none], axis=1), found.max_degree
        )
    out, into = _crossings(shape, hosts)
    # Ranks of one host wait for each other, too: up to the last message of the busiest host.
    most = int(max(out.max(), into.max()))
    counts = [*_counts(shape, hosts), *([(most - 1, 0, 1, 0)] if most else [])]
    not_exceeded: list[FloatArray] = []
    for row in np.array(sorted(set(counts), reverse=True), dtype=float):
        if not any((row <= other).all() for other in not_exceeded):
            not_exceeded.append(row)
    rows = np.array(not_exceeded)
    into[0] += 1  # the message that enters the line
    return LineCosts(rows[:, :2], rows[:, 2:], float(max(out.max(), into.max())))


@lru_cache(maxsize=1024)
def place_costs(shape: str, hosts: Hosts, place: int) -> tuple[int, int, int, int, int]:
    """Return waits and hops of ``place`` as in `LineCosts`, and how often its host sends."""
    if max(hosts) == 1 and place == 0:
        return 0, 0, 0, 0, profile(shape, len(hosts)).root_degree
    out, _ = _crossings(shape, hosts)
    return *_counts(shape, hosts)[place], int(out[_host_of_place(hosts, place)])


def _host_of_place(hosts: Hosts, place: int) -> int:
    """Return the index of the host that the ``place`` of the line is on."""
    return next(k for k, end in enumerate(accumulate(hosts)) if place < end)


@lru_cache(maxsize=1024)
def _counts(shape: str, hosts: Hosts) -> list[tuple[int, int, int, int]]:
    """Return, for each place: waits between and inside hosts, hops between and inside hosts."""
    host = np.repeat(np.arange(len(hosts)), hosts).tolist()
    counts = [(0, 0, 0, 0)] * len(host)
    # In every shape, parents have lower numbers than their children.
    for place, sends in enumerate(find_shape(shape).children(len(host))):
        far, near, far_hops, near_hops = counts[place]
        for child in sends:
            if host[child] == host[place]:
                counts[child] = far, near, far_hops, near_hops + 1
                near += 1
            else:
                counts[child] = far, near, far_hops + 1, near_hops
                far += 1
    return counts


@lru_cache(maxsize=4096)
def _edges(shape: str, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of parents and of their children, (n - 1,) each."""
    children = find_shape(shape).children(n)
    pairs = [(place, child) for place, sends in enumerate(children) for child in sends]
    both = np.array(pairs, dtype=int).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _crossings(shape: str, hosts: Hosts) -> tuple[FloatArray, FloatArray]:
    """Return how many messages per segment each host sends to others and receives, (H,) each."""
    host = np.repeat(np.arange(len(hosts)), hosts)
    return crossings_of(shape, host, len(hosts))


def crossings_of(shape: str, host: np.ndarray, n_hosts: int) -> tuple[FloatArray, FloatArray]:
    """Return the same as `_crossings` for a line whose place ``k`` is on ``host[k]``."""
    parents, children = (host[places] for places in _edges(shape, len(host)))
    away = parents != children
    return (
        np.bincount(parents[away], minlength=n_hosts).astype(float),
        np.bincount(children[away], minlength=n_hosts).astype(float),
    )


class SegmentCosts(Struct, frozen=True, dict=True):
    """Times of segments of S candidate sizes on every link, for one message size."""

    model: GridModel
    n_bytes: int
    segment_bytes: np.ndarray

    @cached_property
    def n_segments(self) -> FloatArray:
        """How many segments the message has, (S,)."""
        return np.asarray(np.maximum(np.ceil(self.n_bytes / self.segment_bytes), 1.0))

    @cached_property
    def segment(self) -> FloatArray:
        """Bytes of a segment, at most those of the message, (S,)."""
        return np.asarray(np.minimum(self.segment_bytes, self.n_bytes), dtype=float)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Number of ranks of each cluster, (C,)."""
        return np.array(self.model.grid.ranks_per_cluster)

    @cached_property
    def _inside_links(self) -> tuple[FloatArray, FloatArray]:
        every = range(self.model.n_clusters)
        return self.model.gap_and_one_way_s(self.segment, (every, every))

    @property
    def port_s(self) -> FloatArray:
        """How long one segment keeps a network interface of each cluster busy, (C, S).

        This is the gap inside the cluster, where only interfaces limit. A slower link between
        clusters leaves the interface of its sender free for other messages.
        """
        return self._inside_links[0]

    @property
    def hop_s(self) -> FloatArray:
        """One-way time of a segment between two ranks of each cluster, (C, S)."""
        return self._inside_links[1]

    @cached_property
    def _all_links(self) -> tuple[FloatArray, FloatArray]:
        return self.model.gap_and_one_way_s(self.segment)

    @property
    def gap_s(self) -> FloatArray:
        """``g(s)`` of every link, (C, C, S)."""
        return self._all_links[0]

    @property
    def one_way_s(self) -> FloatArray:
        """One-way time of a segment over every link, (C, C, S)."""
        return self._all_links[1]

    @cached_property
    def uplink_s(self) -> FloatArray | None:
        """How long one segment keeps each cluster's uplink busy, (C, S); None if none limits."""
        if not self.model.uplink_bytes_per_s:
            return None
        return np.asarray(self.segment / self.model.uplinks[:, None])

    def uplinks_s(self, links: Mapping[tuple[int, int], float]) -> dict[int, FloatArray]:
        """Return, by cluster, how long a segment keeps its uplink busy, (S,) each.

        ``links`` says how often a segment crosses each link.
        """
        if self.uplink_s is None:
            return {}
        counts = np.zeros((2, self.model.n_clusters))
        for (i, j), count in links.items():
            if i != j:
                counts[0, i] += count
                counts[1, j] += count
        return dict(enumerate(counts.max(axis=0)[:, None] * self.uplink_s))

    def between(self, transfers: Sequence[tuple[int, int]]) -> tuple[FloatArray, FloatArray]:
        """Return ``g(s)`` and the one-way time on each transfer's link, (n, S) each."""
        senders, receivers = [s for s, _ in transfers], [r for _, r in transfers]
        return self.model.gap_and_one_way_s(self.segment, (senders, receivers))

    @cached_property
    def beside(self) -> tuple[FloatArray, FloatArray]:
        """Gap and one-way time between ranks of one host, (C, 1) each: as of an empty message."""
        every = range(self.model.n_clusters)
        return self.model.gap_and_one_way_s(np.zeros(1), (every, every))

    def path_s(self, waits: FloatArray, hops: FloatArray) -> FloatArray:
        """Return the time of ``waits`` and ``hops``, (…, C, 2) each, as an array (…, C, S).

        In both, column 0 counts between hosts, column 1 inside hosts. A hop costs the one-way time
        of a segment, a wait costs a gap.
        """
        port_s, hop_s = self.beside
        far = waits[..., :1] * self.port_s + hops[..., :1] * self.hop_s
        return np.asarray(far + waits[..., 1:] * port_s + hops[..., 1:] * hop_s)

    def inside_s(self, shapes: Sequence[str]) -> FloatArray:
        """Return times of the broadcast inside each cluster, by shape, (C, shapes, S)."""
        rest = self.n_segments - 1
        result = np.empty((self.model.n_clusters, len(shapes), len(self.segment_bytes)))
        for k, shape in enumerate(shapes):
            lines = [line_costs(shape, c.node_sizes) for c in self.model.grid.clusters]
            busiest = np.array([line.busiest for line in lines])
            result[:, k] = self.first_inside(lines) + rest * busiest[:, None] * self.port_s
        return result

    def first_inside(self, lines: Sequence[LineCosts]) -> FloatArray:
        """Return the time of the first segment from each cluster's entry to its last rank, (C, S).

        The members of each cluster form a line.
        """
        most = max(len(line.waits) for line in lines)
        waits, hops = np.zeros((2, most, len(lines), 2))
        for c, line in enumerate(lines):
            waits[: len(line.waits), c] = line.waits
            hops[: len(line.hops), c] = line.hops
        return np.asarray(self.path_s(waits, hops).max(axis=0))


class TreePrice(Struct, frozen=True):
    """The times of a tree at each segment size, (S,) each.

    ``first_s`` is when the last rank has the first segment, ``period_s`` is the time between
    segments after that, and ``total_s`` is the time of the whole message.
    """

    first_s: FloatArray
    period_s: FloatArray
    total_s: FloatArray


def price_tree(
    costs: SegmentCosts,
    transfers: Sequence[tuple[int, int]],
    shapes: Sequence[str],
    relays: Sequence[int],
) -> TreePrice:
    """Price one tree over clusters (see `GridTree`) at every segment size of ``costs``.

    This takes O(C) for C clusters, whatever their sizes, since a shape is priced by its counts.
    """
    n_out = [0] * len(shapes)
    for sender, _ in transfers:
        n_out[sender] += 1
    to_relay, to_last, own_period = _inside(costs, shapes, relays, n_out)
    gaps, one_way = costs.between(transfers)
    arrival, departure, period = np.zeros_like(to_relay), to_relay.copy(), own_period.copy()
    for (sender, receiver), gap, hop in zip(transfers, gaps, one_way, strict=True):
        arrival[receiver] = departure[sender] + hop
        departure[receiver] += arrival[receiver]
        departure[sender] += costs.port_s[sender]
        period[receiver] = np.maximum(period[receiver], np.maximum(period[sender], gap))
        if costs.uplink_s is not None:
            of_uplink_s = n_out[sender] * costs.uplink_s[sender]
            period[receiver] = np.maximum(period[receiver], of_uplink_s)
    last = arrival + np.maximum(to_relay, to_last)
    return TreePrice(
        first_s=last.max(axis=0),
        period_s=period.max(axis=0),
        total_s=(last + (costs.n_segments - 1) * period).max(axis=0),
    )


def _inside(
    costs: SegmentCosts, shapes: Sequence[str], relays: Sequence[int], n_out: Sequence[int]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return times from each cluster's entry to its relay and to its last rank, and the period.

    Each is a (C, S) array. A cluster's relay sends to ``n_out`` other clusters first.
    """
    hosts = [cluster.node_sizes for cluster in costs.model.grid.clusters]
    lines = [line_costs(*key) for key in zip(shapes, hosts, strict=True)]
    places = [place_costs(*key) for key in zip(shapes, hosts, relays, strict=True)]
    at_relay = np.array(places, dtype=float)
    sends = at_relay[:, 4:]
    served = np.array(n_out, dtype=float)[:, None]
    busiest = np.array([line.busiest for line in lines])[:, None]
    # Ranks below the relay wait for its sends to other clusters.
    waits = served * (sends > 0)
    return (
        costs.path_s(at_relay[:, :2], at_relay[:, 2:4]),
        costs.first_inside(lines) + waits * costs.port_s,
        np.maximum(busiest, sends + served) * costs.port_s,
    )


def price_ranks(costs: SegmentCosts, tree: RankTree) -> TreePrice:
    """Price ``tree`` at every segment size of ``costs``, rank by rank.

    Unlike for `price_tree`, there may be any number of edges between two clusters; they share the
    link.
    """
    cluster_of = costs.model.grid.cluster_of
    first = np.zeros((len(tree.children), len(costs.segment_bytes)))
    period = np.zeros_like(first)
    flows: Counter[tuple[int, int]] = Counter()
    frontier = [tree.root]
    for rank in frontier:
        port_s = costs.port_s[cluster_of[rank]]
        slowest = np.maximum(period[rank], len(tree.children[rank]) * port_s)
        for position, child in enumerate(tree.children[rank]):
            link = cluster_of[rank], cluster_of[child]
            first[child] = first[rank] + position * port_s + costs.one_way_s[link]
            period[child] = np.maximum(slowest, costs.gap_s[link])
            flows[link] += 1
        frontier.extend(tree.children[rank])
    for (i, j), count in flows.items():
        if i != j:
            shared_s = count * costs.segment / costs.model.link_bytes_per_s[i, j]
            np.maximum(period, np.where(period > 0, shared_s, 0.0), out=period)
    for shared_s in costs.uplinks_s(flows).values():
        np.maximum(period, np.where(period > 0, shared_s, 0.0), out=period)
    return TreePrice(
        first_s=first.max(axis=0),
        period_s=period.max(axis=0),
        total_s=(first + (costs.n_segments - 1) * period).max(axis=0),
    )


def price_rendezvous(model: GridModel, tree: RankTree, n_bytes: int) -> float:
    """Return the seconds of an unsegmented broadcast with a rendezvous on every edge of ``tree``.

    A rank sends a request to each of its children, one after the other, and then the message to
    them in the order of their answers.
    """
    sizes = np.array([REQUEST_BYTES, n_bytes], dtype=float)
    (request_gap_s, message_gap_s), (request_s, message_s) = (
        np.moveaxis(t, 2, 0) for t in model.gap_and_one_way_s(sizes)
    )
    cluster_of = model.grid.cluster_of
    received_s = [0.0] * len(tree.children)
    frontier = [tree.root]
    for rank in frontier:
        mine, children = cluster_of[rank], tree.children[rank]
        free = received_s[rank] + len(children) * request_gap_s[mine, mine]
        answers = []
        for position, child in enumerate(children):
            theirs = cluster_of[child]
            asked = received_s[rank] + position * request_gap_s[mine, mine]
            answers.append(
                (asked + request_s[mine, theirs] + request_s[theirs, mine], position, child)
            )
        for answered, _, child in sorted(answers):
            start = max(free, answered)
            received_s[child] = start + float(message_s[mine, cluster_of[child]])
            free = start + message_gap_s[mine, mine]
        frontier.extend(children)
    return max(received_s)


class Load(Struct, frozen=True):
    """Load of the busiest resource of each kind, per segment, on average over all trees."""

    interfaces: FloatArray
    """(C,) array. Messages per segment that the busiest interface of each cluster sends or
    receives, whichever is more (ranks of one host share an interface). At least 1, since each rank
    receives every segment."""
    flows: dict[tuple[int, int], float]
    links: dict[tuple[int, int], float]
    """Transfers per segment between two clusters: of the busiest pair of ranks, and of all."""
    entries: FloatArray
    """(C,) array. Ranks at which segments enter each cluster, of all trees together."""


def load_of(trees: Sequence[GridTree], grid: Grid) -> Load:
    """Return the load of ``trees``, which take segments in turn; a tree may occur repeatedly."""
    sends = [np.zeros(len(cluster)) for cluster in grid.clusters]
    pairs: Counter[tuple[int, int]] = Counter()
    for tree, n_turns in Counter(trees).items():
        share = n_turns / len(trees)
        served = Counter(sender for sender, _ in tree.transfers)
        for cluster, of_members in enumerate(sends):
            n_fixed = int(cluster == grid.cluster_of[tree.root])  # the root leads all lines
            own = share * degrees(tree.shapes[cluster], len(of_members))
            own[tree.relays[cluster]] += share * served[cluster]
            of_members[:n_fixed] += own[:n_fixed]
            _add_turned(of_members[n_fixed:], own[n_fixed:], tree.lane)
        for sender, receiver in tree.transfers:
            ends = tree.rank_at(grid, sender, tree.relays[sender]), tree.rank_at(grid, receiver, 0)
            pairs[ends] += n_turns
    interfaces = np.array([max(1.0, float(of_members.max())) for of_members in sends])
    for c in range(len(grid.clusters)):
        if grid.clusters[c].shares_nodes:
            interfaces[c] = _busiest_host(trees, grid, c)
    flows: dict[tuple[int, int], float] = {}
    links: dict[tuple[int, int], float] = {}
    for (sender, receiver), count in pairs.items():
        link, share = (grid.cluster_of[sender], grid.cluster_of[receiver]), count / len(trees)
        flows[link] = max(flows.get(link, 0.0), share)
        links[link] = links.get(link, 0.0) + share
    entered: list[set[int]] = [set() for _ in grid.clusters]
    for _, entry in pairs:
        entered[grid.cluster_of[entry]].add(entry)
    entries = np.array([max(len(ranks), 1) for ranks in entered], float)
    return Load(interfaces, flows, links, entries)


def _busiest_host(trees: Sequence[GridTree], grid: Grid, cluster: int) -> float:
    """Return the messages per segment that the busiest host of ``cluster`` sends or receives."""
    host = np.array(grid.host_of)
    hosts = np.unique(host[list(grid.clusters[cluster].ranks)], return_inverse=True)
    number = dict(zip(grid.clusters[cluster].ranks, hosts[1].tolist(), strict=True))
    out, into = np.zeros((2, len(hosts[0])))
    for tree, n_turns in Counter(trees).items():
        line = np.array([number[rank] for rank in tree.line(grid, cluster)])
        sent, received = crossings_of(tree.shapes[cluster], line, len(out))
        sent[line[tree.relays[cluster]]] += len(tree.outgoing[cluster])
        received[line[0]] += cluster != grid.cluster_of[tree.root]
        out += n_turns / len(trees) * sent
        into += n_turns / len(trees) * received
    return float(max(out.max(), into.max(), 1.0))


def _add_turned(total: FloatArray, line: FloatArray, places: int) -> None:
    """Add ``line``, rotated by ``places``, to ``total``; `numpy.roll` would be too slow."""
    at = places % max(len(line), 1)
    total[at:] += line[: len(line) - at]
    total[:at] += line[len(line) - at :]


def price_several(costs: SegmentCosts, trees: Sequence[GridTree], load: Load) -> TreePrice:
    """Price ``trees`` together at every segment size of ``costs``.

    The first segments go down all trees as if each tree were alone. After that, the busiest
    interface limits the rate of all trees, and the busiest flow or link of a tree limits that tree.
    If segments enter a cluster at several ranks, segments from all of these may reach a member at
    the same time and wait for each other. The less busy interfaces are, the less they wait.
    """
    interfaces_s = (load.interfaces[:, None] * costs.port_s).max(axis=0)
    between_s = _periods_between(costs, load)
    rest = np.maximum(costs.n_segments - 1, 0)
    first, period, total = np.zeros((3, len(rest)))
    for tree in {(t.transfers, t.shapes, t.relays): t for t in trees}.values():
        alone = price_tree(costs, tree.transfers, tree.shapes, tree.relays)
        own = np.max([interfaces_s, *(between_s[link] for link in tree.transfers)], axis=0)
        first, period = np.maximum(first, alone.first_s), np.maximum(period, own)
        waits_s = [np.zeros_like(own)] * len(tree.shapes)
        for sender, receiver in tree.transfers:
            waits_s[receiver] = (
                waits_s[sender] + (load.entries[receiver] - 1) * costs.port_s[receiver]
            )
        wait_s = np.max(waits_s, axis=0) * interfaces_s / np.maximum(own, 1e-12)
        total = np.maximum(total, alone.first_s + rest * own + np.minimum(wait_s, rest * own))
    return TreePrice(first, period, total)


def _periods_between(costs: SegmentCosts, load: Load) -> dict[tuple[int, int], FloatArray]:
    """Return the seconds per segment for which each link or its busiest flow is busy, (S,)."""
    gaps, _ = costs.between(list(load.flows))
    found = {
        link: np.maximum(
            load.flows[link] * gap,
            load.links[link] * costs.segment / costs.model.link_bytes_per_s[link],
        )
        for link, gap in zip(load.flows, gaps, strict=True)
    }
    if uplinks_s := costs.uplinks_s(load.links):
        for i, j in found:
            found[i, j] = np.max([found[i, j], uplinks_s[i], uplinks_s[j]], axis=0)
    return found
