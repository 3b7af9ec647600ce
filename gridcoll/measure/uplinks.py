"""Uplinks: what leaves a cluster for all others at once, where its links and interfaces allow more.

A site often has one line to the rest of the world. Flows to one other site show what that line
carries, and not that flows to the next one share it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_for_all, wait_politely
from gridcoll.measure.clusters import Progress, silent
from gridcoll.measure.flows import FIRST_LANES, MESSAGE_BYTES, MORE, N_MESSAGES, lanes_between
from gridcoll.model import GridModel
from gridcoll.topology.grid import Grid

SHOWS = 0.8
"""An uplink is one if it carries less than this part of what links and interfaces allow: sums of
measured rates are within some 10 %."""

LONGER = 2
"""What looks like an uplink is measured once more, with so many times as many messages: flows
whose windows are still opening look like one, too."""

MOST_CLUSTERS = 12
"""With more, only `gridcoll discover` looks for uplinks: clusters are measured one by one."""

_TAG = 3


def measure_uplinks(
    comm: MPI.Intracomm,
    model: GridModel,
    progress: Progress = silent,
    n_messages: int = N_MESSAGES,
) -> tuple[float, ...]:
    """Bytes per second that leave each cluster for all others together; 0 where nothing limits.

    Collective; equal on all ranks. ``n_messages`` of `MESSAGE_BYTES` are what one rank sends to the
    cluster that it reaches fastest, to others in proportion. What enters counts as alike. A cluster
    is left out if one link carries about what all of them, or its interfaces, do.
    """
    found = [0.0] * model.n_clusters
    suspects = _suspects(model)
    for done, (cluster, allowed) in enumerate(suspects):
        progress("uplinks", done, len(suspects))
        together = 0.0
        for times in (1, LONGER):
            rate = _leaving(comm, model, cluster, times * n_messages)
            together = max(together, rate)
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
    # Of a lone host, nothing tells what its interface carries.
    own = np.where(n_hosts > 1, n_hosts * model.flow_bytes_per_s.diagonal(), np.inf)
    allowed = np.minimum(rates.sum(axis=1), own)
    return [
        (c, float(allowed[c]))
        for c in range(model.n_clusters)
        if rates[c].max() < SHOWS * allowed[c]
    ]


class _Flow(NamedTuple):
    """Messages between this rank and ``peer``."""

    peer: int
    n_messages: int


def _flows_from(
    rank: int, grid: Grid, cluster: int, numbers: Sequence[int]
) -> tuple[bool, list[_Flow]]:
    """Whether ``rank`` sends, and its flows; ``numbers[d]`` messages per flow to cluster ``d``."""
    sends, found = grid.cluster_of[rank] == cluster, []
    for other, n_messages in enumerate(numbers):
        if other == cluster or grid.cluster_of[rank] not in (cluster, other):
            continue
        lanes = min(FIRST_LANES, lanes_between(grid, cluster, other))
        ends = [grid.clusters[c].spread(lanes) for c in (cluster, other)]
        mine, theirs = ends if sends else ends[::-1]
        if rank in mine:
            found.append(_Flow(theirs[mine.index(rank)], n_messages))
    return sends, found


def _leaving(comm: MPI.Intracomm, model: GridModel, cluster: int, n_messages: int) -> float:
    """Bytes per second that leave ``cluster`` in flows that end at about the same time."""
    grid = model.grid
    lanes = [min(FIRST_LANES, lanes_between(grid, cluster, d)) for d in range(model.n_clusters)]
    per_flow = np.array(model.link_bytes_per_s[cluster]) / lanes
    per_flow[cluster] = 0.0
    numbers = np.maximum(np.rint(n_messages * per_flow / per_flow.max()), 2).astype(int).tolist()
    sends, flows = _flows_from(comm.Get_rank(), grid, cluster, numbers)
    mine = np.zeros(2)
    wait_for_all(comm)  # a flow that starts when others end gets more bandwidth
    _stream_s(comm, sends, [flow._replace(n_messages=2) for flow in flows])
    for turn, times in enumerate((1, MORE)):
        longer = [flow._replace(n_messages=times * flow.n_messages) for flow in flows]
        took_s = _stream_s(comm, sends, longer)
        mine[turn] = took_s if sends else 0.0
    wait_for_all(comm)
    slowest_s = np.empty_like(mine)
    comm.Allreduce(mine, slowest_s, MPI.MAX)
    moved = sum(n * lanes[d] for d, n in enumerate(numbers) if d != cluster) * MESSAGE_BYTES
    # What more messages add; noise must not make the difference zero.
    longer_s = max(slowest_s[1] - slowest_s[0], slowest_s[1] / 2, 1e-9)
    return float((MORE - 1) * moved / longer_s)


def _stream_s(comm: MPI.Intracomm, sends: bool, flows: Sequence[_Flow]) -> float:
    """Send what ``flows`` say, or receive it, and get or give an answer for each; in seconds."""
    start = time.perf_counter()
    move, answer = (comm.Isend, comm.Irecv) if sends else (comm.Irecv, comm.Isend)
    moves = [
        move([bytearray(MESSAGE_BYTES), MPI.BYTE], flow.peer, _TAG)
        for flow in flows
        for _ in range(flow.n_messages)
    ]
    wait_politely(lambda: MPI.Request.Testall(moves))
    nothing = bytearray(0)
    answers = [answer([nothing, MPI.BYTE], flow.peer, _TAG) for flow in flows]
    wait_politely(lambda: MPI.Request.Testall(answers))
    return time.perf_counter() - start
