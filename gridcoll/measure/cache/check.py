"""Check by a few round trips whether hosts and links are still as in the cache.

First each host checks another one of its cluster, along a tree. Then pairs of clusters are checked,
as many at once as there are free hosts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mpi4py import MPI
from msgspec import Struct, field

from gridcoll.engine.agreement import tell_all
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.probe import Channel
from gridcoll.model import PLogP
from gridcoll.topology.grid import Grid
from gridcoll.topology.rounds import in_rounds

TRIPS_INSIDE = 40
"""Round trips inside a cluster. They cost nothing, and on a busy host only the shortest of many
shows the latency."""

FEW_TRIPS = 6
"""Round trips that are enough if one was so short that the host cannot have moved."""

TRIPS_BETWEEN = 6
"""Round trips between clusters."""

BULK_TRIPS = 6
"""Most round trips with a long message. Windows are small in the first ones. The first one that
takes the expected time is the last."""

SHORTEST_BULK_BYTES = 1 << 12
LONGEST_BULK_BYTES = 1 << 20

SHORT_TRIP_S = 4e-3
"""Assumed round trip to the nearest other cluster if none is known."""

Index = tuple[int, int]
"""Numbers of two clusters of a grid; equal for the inside of a cluster."""


class Expected(Struct, frozen=True):
    """What is expected of a link."""

    link: PLogP
    latency_spread_s: float = 0.0
    """Standard deviation of its latency over repeated measurements."""
    is_of_this_mpi: bool = True
    """Whether it was measured under this MPI library. Another one may use another handshake for
    long messages."""

    @property
    def trip_s(self) -> float:
        """Time of an empty round trip."""
        return 2 * float(self.link.one_way(0.0))

    def latency_is_off(self, trip_s: float, tolerance: float) -> bool:
        """Whether the shortest of some round trips is not as expected.

        It has to differ by more than ``tolerance``, and by six times the spread of the latency.
        """
        least = tolerance * min(trip_s, self.trip_s)
        return abs(trip_s - self.trip_s) > max(least, 6 * self.latency_spread_s)

    def bulk_bytes(self) -> int:
        """Return the bytes of a message that takes a quarter to half of a round trip.

        It shows a rate that fell to a tenth. A longer message would have to open windows first.
        """
        longest_s = max(self.trip_s / 2, 1e-3)
        n_bytes = SHORTEST_BULK_BYTES
        while n_bytes < LONGEST_BULK_BYTES and self.link.gap(2.0 * n_bytes) <= longest_s:
            n_bytes *= 2
        return n_bytes

    def bulk_is_off(self, n_bytes: int, took_s: float, trip_s: float, tolerance: float) -> bool:
        """Whether the time that a message takes beyond an empty one is not as expected.

        ``took_s`` may differ by ``tolerance`` plus a quarter of a round trip, which allows for
        clocks and windows. With another library, its handshake may be one round trip more or less.
        """
        expected_s = float(self.link.one_way(float(n_bytes))) - self.trip_s / 2
        seen_s = took_s - trip_s
        slack_s = tolerance * min(max(seen_s, 0.0), expected_s) + trip_s / 4
        if not self.is_of_this_mpi:
            slack_s += trip_s
        return abs(seen_s - expected_s) > slack_s

    def rate(self, n_bytes: int, took_s: float, trip_s: float) -> float:
        """Return the bytes per second of a message; an empty one takes ``trip_s``."""
        return n_bytes / max(took_s - trip_s, float(self.link.gap(0.0)), 1e-9)


class Edge(Struct, frozen=True):
    """Two ranks that check the link between them. The first one is the active end."""

    clusters: Index
    ranks: tuple[int, int]


class CheckResult(Struct, frozen=True):
    """The result of a check."""

    moved: frozenset[int] = frozenset()
    """Lowest ranks of hosts that are no longer in their clusters."""
    changed: frozenset[Index] = frozenset()
    """Links that changed, by clusters in ascending order; for both directions."""
    unchanged: Mapping[Index, tuple[float, float]] = field(default_factory=dict)
    """Latency in seconds and bytes per second (0: not measured) of links that did not change."""
    inside_s: Mapping[int, float] = field(default_factory=dict)
    """The longest present latency between two hosts of each cluster that did not move."""


def edges_inside(grid: Grid) -> list[list[Edge]]:
    """Return an edge from each host of a cluster to its parent in a binary tree, in rounds.

    In a round, no host has two edges. A host that moved is far from its parent. If the parent moved
    along with it, they are still near each other, and `moved_hosts` contains both.
    """
    edges = []
    for c, cluster in enumerate(grid.clusters):
        leaders = [node[0].rank for node in cluster.nodes]
        edges += [Edge((c, c), (leaders[(k - 1) // 2], leaders[k])) for k in range(1, len(leaders))]
    return in_rounds(edges, lambda edge: edge.ranks)


def edges_between(grid: Grid, pairs: Collection[Index]) -> list[list[Edge]]:
    """Return an edge between a host of each cluster for every pair, in rounds of disjoint hosts.

    The k-th host of a cluster is used for its k-th pair, cyclically if there are too few.
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


def moved_hosts(grid: Grid, far: Collection[int]) -> frozenset[int]:
    """Return the leaders of hosts that are ``far`` from their parents, and of their descendants."""
    found = set()
    for cluster in grid.clusters:
        leaders = [node[0].rank for node in cluster.nodes]
        lost: set[int] = set()
        for k in range(1, len(leaders)):
            if leaders[k] in far or (k - 1) // 2 in lost:
                lost.add(k)
        # If all children of the root are lost, it may be the root that moved.
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
    check_hosts: bool = True,
) -> CheckResult:
    """Check hosts (if ``check_hosts``) and the links of ``pairs``. Collective; equal on all ranks.

    Each pair is in ascending order. Both directions are checked if both are ``expected``.
    """
    rank = comm.Get_rank()
    near_trips: list[tuple[int, int, float]] = []
    mine: list[tuple[Index, float, float, bool]] = []
    limits_s = inside_limits_s(expected, tolerance)
    if check_hosts:
        for edge in _own(edges_inside(grid), rank):
            c = edge.clusters[0]
            if c in limits_s:
                bounds_s = (1 + tolerance) * expected[c, c].trip_s, limits_s[c]
                trip_s = shortest_trip(_channel(comm, edge), TRIPS_INSIDE, *bounds_s)
                near_trips.append((c, edge.ranks[1], trip_s))
    for edge in _own(edges_between(grid, pairs), rank):
        mine += _check_link(_channel(comm, edge), edge.clusters, expected, tolerance)
    wait_for_all(comm)
    rows = tell_all(comm, (near_trips, mine))
    trips = [trip for trips, _ in rows for trip in trips]
    inside_s: dict[int, float] = {}
    for c, _, trip_s in trips:
        if trip_s <= limits_s[c]:
            inside_s[c] = max(inside_s.get(c, 0.0), trip_s / 2)
    moved = moved_hosts(grid, {host for c, host, trip_s in trips if trip_s > limits_s[c]})
    link_results = [result for _, link_results in rows for result in link_results]
    changed = {tuple(sorted(pair)) for pair, _, _, is_off in link_results if is_off}
    return CheckResult(
        moved,
        frozenset((pair[0], pair[1]) for pair in changed),
        {
            pair: (latency_s, rate)
            for pair, latency_s, rate, _ in link_results
            if tuple(sorted(pair)) not in changed
        },
        inside_s,
    )


def inside_limits_s(expected: Mapping[Index, Expected], tolerance: float) -> dict[int, float]:
    """Return the longest round trip between two hosts that are still in a cluster, by cluster.

    It is halfway (geometrically) between the expected one and that to the nearest other cluster:
    round trips are longer with busy hosts and other libraries, but much longer if a host moved.
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
    most_trips: int,
    enough_s: float,
    good_s: float = 0.0,
    hopeless_s: float = float("inf"),
) -> float:
    """Return the shortest of ``most_trips`` empty round trips; the same on both ends.

    There are fewer if one is as short as ``enough_s``, `FEW_TRIPS` if one is as short as
    ``good_s``, and a single one if it is longer than ``hopeless_s``. One more before them opens the
    connection and does not count.
    """
    channel.round_trip_s(0)
    shortest_s = channel.round_trip_s(0)
    going = channel.agree(int(shortest_s <= hopeless_s))
    for n in range(1, most_trips if going else 1):
        limit_s = enough_s if n < FEW_TRIPS else max(enough_s, good_s)
        if channel.agree(int(shortest_s <= limit_s)):
            break
        shortest_s = min(shortest_s, channel.round_trip_s(0))
    return channel.agree(int(shortest_s * 1e9)) * 1e-9


def _check_link(
    channel: Channel, pair: Index, expected: Mapping[Index, Expected], tolerance: float
) -> list[tuple[Index, float, float, bool]]:
    """Return latency and rate of a pair's directions, and whether either is off.

    Each end reports the direction in which it sends. If the latency is off, no rate is measured.
    """
    there, back = pair, (pair[1], pair[0])
    link = expected.get(there) or expected[back]

    trip_s = shortest_trip(channel, TRIPS_BETWEEN, link.trip_s * (1 + tolerance / 2))
    if link.latency_is_off(trip_s, tolerance):
        return [(pair, trip_s / 2, 0.0, True)] if channel.active else []
    if found := _check_both_ways_at_once(channel, pair, expected, trip_s, tolerance):
        return found
    for direction, sends in ((there, channel.active), (back, not channel.active)):
        if direction not in expected:
            continue
        one_way_channel = Channel(channel.comm, channel.peer, sends)
        rate, off = _check_bulk(one_way_channel, expected[direction], trip_s, tolerance)
        if sends:
            found.append((direction, trip_s / 2, rate, off))
    return found


def _check_both_ways_at_once(
    channel: Channel,
    pair: Index,
    expected: Mapping[Index, Expected],
    trip_s: float,
    tolerance: float,
) -> list[tuple[Index, float, float, bool]]:
    """Do the same with long messages both ways at once, which needs half the round trips.

    The result is empty if it is not conclusive: if the directions differ, or if something is off,
    perhaps because the directions slow each other.
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


def _check_bulk(
    channel: Channel, link: Expected, trip_s: float, tolerance: float
) -> tuple[float, bool]:
    """Return the bytes per second of a long message, and whether its time is not as expected.

    On the active end. The quickest of up to `BULK_TRIPS` messages counts, or the first one that
    takes the expected time.
    """
    n_bytes, took_s, off = link.bulk_bytes(), float("inf"), True
    for _ in range(BULK_TRIPS):
        took_s = min(took_s, channel.round_trip_s(n_bytes))
        off = channel.active and link.bulk_is_off(n_bytes, took_s, trip_s, tolerance)
        if not channel.agree(int(off)):
            break
    return link.rate(n_bytes, took_s, trip_s), off
