"""Measure uplinks: the rate at which a cluster sends to all others at once, if an uplink limits it.

A site often has one line to all other sites. Flows to one other site show what that line carries,
but they do not show that flows to all sites share it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.clusters import Progress, silent
from gridcoll.measure.flows import FIRST_LANES, MESSAGE_BYTES, Stream, stream_s
from gridcoll.model import GridModel
from gridcoll.topology.grid import Grid
from gridcoll.topology.rounds import lanes_between

UPLINK_BELOW = 0.85
"""A cluster has a limiting uplink if its outgoing flows together carry less than this fraction of
what its links and interfaces allow. Sums of measured rates are accurate to about 10 %, but runs of
a few round trips seem slower than they are, as windows open."""

SURELY_BELOW = 0.7
"""A cluster whose flows carry more than this fraction sends twice as long before its uplink is
believed. On `patchwork`, whose clusters have no uplinks, one of them came to 0.80 to 0.91 in runs
of four round trips."""

SHORTEST_BYTES = 1 << 10
"""Smallest message to any cluster."""

MOST_LONE_HOST_RUNS = 4
"""Lone hosts are measured in at most this many runs. More of them share runs, so that many lone
hosts do not make the start of a job long."""

RUN_S = 0.1
RUN_TRIPS = 4
"""A quick run lasts about so many seconds, and so many round trips, if nothing limits the cluster.
Ranks start some latency apart, and the first messages pass before windows limit a flow."""

FEWEST_MESSAGES = 3
"""Fewest messages of each flow in a quick run: one alone may have to wait for its window."""

BUDGET_BYTES = 32 << 20
"""Most bytes for a link in a quick run. 1 Gbit/s carries them in 0.27 s."""

FEWEST_TRIPS = 2
"""A quick start does not look for an uplink if these bytes pass in fewer round trips: windows would
still be opening."""

OPENING_MESSAGES = 3
"""At least so many messages of each flow come before any is timed, 96 KiB in all: a window starts
at 15 KiB and doubles."""


def measure_uplinks(
    comm: MPI.Intracomm, model: GridModel, progress: Progress = silent, n_messages: int = 0
) -> tuple[float, ...]:
    """Return the bytes per second that each cluster sends to all others together, (C,).

    The value is 0 for a cluster that no uplink limits; the result is empty if there is no limit at
    all. Collective; equal on all ranks. Each flow has ``n_messages``, or as many as take `RUN_S`
    and no more than `BUDGET_BYTES` on a link. Messages have `MESSAGE_BYTES` for the cluster that is
    reached fastest, and fewer bytes for others, in proportion to the rate. Incoming traffic is
    taken to have the same limit.

    A cluster is left out if one link carries about as much as all its links, or its interfaces,
    together. All other clusters send at once first. Then those that seem to be limited send again,
    each alone, because uplinks of others may have slowed them; and once more with messages in
    proportion to the rates seen, because flows that share an uplink must end together. Those that
    are hardly limited send twice as many then. For a cluster of one host, the value is the rate of
    its interface. Its flows should end together; if they do not, a lost packet delayed one of them,
    and all are measured again.
    """
    lone, suspects = _lone_hosts(model), _suspects(model)
    if not n_messages:
        suspects = {c: rate for c, rate in suspects.items() if _passes_slowly(model, c)}
    found, outgoing = np.zeros(model.n_clusters), np.zeros(model.n_clusters)
    rates = np.array(model.link_bytes_per_s)
    doubtful: set[int] = set()

    def turn_of(group: Sequence[int]) -> _Turn:
        turn = _turn_of(model, rates, group, group, n_messages)
        times = 2 if doubtful.intersection(group) else 1
        return turn._replace(n_messages=times * turn.n_messages)

    def run_groups(groups: Sequence[Sequence[int]]) -> list[_Run]:
        runs = _run_turns(comm, model, list(map(turn_of, groups)), progress)
        for group, run in zip(groups, runs, strict=True):
            for c in group:
                if c in suspects:
                    outgoing[c] = max(outgoing[c], run.rate_to_last_end(c))
                    rates[c] = run.rates(c)
                else:
                    found[c] = max(found[c], run.rate_to_last_end(c), _widest_link(model, c))
        return runs

    def limited(carried: np.ndarray) -> list[int]:
        return [
            c
            for c in suspects
            if max(carried[c], _widest_link(model, c)) < UPLINK_BELOW * suspects[c]
        ]

    if len(suspects) > 1:
        everybody = _turn_of(model, rates, [*suspects], (), n_messages)
        # Few messages: this takes long if receivers limit, and some suspects may remain.
        few = max(everybody.n_messages // 3, FEWEST_MESSAGES)
        (run,) = _run_turns(comm, model, [everybody._replace(n_messages=few)], progress)
        together = np.array([run.rate_to_last_end(c) for c in range(model.n_clusters)])
        suspects = {c: suspects[c] for c in limited(together)}
    runs = run_groups([*lone, *([c] for c in suspects)])
    disturbed = [
        group
        for group, run in zip(lone, runs, strict=False)
        if any(run.rate_to_last_end(c) < UPLINK_BELOW * run.rates(c).sum() for c in group)
    ]
    doubtful |= {c for c in suspects if outgoing[c] > SURELY_BELOW * suspects[c]}
    run_groups([*disturbed, *([c] for c in limited(outgoing))])
    for c in limited(outgoing):
        found[c] = max(outgoing[c], _widest_link(model, c))
    return tuple(found.tolist()) if found.any() else ()


def _outgoing_rates(model: GridModel) -> np.ndarray:
    """Return the bytes per second of each link between clusters, (C, C); 0 on the diagonal."""
    return np.where(np.eye(model.n_clusters, dtype=bool), 0.0, model.link_bytes_per_s)


def _without_uplinks(model: GridModel) -> np.ndarray:
    """Return the bytes per second that each cluster can send if no uplink limits it, (C,)."""
    interfaces = np.array(model.grid.hosts_per_cluster) * model.flow_bytes_per_s.diagonal()
    return np.asarray(np.minimum(_outgoing_rates(model).sum(axis=1), interfaces))


def _suspects(model: GridModel) -> dict[int, float]:
    """Return the clusters that may have an uplink, and the bytes per second of each without one."""
    if model.n_clusters < 3:
        return {}
    widest, allowed = _outgoing_rates(model).max(axis=1), _without_uplinks(model)
    return {
        c: float(allowed[c])
        for c, n_hosts in enumerate(model.grid.hosts_per_cluster)
        if n_hosts > 1 and widest[c] < UPLINK_BELOW * allowed[c]
    }


def _passes_slowly(model: GridModel, cluster: int) -> bool:
    """Whether `BUDGET_BYTES` on its widest link take ``cluster`` some round trips."""
    trip_s = float(model.round_trip_s[cluster].max())
    return FEWEST_TRIPS * trip_s * _widest_link(model, cluster) <= BUDGET_BYTES


def _lone_hosts(model: GridModel) -> list[list[int]]:
    """Return the clusters of one host whose widest link does not show their interface's rate.

    Such a host has to send to all others at once. Each inner list is one run; there are at most
    `MOST_LONE_HOST_RUNS`, so that some of many clusters share a run.
    """
    rates = _outgoing_rates(model)
    lone = [
        c
        for c, cluster in enumerate(model.grid.clusters)
        if len(cluster.nodes) == 1 and rates[c].max(initial=0.0) < UPLINK_BELOW * rates[c].sum()
    ]
    return [lone[turn::MOST_LONE_HOST_RUNS] for turn in range(min(MOST_LONE_HOST_RUNS, len(lone)))]


class _Turn(NamedTuple):
    """Clusters that send at once.

    ``sizes`` has, for each of them, the bytes of a message to every other cluster, (C,).
    ``n_messages`` is the number of messages of each flow.
    """

    sizes: dict[int, np.ndarray]
    n_messages: int


def _turn_of(
    model: GridModel,
    rates: np.ndarray,
    senders: Sequence[int],
    excluded: Sequence[int],
    n_messages: int,
) -> _Turn:
    """Return what ``senders`` send to all clusters but ``excluded`` ones.

    The lengths of messages are in proportion to ``rates``, (C, C). If ``n_messages`` is 0, there
    are as many messages as take `RUN_S` or `RUN_TRIPS`, and at most `BUDGET_BYTES` for a link.
    """
    sizes = {c: _message_sizes(model.grid, rates[c], c, excluded) for c in senders}
    if n_messages:
        return _Turn(sizes, n_messages)
    allowed, wanted = _without_uplinks(model), FEWEST_MESSAGES
    for c, each in sizes.items():
        of_links = each * _lanes(model.grid, c)
        lasts_s = max(RUN_S, RUN_TRIPS * float(model.round_trip_s[c].max()))
        enough = math.ceil(lasts_s * allowed[c] / of_links.sum())
        wanted = max(wanted, min(enough, BUDGET_BYTES // int(of_links.max())))
    return _Turn(sizes, wanted)


def _widest_link(model: GridModel, cluster: int) -> float:
    """Return the bytes per second that the widest link from ``cluster`` carries by itself."""
    return float(_outgoing_rates(model)[cluster].max())


class _Flow(NamedTuple):
    """Messages from one cluster to another that this rank sends or receives."""

    source: int
    target: int
    stream: Stream


def _lanes(grid: Grid, cluster: int) -> np.ndarray:
    """Return the number of flows from ``cluster`` to each other one, (C,).

    It is a multiple of the number of hosts: if some sent more than others, these would be idle in
    the end, and their interfaces would seem to be an uplink.
    """
    sizes = np.array(grid.ranks_per_cluster)
    lanes = np.minimum(lanes_between(np.full_like(sizes, sizes[cluster]), sizes), FIRST_LANES)
    n_hosts = min(grid.hosts_per_cluster[cluster], FIRST_LANES)
    return np.asarray(-(-lanes // n_hosts) * n_hosts)


def _flows_from(rank: int, grid: Grid, cluster: int, sizes: Sequence[int]) -> list[_Flow]:
    """Return the flows from ``cluster`` that ``rank`` sends or receives.

    Messages to cluster ``d`` have ``sizes[d]`` bytes. The widest flows are assigned first, each to
    a rank whose host has least to send so far.
    """
    members = grid.clusters[cluster].spread(len(grid.clusters[cluster]))
    host_bytes: Counter[int] = Counter()
    found: list[_Flow] = []
    lanes = _lanes(grid, cluster)
    others = [d for d in range(len(sizes)) if d != cluster and sizes[d]]
    for other in sorted(others, key=lambda d: (-sizes[d], d)):
        free: list[int] = []
        receivers = grid.clusters[other].spread(lanes[other])
        for lane in range(lanes[other]):
            receiver = receivers[lane % len(receivers)]
            free = free or list(members)
            sender = min(free, key=lambda each: host_bytes[grid.host_of[each]])
            free.remove(sender)
            host_bytes[grid.host_of[sender]] += sizes[other]
            if rank in (sender, receiver):
                peer = receiver if rank == sender else sender
                stream = Stream(peer, sizes[other], rank == sender)
                found.append(_Flow(cluster, other, stream))
    return found


def _message_sizes(
    grid: Grid, rates: np.ndarray, cluster: int, excluded: Sequence[int]
) -> np.ndarray:
    """Return the bytes of a message to each other cluster, (C,); 0 for ``excluded`` ones.

    Flows of such messages end at about the same time if clusters receive at ``rates``, (C,).
    """
    per_flow = rates / _lanes(grid, cluster)
    per_flow[[cluster, *excluded]] = 0.0
    sizes = np.maximum(MESSAGE_BYTES * per_flow / per_flow.max(), SHORTEST_BYTES)
    return np.where(per_flow > 0, sizes, 0.0).astype(int)


class _Run(NamedTuple):
    """Bytes from each cluster to every other one, and seconds until they arrived; both (C, C)."""

    moved: np.ndarray
    took_s: np.ndarray

    def rates(self, cluster: int) -> np.ndarray:
        """Return the bytes per second from ``cluster`` to every other one, (C,)."""
        return np.asarray(self.moved[cluster] / self.took_s[cluster])

    def rate_to_last_end(self, cluster: int) -> float:
        """Return the bytes per second from ``cluster`` until its last flow ended.

        The sum of `rates` would be too high if flows share an interface or an uplink and one of
        them gets more than its share: the others are faster after its end.
        """
        return float(self.moved[cluster].sum() / self.took_s[cluster].max())


def _run_turns(
    comm: MPI.Intracomm, model: GridModel, turns: Sequence[_Turn], progress: Progress
) -> list[_Run]:
    """Let clusters send to others, one of ``turns`` after another, and return a `_Run` of each.

    All flows of a turn start together, after a few messages that open their windows. What senders
    take counts from each one's start, so flows that started one after another would seem faster
    than they are.
    """
    if not turns:
        return []
    grid, rank = model.grid, comm.Get_rank()
    trips_s = model.round_trip_s
    moved = np.zeros((len(turns), *(model.n_clusters,) * 2))
    mine = np.zeros_like(moved)
    for at, (sizes, n_messages) in enumerate(turns):
        progress("uplinks", at, len(turns))
        flows: list[_Flow] = []
        for cluster, n_bytes in sizes.items():
            moved[at, cluster] = n_messages * n_bytes * _lanes(grid, cluster)
            flows += _flows_from(rank, grid, cluster, n_bytes.tolist())
        streams = [flow.stream for flow in flows]
        for n in (max(n_messages // 3, OPENING_MESSAGES), n_messages):
            wait_for_all(comm)
            took_s = stream_s(comm, streams, n)
        for (source, target, stream), seconds in zip(flows, took_s, strict=True):
            if stream.sends:
                place = at, source, target
                mine[place] = max(mine[place], seconds - trips_s[source, target])
    wait_for_all(comm)
    slowest_s = np.empty_like(mine)
    comm.Allreduce(mine, slowest_s, MPI.MAX)
    progress("uplinks", len(turns), len(turns))
    return list(map(_Run, moved, np.maximum(slowest_s, 1e-9)))
