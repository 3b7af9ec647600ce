"""Lower bounds of the times of collectives, from the wires alone: no algorithm is faster.

The limit of a collective is the largest time that any cut of the grid needs, plus the latency of
the shortest path, where relays cost nothing. A cut is a host's network interface, a cluster's
uplink, or a set of links that separates clusters from the source. `model.flow_over_time` bounds the
time of a message over all paths together, `model.flow_bounds` that of all resources together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from msgspec.structs import replace

from gridcoll.errors import UsageError
from gridcoll.model.arborescence import shortest_paths
from gridcoll.model.flow_bounds import (
    allgather_trees_limit_s,
    exchange_limit_s,
    scatter_flow_limit_s,
    trees_limit_s,
)
from gridcoll.model.flow_over_time import over_all_paths_s
from gridcoll.model.plogp import FloatArray
from gridcoll.model.wires import Cut, Wires

MOST_CUT_STEPS = 3
"""Steps in the search for the least cut. More steps never changed a result."""

MOST_CLUSTERS_CUT = 10
"""With more clusters, only cuts around one cluster are tried. The limit stays valid."""


def shortest_latency_s(wires: Wires) -> FloatArray:
    """Return the latency of the shortest path between clusters, (C, C), relays allowed."""
    distance = np.array(wires.latency_s, dtype=float)
    np.fill_diagonal(distance, 0.0)
    return shortest_paths(distance)


def bcast_limit_s(wires: Wires, n_bytes: int, root: int) -> float:
    """No broadcast of ``n_bytes`` from ``root`` ends earlier.

    The message reaches every host after the latency of the shortest path and its time on the least
    cut. Some host must send it to every host but the root's, and some cluster to every cluster but
    the root's.
    """
    known_s = _all_reached_s(wires, n_bytes, root)
    return max(known_s, trees_limit_s(wires, shortest_latency_s(wires), n_bytes, known_s, root))


def _all_reached_s(wires: Wires, n_bytes: int, root: int) -> float:
    """No ``n_bytes`` from ``root`` reach all hosts earlier."""
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
            _least_cut_s(wires, source, c, n_bytes) if c != source else 0.0,
        )
        latest = max(latest, distance[source, c] + inside_s + slowest_s)
    for c in range(len(grid.clusters)) if len(grid.clusters) <= MOST_CLUSTERS_CUT else ():
        # A direct message arrives at this time, so the bound over all paths is not above it.
        ends = (min(wires.uplink_bytes_per_s[e], wires.nic_bytes_per_s[e]) for e in (source, c))
        least = min(wires.rate_bytes_per_s[source, c], *ends)
        direct_s = wires.latency_s[source, c] + n_bytes / least
        if c != source and direct_s > latest:
            latest = max(latest, over_all_paths_s(wires, source, c, n_bytes))
    n_hosts = np.array(grid.hosts_per_cluster)
    passed = n_bytes * (n_hosts.sum() - 1) - wires.burst_bytes * n_hosts.sum()
    latest = max(latest, float(passed / (n_hosts * wires.nic_bytes_per_s).sum()))
    if len(n_hosts) > 1:
        latest = max(latest, _all_leave_s(wires, n_bytes * (len(n_hosts) - 1)))
    return float(latest)


def _wire_s(n_bytes: int, bytes_per_s: float, burst_bytes: int) -> float:
    """Return how long an interface is busy with ``n_bytes``. A burst passes at no cost."""
    return float(max(n_bytes - burst_bytes, 0) / bytes_per_s)


def _least_cut_s(wires: Wires, source: int, target: int, n_bytes: int) -> float:
    """Return how long ``n_bytes`` need on the least cut between two clusters, in seconds.

    Every cut is an upper bound of the flow over all paths, so fewer cuts only loosen the limit.
    """
    n = len(wires.grid.clusters)
    others = [c for c in range(n) if c not in (source, target)]
    if n > MOST_CLUSTERS_CUT:
        sides = [{source}, set(range(n)) - {target}]
    else:
        sides = [
            {source, *some} for k in range(len(others) + 1) for some in combinations(others, k)
        ]
    return max(_cut(wires, side).passed_s(n_bytes) for side in sides)


def _all_leave_s(wires: Wires, n_bytes: int) -> float:
    """Return how long ``n_bytes`` in all need to leave the clusters that have them, in seconds."""
    cuts = [_cut(wires, {c}) for c in range(len(wires.grid.clusters))]
    return Cut(*map(sum, zip(*cuts, strict=True))).passed_s(n_bytes)


def _cut(wires: Wires, side: set[int]) -> Cut:
    """Return what can leave the clusters in ``side`` at most; cached."""
    key = frozenset(side)
    if key not in wires.cuts:
        wires.cuts[key] = _find_cut(wires, side)
    return wires.cuts[key]


def _find_cut(wires: Wires, side: set[int]) -> Cut:
    """Compute `_cut`.

    Each cluster is cut off either at its links or at its end: its interfaces or its uplink,
    whichever carries less. The best choice for one side, given that of the other, is made for both
    sides in turns. Every choice is an upper bound.
    """
    inside = sorted(side)
    beyond = [c for c in range(len(wires.grid.clusters)) if c not in side]
    n_hosts = np.array(wires.grid.hosts_per_cluster)
    interfaces = n_hosts * wires.nic_bytes_per_s
    ends = np.minimum(interfaces, wires.uplink_bytes_per_s)
    bursts = np.where(interfaces <= wires.uplink_bytes_per_s, n_hosts * wires.burst_bytes, 0)
    rates = wires.rate_bytes_per_s[np.ix_(inside, beyond)]
    at_links = np.where(rates > ends[inside, None], bursts[inside, None], 0)
    rates, least = np.minimum(rates, ends[inside, None]), (np.inf, 0.0)
    for first_inside in (True, False):
        links, near, far = (rates, ends[inside], ends[beyond])
        link_bursts, near_bursts, far_bursts = at_links, bursts[inside], bursts[beyond]
        if not first_inside:
            links, near, far = links.T, far, near
            link_bursts, near_bursts, far_bursts = at_links.T, far_bursts, near_bursts
        far_is_cut = np.zeros(len(far), dtype=bool)
        for _ in range(MOST_CUT_STEPS):
            near_is_cut = near < np.where(far_is_cut, 0.0, links).sum(axis=1)
            far_is_cut = far < np.where(near_is_cut[:, None], 0.0, links).sum(axis=0)
            cut = near[near_is_cut].sum() + far[far_is_cut].sum()
            left = np.ix_(~near_is_cut, ~far_is_cut)
            at_once = near_bursts[near_is_cut].sum() + far_bursts[far_is_cut].sum()
            at_once += link_bursts[left].sum()
            least = min(least, (float(cut + links[left].sum()), float(at_once)))
    return Cut(*least)


def alltoall_limit_s(wires: Wires, n_bytes: int, root: int = 0) -> float:
    """No all-to-all of ``n_bytes`` per pair ends earlier; ``root`` is ignored.

    Every host's interface sends and receives the blocks between its ranks and all ranks on other
    hosts. A block that has passed it still needs its latency. Even if blocks with the largest
    latency go first, the ``k``-th one arrives no sooner than after ``k`` blocks and the ``k``-th
    largest latency. Blocks that cross a cut need time on its links. Interfaces are also idle while
    blocks are in flight.
    """
    grid, distance = wires.grid, shortest_latency_s(wires)
    latest = _in_flight_s(wires, distance, n_bytes)
    for c, cluster in enumerate(grid.clusters):
        for n_here in sorted({len(node) for node in cluster.nodes}):
            for latency_s in (distance[c], distance[:, c]):
                latest = max(latest, _host_s(wires, c, n_here, latency_s, n_bytes))
    for side in _sides(len(grid.clusters)):
        inside = sum(len(grid.clusters[c]) for c in side)
        crossing_bytes = inside * (grid.n_ranks - inside) * n_bytes
        latest = max(latest, _crossed_s(wires, distance, side, side, crossing_bytes))
    return max(latest, exchange_limit_s(wires, n_bytes, latest))


def _in_flight_s(wires: Wires, distance: FloatArray, n_bytes: int) -> float:
    """Bound the end of an all-to-all by the average times at which bytes are sent and arrive.

    An interface that passes ``B`` bytes at rate ``r`` until time ``T`` has sent them on average no
    sooner than ``B / 2r`` and received them on average no later than ``T - B / 2r``. The difference
    is at least the average latency, so ``T`` is at least that plus ``B / r``.
    """
    n_ranks = wires.grid.n_ranks
    latency_s = np.array(distance)
    np.fill_diagonal(latency_s, wires.latency_s.diagonal())
    sizes = wires.grid.ranks_per_cluster
    passed = busy = in_flight = 0.0
    for c, cluster in enumerate(wires.grid.clusters):
        for n_here in map(len, cluster.nodes):
            out_bytes = n_here * (n_ranks - n_here) * n_bytes
            passed += out_bytes
            busy += max(out_bytes - wires.burst_bytes, 0) ** 2 / wires.nic_bytes_per_s[c]
            to_all_s = float(np.dot(sizes, latency_s[c])) - n_here * latency_s[c, c]
            in_flight += n_here * to_all_s * n_bytes
    return float((busy + in_flight) / passed) if passed else 0.0


def _host_s(wires: Wires, cluster: int, n_here: int, latency_s: FloatArray, n_bytes: int) -> float:
    """Bound the time of the last block between a host with ``n_here`` ranks and all others."""
    counts = [n_here * len(other) for other in wires.grid.clusters]
    counts[cluster] -= n_here * n_here
    return _interface_s(wires, cluster, counts, latency_s, n_bytes)


def _interface_s(
    wires: Wires, cluster: int, counts: Sequence[int], latency_s: FloatArray, n_bytes: int
) -> float:
    """Bound the time when the last block has passed an interface in ``cluster`` and arrived.

    ``counts`` and ``latency_s`` are by cluster of the other end. The farthest blocks pass first.
    """
    latency_s = np.array(latency_s)
    latency_s[cluster] = wires.latency_s[cluster, cluster]
    passed, latest = 0, 0.0
    for other in np.argsort(-latency_s, kind="stable"):
        if counts[other]:
            passed += counts[other]
            wire_s = _wire_s(passed * n_bytes, wires.nic_bytes_per_s[cluster], wires.burst_bytes)
            latest = max(latest, wire_s + float(latency_s[other]))
    return latest


def _sides(n: int) -> list[set[int]]:
    """Return one side of each cut through ``n`` clusters; of many, only of cuts around one."""
    if n > MOST_CLUSTERS_CUT:
        return [{c} for c in range(n)] + [set(range(n)) - {c} for c in range(n)]
    return [set(some) for k in range(1, n) for some in combinations(range(n), k)]


def _crossed_s(
    wires: Wires, distance: FloatArray, side: set[int], sources: set[int], n_bytes: int
) -> float:
    """Bound the time when ``n_bytes`` from ``sources`` have left ``side`` and arrived.

    It is their time on the cut, plus the least latency from ``sources`` to the other side.
    """
    beyond = [c for c in range(len(distance)) if c not in side]
    return _cut(wires, side).passed_s(n_bytes) + float(
        distance[np.ix_(sorted(sources), beyond)].min()
    )


def scatter_limit_s(wires: Wires, n_bytes: int, root: int) -> float:
    """No scatter of ``n_bytes`` per rank from ``root`` ends earlier.

    The root's interface passes a block for every rank on other hosts, at best those with the
    longest path first. Blocks for ranks behind a cut need time on its links.
    """
    grid, distance = wires.grid, shortest_latency_s(wires)
    home = grid.cluster_of[root]
    counts = list(grid.ranks_per_cluster)
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
    """No gather of ``n_bytes`` per rank to ``root`` ends earlier: a scatter's limit, reversed."""
    return scatter_limit_s(_reversed(wires), n_bytes, root)


def allgather_limit_s(wires: Wires, n_bytes: int, root: int = 0) -> float:
    """No allgather of ``n_bytes`` per rank ends earlier; ``root`` is ignored.

    Every host's interface receives the blocks of all ranks on other hosts, at best those with the
    shortest path last. The blocks on one side of a cut must cross it once.
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
    """No reduce-scatter of ``n_bytes`` per rank ends earlier: an allgather's limit, reversed."""
    return allgather_limit_s(_reversed(wires), n_bytes)


def _reversed(wires: Wires) -> Wires:
    """Return ``wires`` with the directions of all links exchanged."""
    return replace(wires, latency_s=wires.latency_s.T, rate_bytes_per_s=wires.rate_bytes_per_s.T)


def allreduce_limit_s(wires: Wires, n_bytes: int, root: int = 0) -> float:
    """No allreduce of ``n_bytes`` ends earlier; ``root`` is ignored.

    Every rank needs a whole message that depends on the rank farthest from it: this takes no less
    time than a broadcast between the two. Every element is combined ``P - 1`` times and distributed
    ``P - 1`` times. All interfaces together pass ``2 m (P-1)`` bytes in each direction, or ``2 m
    (P-1) / P`` each if they are equal. Until data from other clusters arrives, interfaces can only
    work on their own cluster's elements. The same count holds between clusters, for the data that
    leaves them.
    """
    clusters, rates = wires.grid.clusters, wires.nic_bytes_per_s
    latest = max(_all_reached_s(wires, n_bytes, cluster.ranks[0]) for cluster in clusters)
    n_hosts = np.array(wires.grid.hosts_per_cluster)
    together = float((n_hosts * rates).sum())
    passed = 2 * n_bytes * (n_hosts.sum() - 1) - wires.burst_bytes * n_hosts.sum()
    latest = max(latest, passed / together)
    if len(clusters) > 1:
        between_s = shortest_latency_s(wires)[~np.eye(len(clusters), dtype=bool)].min()
        alone = n_bytes * (n_hosts - 1).sum()
        crossing_s = _all_leave_s(wires, 2 * n_bytes * (len(clusters) - 1))
        latest = max(latest, between_s + max((passed - alone) / together, crossing_s))
    known_s = float(latest)
    return max(known_s, trees_limit_s(wires, shortest_latency_s(wires), n_bytes, known_s))


def reduce_limit_s(wires: Wires, n_bytes: int, root: int) -> float:
    """No reduction of ``n_bytes`` to ``root`` ends earlier: a broadcast's limit, reversed."""
    return bcast_limit_s(_reversed(wires), n_bytes, root)


def barrier_limit_s(wires: Wires, n_bytes: int, root: int = 0) -> float:
    """No barrier ends earlier; ``n_bytes`` and ``root`` are ignored."""
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
    """Return the physical limit of ``collective`` on ``wires``, in seconds.

    Raises `UsageError` for a collective without a known limit.
    """
    try:
        bound = _LIMITS[collective]
    except KeyError:
        raise UsageError(f"limit of {collective!r}: known are {', '.join(_LIMITS)}") from None
    return float(bound(wires, n_bytes, root))


_OUTWARD, _INWARD = ("bcast", "scatter"), ("reduce", "gather")


def plain_limit_s(collective: str, wires: Wires, n_bytes: int, root: int = 0) -> float:
    """Return the time of the busiest wire plus the largest latency: a simple estimate, no bound.

    This is ``m / NIC + L`` for a broadcast, ``2 m (P-1) / P / NIC + L`` for an allreduce and
    ``(P-1) m / NIC + L`` for an all-to-all, or the time of an uplink or a link between clusters if
    that is more. It is never less than `limit_s`. An algorithm may be faster if it relays over
    nearer clusters, or if wires are busy while the latency passes.
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
