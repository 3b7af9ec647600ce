"""Uplinks: what leaves a cluster for all others at once where links and interfaces allow more.

A site often has one line to the rest of the world. Flows to one other site show what that line
carries, and not that flows to the next one share it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.clusters import Progress, silent
from gridcoll.measure.flows import (
    FIRST_LANES,
    MESSAGE_BYTES,
    MORE,
    N_MESSAGES,
    lanes_between,
    stream_s,
)
from gridcoll.model import GridModel
from gridcoll.topology.grid import Grid

SHOWS = 0.8
"""An uplink is one if it carries less than this part of what links and interfaces allow: sums of
measured rates are within some 10 %."""

LONGER = 2
"""What looks like an uplink is measured once more, with so many times as many messages: flows
whose windows are still opening look like one, too."""

SHORTEST_BYTES = 1 << 10


def measure_uplinks(
    comm: MPI.Intracomm,
    model: GridModel,
    progress: Progress = silent,
    n_messages: int = N_MESSAGES,
) -> tuple[float, ...]:
    """Bytes per second that leave each cluster for all others together; 0 where nothing limits.

    Collective; equal on all ranks. Each flow has ``n_messages``, of `MESSAGE_BYTES` to the cluster
    that a rank reaches fastest, and to others in proportion. What enters counts as alike. A cluster
    is left out if one link carries about what all of them, or its interfaces, do.
    """
    found = [0.0] * model.n_clusters
    suspects = _suspects(model)
    for done, (cluster, allowed) in enumerate(suspects):
        progress("uplinks", done, len(suspects))
        together = 0.0
        for times in (1, LONGER):
            rate = _leaving(comm, model, cluster, times * n_messages)
            together = max(together, rate, _widest(model, cluster))
            if together >= SHOWS * allowed:
                break
        else:
            found[cluster] = together
    if suspects:
        progress("uplinks", len(suspects), len(suspects))
    return tuple(found) if any(found) else ()


def _suspects(model: GridModel) -> list[tuple[int, float]]:
    """Clusters that may have an uplink, and what would leave each of them without one."""
    if model.n_clusters < 3:
        return []
    rates = np.where(np.eye(model.n_clusters, dtype=bool), 0.0, model.link_bytes_per_s)
    n_hosts = np.array([len(cluster.nodes) for cluster in model.grid.clusters])
    allowed = np.minimum(rates.sum(axis=1), n_hosts * model.flow_bytes_per_s.diagonal())
    return [
        (c, float(allowed[c]))
        for c in range(model.n_clusters)
        # A lone host's interface is known as far as its links show it.
        if n_hosts[c] > 1 and rates[c].max() < SHOWS * allowed[c]
    ]


def _widest(model: GridModel, cluster: int) -> float:
    """What the widest link from ``cluster`` carries by itself."""
    return float(np.delete(model.link_bytes_per_s[cluster], cluster).max())


class _Flow(NamedTuple):
    """Messages of ``n_bytes`` between this rank and ``peer``, on the way to ``cluster``."""

    peer: int
    cluster: int
    n_bytes: int


def _flows_from(
    rank: int, grid: Grid, cluster: int, sizes: Sequence[int]
) -> tuple[bool, list[_Flow]]:
    """Whether ``rank`` sends, and its flows; messages to cluster ``d`` have ``sizes[d]`` bytes.

    The widest flows are dealt out first, each to a rank whose host has least to send so far.
    """
    members = grid.clusters[cluster].spread(len(grid.clusters[cluster]))
    of_host: Counter[int] = Counter()
    found: list[_Flow] = []
    others = [d for d in range(len(sizes)) if d != cluster]
    for other in sorted(others, key=lambda d: (-sizes[d], d)):
        lanes = min(FIRST_LANES, lanes_between(grid, cluster, other))
        free = list(members)
        for receiver in grid.clusters[other].spread(lanes):
            sender = min(free, key=lambda each: of_host[grid.host_of[each]])
            free.remove(sender)
            of_host[grid.host_of[sender]] += sizes[other]
            if rank in (sender, receiver):
                peer = receiver if rank == sender else sender
                found.append(_Flow(peer, other, sizes[other]))
    return grid.cluster_of[rank] == cluster, found


def _leaving(comm: MPI.Intracomm, model: GridModel, cluster: int, n_messages: int) -> float:
    """Bytes per second that leave ``cluster`` in flows that should end at about the same time.

    The sum of what each other cluster is sent per second: a link that is thinner than it seemed
    only delays its own flows.
    """
    grid = model.grid
    lanes = np.array(
        [min(FIRST_LANES, lanes_between(grid, cluster, d)) for d in range(model.n_clusters)]
    )
    per_flow = model.link_bytes_per_s[cluster] / lanes
    per_flow[cluster] = 0.0
    sizes = np.maximum(MESSAGE_BYTES * per_flow / per_flow.max(), SHORTEST_BYTES).astype(int)
    sends, flows = _flows_from(comm.Get_rank(), grid, cluster, sizes.tolist())
    mine = np.zeros((2, model.n_clusters))
    wait_for_all(comm)  # a flow that starts when others end gets more bandwidth
    peers = [(flow.peer, flow.n_bytes) for flow in flows]
    stream_s(comm, sends, peers, max(n_messages // 3, 1))
    for turn, times in enumerate((1, MORE)):
        took_s = stream_s(comm, sends, peers, times * n_messages)
        for flow, seconds in zip(flows, took_s, strict=True):
            mine[turn, flow.cluster] = seconds if sends else 0.0
    wait_for_all(comm)
    slowest_s = np.empty_like(mine)
    comm.Allreduce(mine, slowest_s, MPI.MAX)
    # What more messages add; noise must not make the difference zero.
    longer_s = np.maximum(slowest_s[1] - slowest_s[0], slowest_s[1] / 2)
    moved = (MORE - 1) * n_messages * sizes * lanes
    others = np.arange(model.n_clusters) != cluster
    return float((moved[others] / np.maximum(longer_s[others], 1e-9)).sum())
