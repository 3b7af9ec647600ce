"""What the wires themselves allow: no algorithm is faster than this.

The limit of a collective is the largest of what every cut of the grid demands: each host's network
interface, each cluster's uplink, each set of links that separates clusters from the source; plus
the latency of the shortest path, relays counted as free; and no ways together bring a message
sooner than `model.flow_over_time` says. Of what all of them demand together, see
`model.flow_bounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from gridcoll.errors import UsageError
from gridcoll.model.arborescence import shortest_ways
from gridcoll.model.flow_bounds import (
    allgather_trees_limit_s,
    exchange_limit_s,
    scatter_flow_limit_s,
    trees_limit_s,
)
from gridcoll.model.flow_over_time import over_all_ways_s
from gridcoll.model.plogp import FloatArray
from gridcoll.model.wires import Wires

MOST_TURNS = 3
"""Of a cut: more change nothing that was seen."""

MOST_CLUSTERS_CUT = 10
"""Beyond this many clusters only cuts around one cluster are tried; the limit stays valid."""


def shortest_latency_s(wires: Wires) -> FloatArray:
    """Latency of the shortest path between clusters, (C, C), relays allowed."""
    distance = np.array(wires.latency_s, dtype=float)
    np.fill_diagonal(distance, 0.0)
    return shortest_ways(distance)


def bcast_limit_s(wires: Wires, n_bytes: int, root: int) -> float:
    """No broadcast of ``n_bytes`` from ``root`` ends earlier.

    Every host gets the message by the shortest way and the widest cut. All hosts but the root's are
    sent it by some host, all clusters but the root's by some cluster.
    """
    known_s = _reached_s(wires, n_bytes, root)
    return max(known_s, trees_limit_s(wires, shortest_latency_s(wires), n_bytes, known_s, root))


def _reached_s(wires: Wires, n_bytes: int, root: int) -> float:
    grid = wires.grid
    source = grid.cluster_of[root]
    distance = shortest_latency_s(wires)
    latest = 0.0
    for c, cluster in enumerate(grid.clusters):
        if c == source and len(cluster.nodes) == 1:
            continue
        inside_s = wires.latency_s[c, c] if c == source else 0.0
        slowest_s = max(
            _wire_s(n_bytes, wires.nic_bytes_per_s[source], wires.burst_bytes),
            _wire_s(n_bytes, wires.nic_bytes_per_s[c], wires.burst_bytes),
            n_bytes / _least_cut(wires, source, c) if c != source else 0.0,
        )
        latest = max(latest, distance[source, c] + inside_s + slowest_s)
    for c in range(len(grid.clusters)) if len(grid.clusters) <= MOST_CLUSTERS_CUT else ():
        # What goes straight on is there by then: no bound is above that.
        rates = wires.uplink_bytes_per_s[source], wires.rate_bytes_per_s[source, c]
        straight_s = wires.latency_s[source, c] + n_bytes / min(*rates, wires.uplink_bytes_per_s[c])
        if c != source and straight_s > latest:
            latest = max(latest, over_all_ways_s(wires, source, c, n_bytes))
    n_hosts = np.array([len(cluster.nodes) for cluster in grid.clusters])
    passed = n_bytes * (n_hosts.sum() - 1) - wires.burst_bytes * n_hosts.sum()
    latest = max(latest, float(passed / (n_hosts * wires.nic_bytes_per_s).sum()))
    if len(n_hosts) > 1:
        leaving = sum(_cut(wires, {c}) for c in range(len(n_hosts)))
        latest = max(latest, n_bytes * (len(n_hosts) - 1) / leaving)
    return float(latest)


def _wire_s(n_bytes: int, bytes_per_s: float, burst_bytes: int) -> float:
    return float(max(n_bytes - burst_bytes, 0) / bytes_per_s)


def _least_cut(wires: Wires, source: int, target: int) -> float:
    """Bytes per second from one cluster to another over all paths at once: the least cut.

    Any cut is an upper bound of the flow, so trying fewer cuts only loosens the limit.
    """
    n = len(wires.grid.clusters)
    others = [c for c in range(n) if c not in (source, target)]
    if n > MOST_CLUSTERS_CUT:
        sides = [{source}, set(range(n)) - {target}]
    else:
        sides = [
            {source, *some} for k in range(len(others) + 1) for some in combinations(others, k)
        ]
    return min(_cut(wires, side) for side in sides)


def _cut(wires: Wires, side: set[int]) -> float:
    """Bytes per second that can leave the clusters in ``side``, whatever is limited by it."""
    key = frozenset(side)
    if key not in wires.cuts:
        wires.cuts[key] = _find_cut(wires, side)
    return wires.cuts[key]


def _find_cut(wires: Wires, side: set[int]) -> float:
    """The same, found.

    Each of them is cut off by its links, or by its interfaces or uplink, and each beyond likewise.
    Which of these is least is found for one side given the other, in turns; any of them bounds.
    """
    inside = sorted(side)
    beyond = [c for c in range(len(wires.grid.clusters)) if c not in side]
    n_hosts = np.array([len(cluster.nodes) for cluster in wires.grid.clusters])
    ends = np.minimum(n_hosts * wires.nic_bytes_per_s, wires.uplink_bytes_per_s)
    rates = wires.rate_bytes_per_s[np.ix_(inside, beyond)]
    rates, least = np.minimum(rates, ends[inside, None]), np.inf
    for first_inside in (True, False):
        links, near, far = (rates, ends[inside], ends[beyond])
        if not first_inside:
            links, near, far = links.T, far, near
        by_end = np.zeros(len(far), dtype=bool)
        for _ in range(MOST_TURNS):
            by_near = near < np.where(by_end, 0.0, links).sum(axis=1)
            by_end = far < np.where(by_near[:, None], 0.0, links).sum(axis=0)
            cut = near[by_near].sum() + far[by_end].sum()
            crossing = links[np.ix_(~by_near, ~by_end)].sum()
            least = min(least, float(cut + crossing))
    return least


def alltoall_limit_s(wires: Wires, n_bytes: int, root: int = 0) -> float:
    """No all-to-all of ``n_bytes`` per pair ends earlier; ``root`` is ignored.

    Every host's interface passes ``P - 1`` blocks for each of its ranks, either way; a block that
    it passes then is still its latency away. Even with the farthest first, the ``k``-th comes after
    ``k`` blocks and the ``k``-th largest latency. What crosses a cut takes the cut's links. And
    while blocks are on their way, interfaces wait for them.
    """
    grid, distance = wires.grid, shortest_latency_s(wires)
    latest = _in_flight_s(wires, distance, n_bytes)
    for c, cluster in enumerate(grid.clusters):
        for n_here in sorted({len(node) for node in cluster.nodes}):
            for away_s in (distance[c], distance[:, c]):
                latest = max(latest, _host_s(wires, c, n_here, away_s, n_bytes))
    for side in _sides(len(grid.clusters)):
        inside = sum(len(grid.clusters[c]) for c in side)
        crossing_bytes = inside * (grid.n_ranks - inside) * n_bytes
        latest = max(latest, _crossed_s(wires, distance, side, side, crossing_bytes))
    return max(latest, exchange_limit_s(wires, n_bytes, latest))


def _in_flight_s(wires: Wires, distance: FloatArray, n_bytes: int) -> float:
    """When the last block is there, by when bytes are sent and arrive on average.

    An interface that passes ``B`` bytes at ``r`` until ``T`` has sent them no sooner on average
    than ``B / 2r`` and received them no later than ``T - B / 2r``. Between the two is the average
    latency, so ``T`` is at least that and ``B / r``.
    """
    n_ranks = wires.grid.n_ranks
    away_s = np.array(distance)
    np.fill_diagonal(away_s, wires.latency_s.diagonal())
    sizes = [len(cluster) for cluster in wires.grid.clusters]
    passed = busy = under_way = 0.0
    for c, cluster in enumerate(wires.grid.clusters):
        for n_here in map(len, cluster.nodes):
            out_bytes = n_here * (n_ranks - n_here) * n_bytes
            passed += out_bytes
            busy += max(out_bytes - wires.burst_bytes, 0) ** 2 / wires.nic_bytes_per_s[c]
            to_all_s = float(np.dot(sizes, away_s[c])) - n_here * away_s[c, c]
            under_way += n_here * to_all_s * n_bytes
    return float((busy + under_way) / passed) if passed else 0.0


def _host_s(wires: Wires, cluster: int, n_here: int, away_s: FloatArray, n_bytes: int) -> float:
    """When the last block between a host with ``n_here`` ranks and all others is there."""
    counts = [n_here * len(other) for other in wires.grid.clusters]
    counts[cluster] -= n_here * n_here
    return _interface_s(wires, cluster, counts, away_s, n_bytes)


def _interface_s(
    wires: Wires, cluster: int, counts: Sequence[int], away_s: FloatArray, n_bytes: int
) -> float:
    """When the last of ``counts`` blocks by cluster has passed an interface and its way."""
    away_s = np.array(away_s)
    away_s[cluster] = wires.latency_s[cluster, cluster]
    passed, latest = 0, 0.0
    for other in np.argsort(-away_s, kind="stable"):
        if counts[other]:
            passed += counts[other]
            wire_s = _wire_s(passed * n_bytes, wires.nic_bytes_per_s[cluster], wires.burst_bytes)
            latest = max(latest, wire_s + float(away_s[other]))
    return latest


def _sides(n: int) -> list[set[int]]:
    """One side of every cut through ``n`` clusters, or of those around one where there are many."""
    if n > MOST_CLUSTERS_CUT:
        return [{c} for c in range(n)] + [set(range(n)) - {c} for c in range(n)]
    return [set(some) for k in range(1, n) for some in combinations(range(n), k)]


def _crossed_s(
    wires: Wires, distance: FloatArray, side: set[int], sources: set[int], n_bytes: int
) -> float:
    """When ``n_bytes`` have left ``side``, and what left last has come from ``sources``."""
    beyond = [c for c in range(len(distance)) if c not in side]
    return float(n_bytes / _cut(wires, side) + distance[np.ix_(sorted(sources), beyond)].min())


def scatter_limit_s(wires: Wires, n_bytes: int, root: int) -> float:
    """No scatter of ``n_bytes`` per rank from ``root`` ends earlier.

    The root's interface passes a block for every rank of other hosts, those with the longest way
    first; what is for ranks behind a cut takes the cut's links.
    """
    grid, distance = wires.grid, shortest_latency_s(wires)
    home = grid.cluster_of[root]
    counts = [len(cluster) for cluster in grid.clusters]
    counts[home] -= grid.host_of.count(grid.host_of[root])
    latest = _interface_s(wires, home, counts, distance[home], n_bytes)
    for c, cluster in enumerate(grid.clusters):
        if c != home:
            n_here = max(len(node) for node in cluster.nodes)
            wire_s = _wire_s(n_here * n_bytes, wires.nic_bytes_per_s[c], wires.burst_bytes)
            latest = max(latest, wire_s + float(distance[home, c]))
    for side in _sides(len(grid.clusters)):
        if home in side:
            n_crossing = grid.n_ranks - sum(len(grid.clusters[c]) for c in side)
            latest = max(latest, _crossed_s(wires, distance, side, {home}, n_crossing * n_bytes))
    return max(latest, scatter_flow_limit_s(wires, n_bytes, latest, home))


def gather_limit_s(wires: Wires, n_bytes: int, root: int) -> float:
    """No gather of ``n_bytes`` per rank to ``root`` ends earlier: a scatter's limit, backwards."""
    return scatter_limit_s(_backwards(wires), n_bytes, root)


def allgather_limit_s(wires: Wires, n_bytes: int, root: int = 0) -> float:
    """No allgather of ``n_bytes`` per rank ends earlier; ``root`` is ignored.

    Every host's interface takes in the blocks of all ranks on other hosts, the last to come having
    the shortest way; what is on one side of a cut must cross it once.
    """
    grid, distance = wires.grid, shortest_latency_s(wires)
    latest = 0.0
    for c, cluster in enumerate(grid.clusters):
        for n_here in sorted({len(node) for node in cluster.nodes}):
            counts = [len(other) for other in grid.clusters]
            counts[c] -= n_here
            latest = max(latest, _interface_s(wires, c, counts, distance[:, c], n_bytes))
    for side in _sides(len(grid.clusters)):
        n_inside = sum(len(grid.clusters[c]) for c in side)
        latest = max(latest, _crossed_s(wires, distance, side, side, n_inside * n_bytes))
    return max(latest, allgather_trees_limit_s(wires, n_bytes, latest))


def reduce_scatter_limit_s(wires: Wires, n_bytes: int, root: int = 0) -> float:
    """No reduce-scatter of ``n_bytes`` per rank ends earlier: an allgather's limit, backwards."""
    return allgather_limit_s(_backwards(wires), n_bytes)


def _backwards(wires: Wires) -> Wires:
    return replace(wires, latency_s=wires.latency_s.T, rate_bytes_per_s=wires.rate_bytes_per_s.T)


def allreduce_limit_s(wires: Wires, n_bytes: int, root: int = 0) -> float:
    """No allreduce of ``n_bytes`` ends earlier; ``root`` is ignored.

    Every rank needs a message's worth of bytes that depend on the rank farthest from it: no shorter
    than a broadcast between the two. Every element is combined ``P - 1`` times and handed out as
    often, so that all interfaces together pass ``2 m (P-1)`` bytes each way, ``2 m (P-1) / P`` each
    where they are equal; until something arrives from other clusters, only what combines a
    cluster's own elements. Taken between clusters, the same holds for what leaves them.
    """
    clusters, rates = wires.grid.clusters, wires.nic_bytes_per_s
    latest = max(_reached_s(wires, n_bytes, cluster.ranks[0]) for cluster in clusters)
    n_hosts = np.array([len(cluster.nodes) for cluster in clusters])
    together = float((n_hosts * rates).sum())
    passed = 2 * n_bytes * (n_hosts.sum() - 1) - wires.burst_bytes * n_hosts.sum()
    latest = max(latest, passed / together)
    if len(clusters) > 1:
        between_s = shortest_latency_s(wires)[~np.eye(len(clusters), dtype=bool)].min()
        alone = n_bytes * (n_hosts - 1).sum()
        leaving = sum(_cut(wires, {c}) for c in range(len(clusters)))
        crossing_s = 2 * n_bytes * (len(clusters) - 1) / leaving
        latest = max(latest, between_s + max((passed - alone) / together, crossing_s))
    known_s = float(latest)
    return max(known_s, trees_limit_s(wires, shortest_latency_s(wires), n_bytes, known_s))


def reduce_limit_s(wires: Wires, n_bytes: int, root: int) -> float:
    """No reduction of ``n_bytes`` to ``root`` ends earlier: a broadcast's limit, backwards."""
    return bcast_limit_s(_backwards(wires), n_bytes, root)


def barrier_limit_s(wires: Wires, n_bytes: int, root: int = 0) -> float:
    """No rank can know of all others earlier; size and root play no part."""
    return allreduce_limit_s(wires, 0)


_LIMITS = {
    "bcast": bcast_limit_s,
    "alltoall": alltoall_limit_s,
    "allreduce": allreduce_limit_s,
    "reduce": reduce_limit_s,
    "gather": gather_limit_s,
    "scatter": scatter_limit_s,
    "allgather": allgather_limit_s,
    "reduce_scatter": reduce_scatter_limit_s,
    "barrier": barrier_limit_s,
}


LIMITED = frozenset(_LIMITS)
"""Collectives with a known limit."""


def limit_s(collective: str, wires: Wires, n_bytes: int, root: int = 0) -> float:
    """The physical limit of ``collective`` on ``wires``, in seconds.

    Raises `UsageError` for a collective without a known limit.
    """
    try:
        bound = _LIMITS[collective]
    except KeyError:
        raise UsageError(f"limit of {collective!r}: known are {', '.join(_LIMITS)}") from None
    return float(bound(wires, n_bytes, root))


_OUTWARD, _INWARD = ("bcast", "scatter"), ("reduce", "gather")


def plain_limit_s(collective: str, wires: Wires, n_bytes: int, root: int = 0) -> float:
    """What the busiest wire is busy, and after that the longest way: a limit as people reckon it.

    For a broadcast ``m / NIC + L``, for an allreduce ``2 m (P-1) / P / NIC + L``, for an all-to-all
    ``(P-1) m / NIC + L``, or what an uplink or a link between clusters takes, if that is more.
    Never less than `limit_s`, and no bound: what is relayed over nearer clusters, or lets latency
    pass while wires work, may be faster.
    """
    latency_s = np.array(wires.latency_s, dtype=float)
    strict_s = limit_s(collective, wires, n_bytes, root)
    busy_s = limit_s(collective, replace(wires, latency_s=np.zeros_like(latency_s)), n_bytes, root)
    for c, cluster in enumerate(wires.grid.clusters):
        if len(cluster.nodes) < 2:
            latency_s[c, c] = 0.0  # one rank: nothing to send
    home = wires.grid.cluster_of[root]
    if collective in _OUTWARD:
        return max(strict_s, busy_s + float(latency_s[home].max()))
    if collective in _INWARD:
        return max(strict_s, busy_s + float(latency_s[:, home].max()))
    return max(strict_s, busy_s + float(latency_s.max()))
