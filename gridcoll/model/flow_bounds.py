"""Limits by linear programs, which consider all interfaces, links and uplinks at once.

A single cut considers only a few of them. Give a price to a second of each resource, such that all
prices add up to 1. Any trees or routes cost at least as much as the cheapest ones at these prices,
and the busiest resource is busy for at least that long (LP duality). A resource is also idle until
data can reach it, and while the last byte is in flight: that time is added. For a resource that
nothing uses, the idle time is not known. It counts only up to ``known_s``, a limit that is already
known to hold.
"""

from __future__ import annotations

import numpy as np

from gridcoll.model.plogp import FloatArray
from gridcoll.model.routing import blocks_between, least_exchange_s
from gridcoll.model.tree_packing import IdleTimes, Platform, least_from_all_s, least_s
from gridcoll.model.wires import Wires

MOST_CLUSTERS = 24
"""With more clusters, linear programs take seconds, and only cuts are used."""

MOST_ROOTS = 8
"""The same if every cluster is a root of trees. On 25 unlike grids with more clusters, cuts alone
gave the same limits."""


def trees_limit_s(
    wires: Wires, distance_s: FloatArray, n_bytes: int, known_s: float, root: int = -1
) -> float:
    """No trees take ``n_bytes`` from ``root`` to all hosts earlier.

    With ``root`` -1, the trees of an allreduce: up to the top and down again.
    """
    grid = wires.grid
    n = len(grid.clusters)
    if n > MOST_CLUSTERS or n_bytes < 1 or sum(grid.hosts_per_cluster) < 2:
        return 0.0
    outward_s, inward_s = _least_latency_s(wires)
    between_s = np.array(wires.latency_s)
    home = grid.cluster_of[root] if root >= 0 else -1
    counts: list[int] = []
    clusters: list[int] = []
    begin_s: list[float] = []
    root_kind = -1
    for c, cluster in enumerate(grid.clusters):
        n_hosts = len(cluster.nodes)
        if c == home:
            root_kind = len(counts)
            counts.append(1)
            clusters.append(c)
            begin_s.append(0.0)
            n_hosts -= 1
        if n_hosts:
            counts.append(n_hosts)
            clusters.append(c)
            begin_s.append(float(wires.latency_s[c, c] if c == home else distance_s[home, c]))
    if root < 0:
        idle_s = np.minimum(outward_s, inward_s)[clusters]
        links_s, leaves_s = between_s, _off_diagonal(between_s).min(axis=1)
        enters_s = leaves_s
    else:
        idle_s = np.array(begin_s) + outward_s[clusters]
        links_s = distance_s[home][:, None] + between_s
        leaves_s, enters_s = _off_diagonal(links_s).min(axis=1), _off_diagonal(links_s).min(axis=0)
    rates = wires.nic_bytes_per_s[clusters]
    idle = IdleTimes(
        tuple((np.minimum(idle_s, known_s) - wires.burst_bytes / rates).tolist()),
        tuple(map(tuple, np.minimum(links_s, known_s).tolist())),
        tuple(np.minimum(leaves_s, known_s).tolist()),
        tuple(np.minimum(enters_s, known_s).tolist()),
    )
    platform = Platform(
        tuple(counts),
        tuple(clusters),
        tuple(rates.tolist()),
        tuple(map(tuple, wires.rate_bytes_per_s.tolist())),
        tuple(wires.uplink_bytes_per_s.tolist()),
        tuple(map(tuple, between_s.tolist())),
        root_kind,
    )
    return least_s(platform, n_bytes, idle)


def allgather_trees_limit_s(wires: Wires, n_bytes: int, known_s: float) -> float:
    """No trees take a block of ``n_bytes`` from every rank to all other ranks earlier."""
    clusters = wires.grid.clusters
    if not 1 < len(clusters) <= MOST_ROOTS or n_bytes < 1:
        return 0.0
    outward_s, _ = _least_latency_s(wires)
    between_s = np.minimum(_off_diagonal(np.array(wires.latency_s)), known_s)
    rates = wires.nic_bytes_per_s
    idle = IdleTimes(
        tuple((np.minimum(outward_s, known_s) - wires.burst_bytes / rates).tolist()),
        tuple(map(tuple, between_s.tolist())),
        tuple(between_s.min(axis=1).tolist()),
        tuple(between_s.min(axis=0).tolist()),
    )
    platform = Platform(
        wires.grid.hosts_per_cluster,
        tuple(range(len(clusters))),
        tuple(rates.tolist()),
        tuple(map(tuple, wires.rate_bytes_per_s.tolist())),
        tuple(wires.uplink_bytes_per_s.tolist()),
        tuple(map(tuple, wires.latency_s.tolist())),
        root=0,  # makes trees directed; each cluster is the root for its own blocks
    )
    blocks = [float(len(cluster)) for cluster in clusters]
    return least_from_all_s(platform, blocks, n_bytes, idle, known_s)


def exchange_limit_s(wires: Wires, n_bytes: int, known_s: float) -> float:
    """No routes, over any clusters, complete an all-to-all of ``n_bytes`` per pair earlier."""
    return _flow_limit_s(wires, n_bytes, known_s, blocks_between(wires.grid))


def scatter_flow_limit_s(wires: Wires, n_bytes: int, known_s: float, home: int) -> float:
    """No routes complete a scatter of ``n_bytes`` per rank from cluster ``home`` earlier.

    Blocks for the root's own cluster are left out.
    """
    sizes = np.array(wires.grid.ranks_per_cluster, float)
    demand = np.zeros((len(sizes),) * 2)
    demand[home] = sizes
    demand[home, home] = 0.0
    return _flow_limit_s(wires, n_bytes, known_s, demand)


def _flow_limit_s(wires: Wires, n_bytes: int, known_s: float, demand: FloatArray) -> float:
    """No routes deliver ``demand``, in blocks of ``n_bytes`` between clusters, earlier."""
    clusters = wires.grid.clusters
    if not 1 < len(clusters) <= MOST_CLUSTERS or n_bytes < 1:
        return 0.0
    outward_s, inward_s = _least_latency_s(wires)
    burst_s = wires.burst_bytes / wires.nic_bytes_per_s
    between_s = np.minimum(_off_diagonal(np.array(wires.latency_s)), known_s)
    idle_s = (
        between_s.ravel(),
        np.minimum(outward_s, known_s) - burst_s,
        np.minimum(inward_s, known_s) - burst_s,
        between_s.min(axis=1),
        between_s.min(axis=0),
    )
    n_hosts = np.array(wires.grid.hosts_per_cluster, float)
    return least_exchange_s(
        demand * n_bytes,
        wires.rate_bytes_per_s,
        n_hosts * wires.nic_bytes_per_s,
        wires.uplink_bytes_per_s,
        np.concatenate(idle_s),
    )


def _least_latency_s(wires: Wires) -> tuple[FloatArray, FloatArray]:
    """Return, by cluster, the least latency from a host to any other, and from any other."""
    latency_s = np.array(wires.latency_s)
    for c, cluster in enumerate(wires.grid.clusters):
        if len(cluster.nodes) < 2:
            latency_s[c, c] = np.inf
    out, into = latency_s.min(axis=1), latency_s.min(axis=0)
    return np.where(np.isfinite(out), out, 0.0), np.where(np.isfinite(into), into, 0.0)


def _off_diagonal(times_s: FloatArray) -> FloatArray:
    """Return ``times_s`` between different clusters; the diagonal becomes infinite."""
    return np.asarray(np.where(np.eye(len(times_s), dtype=bool), np.inf, times_s))
