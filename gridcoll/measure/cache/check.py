"""Are the hosts still where the cache has them, and the links what it says? A few round trips tell.

First each host and another one of its cluster, along a tree; then each pair of clusters, as many
pairs at once as there are hosts that have nothing else to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from mpi4py import MPI

from gridcoll.engine.agreement import tell_all
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.probe import Channel
from gridcoll.model import PLogP
from gridcoll.topology.grid import Grid
from gridcoll.topology.rounds import in_rounds

NEAR_TRIPS = 40
"""Inside a cluster round trips cost nothing, and a busy host shows only in the shortest of many."""

FEW_TRIPS = 6
"""So many are enough where one was short enough to tell that nothing moved."""

FAR_TRIPS = 6
BULK_TRIPS = 6
"""The first ones find small windows; none is made after one that is as it should be."""

SHORTEST_BULK_BYTES = 1 << 12
LONGEST_BULK_BYTES = 1 << 20

SHORT_TRIP_S = 4e-3
"""Of a link beside which hosts of one cluster are near each other, where no other is known."""

Index = tuple[int, int]
"""Two clusters of a grid, or one twice."""


@dataclass(frozen=True)
class Expected:
    """What a link should show."""

    link: PLogP
    latency_spread_s: float = 0.0
    """Standard deviation of its latency where it was measured again and again."""
    is_of_this_mpi: bool = True
    """Whether the library is the same: another one may begin long messages by another handshake."""

    @property
    def trip_s(self) -> float:
        """An empty round trip."""
        return 2 * float(self.link.one_way(0.0))

    def latency_is_off(self, trip_s: float, tolerance: float) -> bool:
        """Whether the shortest of some round trips differs by more than its spread."""
        least = tolerance * min(trip_s, self.trip_s)
        return abs(trip_s - self.trip_s) > max(least, 6 * self.latency_spread_s)

    def bulk_bytes(self) -> int:
        """A message that takes a quarter to half of a round trip: a tenth of its rate shows.

        A longer one would have to open windows first.
        """
        longest_s = max(self.trip_s / 2, 1e-3)
        n_bytes = SHORTEST_BULK_BYTES
        while n_bytes < LONGEST_BULK_BYTES and self.link.gap(2.0 * n_bytes) <= longest_s:
            n_bytes *= 2
        return n_bytes

    def bulk_is_off(self, n_bytes: int, took_s: float, trip_s: float, tolerance: float) -> bool:
        """Whether a message took longer than an empty one by another time than it should.

        By a quarter of a round trip more than `tolerance` allows, which clocks and windows need;
        another library's handshake may be one round trip more, or one less.
        """
        expected_s = float(self.link.one_way(float(n_bytes))) - self.trip_s / 2
        seen_s = took_s - trip_s
        slack_s = tolerance * min(max(seen_s, 0.0), expected_s) + trip_s / 4
        if not self.is_of_this_mpi:
            slack_s += trip_s
        return abs(seen_s - expected_s) > slack_s

    def rate(self, n_bytes: int, took_s: float, trip_s: float) -> float:
        """Bytes per second, of what took so much longer than an empty round trip."""
        return n_bytes / max(took_s - trip_s, float(self.link.gap(0.0)), 1e-9)


@dataclass(frozen=True)
class Edge:
    """Two ranks that look at what lies between them, the first one asks."""

    clusters: Index
    ranks: tuple[int, int]


@dataclass(frozen=True)
class Found:
    """What a check saw."""

    strangers: frozenset[int] = frozenset()
    """Lowest ranks of hosts that are not where they were."""
    off: frozenset[Index] = frozenset()
    """Links that are not what they were, by clusters; both directions alike."""
    seen: Mapping[Index, tuple[float, float]] = field(default_factory=dict)
    """Latency in seconds and bytes per second (0: not seen) of the links that are."""
    near_s: Mapping[int, float] = field(default_factory=dict)
    """By cluster, the longest latency now between two of its hosts that are where they were."""


def near_edges(grid: Grid) -> list[list[Edge]]:
    """Each host of a cluster and the one it hangs from in a binary tree, in rounds.

    In a round no host has two edges. A host that moved is far from the one it hangs from; one that
    hangs from a host that moved along with it is not, and goes with it.
    """
    edges = []
    for c, cluster in enumerate(grid.clusters):
        leaders = [node[0].rank for node in cluster.nodes]
        edges += [Edge((c, c), (leaders[(k - 1) // 2], leaders[k])) for k in range(1, len(leaders))]
    return in_rounds(edges, lambda edge: edge.ranks)


def far_edges(grid: Grid, pairs: Collection[Index]) -> list[list[Edge]]:
    """Each pair of clusters and a host of both, in rounds of disjoint hosts.

    The k-th host of a cluster is for its k-th pair, as far as there are enough.
    """
    used = [0] * len(grid.clusters)
    edges = []
    for a, b in sorted(pairs):
        ranks = []
        for c in (a, b):
            nodes = grid.clusters[c].nodes
            ranks.append(nodes[used[c] % len(nodes)][0].rank)
            used[c] += 1
        edges.append(Edge((a, b), (ranks[0], ranks[1])))
    return in_rounds(edges, lambda edge: edge.ranks)


def strangers_of(grid: Grid, far: Collection[int]) -> frozenset[int]:
    """Leaders of hosts ``far`` from what they hang from, and all that hang from those."""
    found = set()
    for cluster in grid.clusters:
        leaders = [node[0].rank for node in cluster.nodes]
        lost: set[int] = set()
        for k in range(1, len(leaders)):
            if leaders[k] in far or (k - 1) // 2 in lost:
                lost.add(k)
        # Where all that hang from the root are lost, the root may be what moved.
        if {1, 2} & set(range(len(leaders))) <= lost and lost:
            lost.add(0)
        found |= {leaders[k] for k in lost}
    return frozenset(found)


def check_grid(
    comm: MPI.Intracomm,
    grid: Grid,
    expected: Mapping[Index, Expected],
    pairs: Collection[Index],
    tolerance: float,
    *,
    near: bool = True,
) -> Found:
    """Look at hosts (if ``near``) and at the links of ``pairs``. Collective; equal on all ranks.

    ``pairs`` are ascending; of each both directions are looked at, if both are ``expected``.
    """
    rank = comm.Get_rank()
    near_trips: list[tuple[int, int, float]] = []
    mine: list[tuple[Index, float, float, bool]] = []
    limits_s = near_limits_s(expected, tolerance)
    if near:
        for edge in _own(near_edges(grid), rank):
            c = edge.clusters[0]
            if c in limits_s:
                bounds_s = (1 + tolerance) * expected[c, c].trip_s, limits_s[c]
                trip_s = shortest_trip(_channel(comm, edge), NEAR_TRIPS, *bounds_s)
                near_trips.append((c, edge.ranks[1], trip_s))
    for edge in _own(far_edges(grid, pairs), rank):
        mine += _look(_channel(comm, edge), edge.clusters, expected, tolerance)
    wait_for_all(comm)
    rows = tell_all(comm, (near_trips, mine))
    trips = [trip for trips, _ in rows for trip in trips]
    near_s: dict[int, float] = {}
    for c, _, trip_s in trips:
        if trip_s <= limits_s[c]:
            near_s[c] = max(near_s.get(c, 0.0), trip_s / 2)
    strangers = strangers_of(grid, {host for c, host, trip_s in trips if trip_s > limits_s[c]})
    looks = [look for _, looks in rows for look in looks]
    off = {tuple(sorted(pair)) for pair, _, _, is_off in looks if is_off}
    return Found(
        strangers,
        frozenset((pair[0], pair[1]) for pair in off),
        {
            pair: (latency_s, rate)
            for pair, latency_s, rate, _ in looks
            if tuple(sorted(pair)) not in off
        },
        near_s,
    )


def near_limits_s(expected: Mapping[Index, Expected], tolerance: float) -> dict[int, float]:
    """By cluster, what a round trip takes at most between two hosts that still are in it.

    Halfway (geometrically) between its own and that to the nearest other cluster: busy hosts and
    other libraries take longer, but not as much longer as a host that is elsewhere.
    """
    limits = {}
    for (i, j), link in expected.items():
        if i == j:
            away = [other.trip_s for (a, b), other in expected.items() if a == i != b]
            halfway_s = (link.trip_s * min(away, default=SHORT_TRIP_S)) ** 0.5
            limits[i] = max((1 + tolerance) * link.trip_s, halfway_s)
    return limits


def _own(rounds: Sequence[Sequence[Edge]], rank: int) -> list[Edge]:
    return [edge for each in rounds for edge in each if rank in edge.ranks]


def _channel(comm: MPI.Intracomm, edge: Edge) -> Channel:
    active = comm.Get_rank() == edge.ranks[0]
    return Channel(comm, edge.ranks[1] if active else edge.ranks[0], active)


def shortest_trip(
    channel: Channel,
    most: int,
    enough_s: float,
    good_s: float = 0.0,
    hopeless_s: float = float("inf"),
) -> float:
    """The shortest empty round trip of ``most``; the same on both ends.

    Of fewer if one is as short as ``enough_s``, of `FEW_TRIPS` if one is as short as ``good_s``, of
    one that is longer than ``hopeless_s``. The one before them opens the connection.
    """
    channel.round_trip_s(0)
    shortest_s = channel.round_trip_s(0)
    going = channel.agree(int(shortest_s <= hopeless_s))
    for n in range(1, most if going else 1):
        limit_s = enough_s if n < FEW_TRIPS else max(enough_s, good_s)
        if channel.agree(int(shortest_s <= limit_s)):
            break
        shortest_s = min(shortest_s, channel.round_trip_s(0))
    return channel.agree(int(shortest_s * 1e9)) * 1e-9


def _look(
    channel: Channel, pair: Index, expected: Mapping[Index, Expected], tolerance: float
) -> list[tuple[Index, float, float, bool]]:
    """Latency and rate, and whether either is off, of a pair's directions; on its ends.

    Each end reports the direction in which it sends. A latency that is off is enough.
    """
    there, back = pair, (pair[1], pair[0])
    link = expected.get(there) or expected[back]

    trip_s = shortest_trip(channel, FAR_TRIPS, link.trip_s * (1 + tolerance / 2))
    if link.latency_is_off(trip_s, tolerance):
        return [(pair, trip_s / 2, 0.0, True)] if channel.active else []
    if found := _both_ways(channel, pair, expected, trip_s, tolerance):
        return found
    for direction, sends in ((there, channel.active), (back, not channel.active)):
        if direction not in expected:
            continue
        way = Channel(channel.comm, channel.peer, sends)
        rate, off = _bulk(way, expected[direction], trip_s, tolerance)
        if sends:
            found.append((direction, trip_s / 2, rate, off))
    return found


def _both_ways(
    channel: Channel,
    pair: Index,
    expected: Mapping[Index, Expected],
    trip_s: float,
    tolerance: float,
) -> list[tuple[Index, float, float, bool]]:
    """As `_look`, with long messages both ways at once: half the round trips.

    Empty where that does not tell: the directions differ, or something is off, perhaps because
    they hinder each other.
    """
    there, back = expected.get(pair), expected.get((pair[1], pair[0]))
    if there is None or back is None:
        return []
    n_bytes = min(there.bulk_bytes(), back.bulk_bytes())
    each_s = [float(link.link.one_way(float(n_bytes))) for link in (there, back)]
    if max(each_s) > (1 + tolerance / 2) * min(each_s):
        return []
    mine, direction = (there, pair) if channel.active else (back, (pair[1], pair[0]))
    took_s = float("inf")
    for _ in range(BULK_TRIPS):
        took_s = min(took_s, channel.swap_s(n_bytes))
        if not channel.largest(int(mine.bulk_is_off(n_bytes, took_s, trip_s, tolerance))):
            return [(direction, trip_s / 2, mine.rate(n_bytes, took_s, trip_s), False)]
    return []


def _bulk(channel: Channel, link: Expected, trip_s: float, tolerance: float) -> tuple[float, bool]:
    """Bytes per second of one long message, and whether it took another time than it should.

    The quickest of up to `BULK_TRIPS`, or the first that is as it should be; on the active end.
    """
    n_bytes, took_s, off = link.bulk_bytes(), float("inf"), True
    for _ in range(BULK_TRIPS):
        took_s = min(took_s, channel.round_trip_s(n_bytes))
        off = channel.active and link.bulk_is_off(n_bytes, took_s, trip_s, tolerance)
        if not channel.agree(int(off)):
            break
    return link.rate(n_bytes, took_s, trip_s), off
