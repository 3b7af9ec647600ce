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
from gridcoll.measure.flows import FIRST_LANES, MESSAGE_BYTES, MORE, Stream, longer_s, stream_s
from gridcoll.model import GridModel
from gridcoll.topology.grid import Grid
from gridcoll.topology.rounds import lanes_between

SHOWS = 0.8
"""An uplink is one if it carries less than this part of what links and interfaces allow: sums of
measured rates are within some 10 %."""

LONGER = 2
"""What looks like an uplink is measured once more, with so many times as many messages: flows
whose windows are still opening look like one, too."""

SHORTEST_BYTES = 1 << 10

ROUNDS = 4
"""Runs at most, so that many lone hosts do not make a start long: then some share one."""

BUDGET_BYTES = 2 << 20
"""From each cluster in a quick look: 0.2 s at 100 Mbit/s."""

OPENING = 3
"""Messages of each flow before any is timed, 96 KiB: a window has 15 KiB at first and doubles."""


def measure_uplinks(
    comm: MPI.Intracomm, model: GridModel, progress: Progress = silent, n_messages: int = 0
) -> tuple[float, ...]:
    """Bytes per second that leave each cluster for all others together; 0 where nothing limits.

    Collective; equal on all ranks. Each flow has ``n_messages``, or what `BUDGET_BYTES` allow, of
    `MESSAGE_BYTES` to the cluster that a rank reaches fastest, and to others in proportion. What
    enters counts as alike. A cluster is left out if one link carries about what all of them, or its
    interfaces, do. All others send at once first, and only those that seem to be limited then send
    by themselves: uplinks of others may have held them up. Of a lone host it is what its interface
    carries; where its flows, which should end together, do not, a lost packet held one up, and all
    are measured once more.
    """
    lone, suspects = _lone_hosts(model), _suspects(model)
    found, leaves = np.zeros(model.n_clusters), np.zeros(model.n_clusters)

    def look(groups: Sequence[Sequence[int]], longer: int = 1) -> list[_Run]:
        turns = [_amounts(model, group, group, n_messages) for group in groups]
        turns = [turn._replace(n_messages=longer * turn.n_messages) for turn in turns]
        runs = _sent(comm, model, turns, progress)
        for group, run in zip(groups, runs, strict=True):
            for c in group:
                if c in suspects:
                    leaves[c] = max(leaves[c], run.together(c))
                else:
                    found[c] = max(found[c], run.until_the_last(c), _widest(model, c))
        return runs

    def seem() -> list[int]:
        return [c for c in suspects if max(leaves[c], _widest(model, c)) < SHOWS * suspects[c]]

    if len(suspects) > 1:
        (run,) = _sent(comm, model, [_amounts(model, [*suspects], (), n_messages)], progress)
        for c in suspects:
            leaves[c] = run.until_the_last(c)
    runs = look([*lone, *([c] for c in seem())])
    disturbed = [
        group
        for group, run in zip(lone, runs, strict=False)
        if any(run.until_the_last(c) < SHOWS * run.together(c) for c in group)
    ]
    look([*disturbed, *([c] for c in seem())], LONGER)
    for c in seem():
        found[c] = max(leaves[c], _widest(model, c))
    return tuple(found.tolist()) if found.any() else ()


def _suspects(model: GridModel) -> dict[int, float]:
    """Clusters that may have an uplink, and what would leave each of them without one."""
    if model.n_clusters < 3:
        return {}
    rates = np.where(np.eye(model.n_clusters, dtype=bool), 0.0, model.link_bytes_per_s)
    n_hosts = np.array([len(cluster.nodes) for cluster in model.grid.clusters])
    allowed = np.minimum(rates.sum(axis=1), n_hosts * model.flow_bytes_per_s.diagonal())
    return {
        c: float(allowed[c])
        for c in range(model.n_clusters)
        if n_hosts[c] > 1 and rates[c].max() < SHOWS * allowed[c]
    }


def _lone_hosts(model: GridModel) -> list[list[int]]:
    """Clusters of one host whose widest link does not show what its interface carries.

    Nothing inside such a cluster shows it, and a link no more than itself: so the host sends to all
    others at once. Many do that in `ROUNDS`, some together.
    """
    rates = np.where(np.eye(model.n_clusters, dtype=bool), 0.0, model.link_bytes_per_s)
    lone = [
        c
        for c, cluster in enumerate(model.grid.clusters)
        if len(cluster.nodes) == 1 and rates[c].max(initial=0.0) < SHOWS * rates[c].sum()
    ]
    return [lone[turn::ROUNDS] for turn in range(min(ROUNDS, len(lone)))]


class _Amounts(NamedTuple):
    """Clusters that send at once: bytes of each one's messages to every other one, and how many."""

    sizes: dict[int, np.ndarray]
    n_messages: int


def _amounts(
    model: GridModel, senders: Sequence[int], but: Sequence[int], n_messages: int
) -> _Amounts:
    """What ``senders`` send to all clusters ``but`` some; `BUDGET_BYTES` say how many if 0."""
    sizes = {c: _message_sizes(model, c, but) for c in senders}
    most = max(int(each @ _lanes(model.grid, c)) for c, each in sizes.items())
    return _Amounts(sizes, n_messages or max(BUDGET_BYTES // (most * (MORE + 1 + OPENING)), 1))


def _widest(model: GridModel, cluster: int) -> float:
    """What the widest link from ``cluster`` carries by itself."""
    return float(np.delete(model.link_bytes_per_s[cluster], cluster).max())


class _Flow(NamedTuple):
    """Messages that this rank sends or receives, on their way from one cluster to another."""

    source: int
    target: int
    stream: Stream


def _lanes(grid: Grid, cluster: int) -> np.ndarray:
    """How many flows go from ``cluster`` to each other one."""
    sizes = np.array([len(each) for each in grid.clusters])
    return np.minimum(lanes_between(np.full_like(sizes, sizes[cluster]), sizes), FIRST_LANES)


def _flows_from(rank: int, grid: Grid, cluster: int, sizes: Sequence[int]) -> list[_Flow]:
    """The flows from ``cluster`` that ``rank`` sends or receives, of ``sizes[d]`` to cluster ``d``.

    The widest flows are dealt out first, each to a rank whose host has least to send so far.
    """
    members = grid.clusters[cluster].spread(len(grid.clusters[cluster]))
    of_host: Counter[int] = Counter()
    found: list[_Flow] = []
    lanes = _lanes(grid, cluster)
    others = [d for d in range(len(sizes)) if d != cluster and sizes[d]]
    for other in sorted(others, key=lambda d: (-sizes[d], d)):
        free: list[int] = []
        receivers = grid.clusters[other].spread(lanes[other])
        for lane in range(lanes[other]):
            receiver = receivers[lane % len(receivers)]
            free = free or list(members)
            sender = min(free, key=lambda each: of_host[grid.host_of[each]])
            free.remove(sender)
            of_host[grid.host_of[sender]] += sizes[other]
            if rank in (sender, receiver):
                peer = receiver if rank == sender else sender
                stream = Stream(peer, sizes[other], rank == sender)
                found.append(_Flow(cluster, other, stream))
    return found


def _message_sizes(model: GridModel, cluster: int, but: Sequence[int]) -> np.ndarray:
    """Bytes of a message to each other cluster, such that flows end at about the same time."""
    per_flow = model.link_bytes_per_s[cluster] / _lanes(model.grid, cluster)
    per_flow[[cluster, *but]] = 0.0
    sizes = np.maximum(MESSAGE_BYTES * per_flow / per_flow.max(), SHORTEST_BYTES)
    return np.where(per_flow > 0, sizes, 0.0).astype(int)


class _Run(NamedTuple):
    """Bytes from each cluster to every other one, and seconds until there; both (C, C)."""

    moved: np.ndarray
    took_s: np.ndarray

    def together(self, cluster: int) -> float:
        """Bytes per second that left it in flows that should end at about the same time.

        The sum of what each other cluster was sent per second: a link that is thinner than it
        seemed only delays its own flows.
        """
        return float((self.moved[cluster] / self.took_s[cluster]).sum())

    def until_the_last(self, cluster: int) -> float:
        """Bytes per second that left it until the last flow ended: one may get more than its share.

        Of a lone host, whose flows share one interface.
        """
        return float(self.moved[cluster].sum() / self.took_s[cluster].max())


def _sent(
    comm: MPI.Intracomm, model: GridModel, turns: Sequence[_Amounts], progress: Progress
) -> list[_Run]:
    """Runs in which clusters send to others, one of ``turns`` after another.

    Each in so many messages of each flow and `MORE` times as many; that is what the latter add.
    """
    if not turns:
        return []
    grid, rank = model.grid, comm.Get_rank()
    trips_s = 2 * model.gap_and_one_way_s(np.zeros(1))[1][..., 0]
    moved = np.zeros((len(turns), *(model.n_clusters,) * 2))
    mine = np.zeros((2, *moved.shape))
    for at, (sizes, n_messages) in enumerate(turns):
        progress("uplinks", at, len(turns))
        flows: list[_Flow] = []
        for cluster, n_bytes in sizes.items():
            moved[at, cluster] = (MORE - 1) * n_messages * n_bytes * _lanes(grid, cluster)
            flows += _flows_from(rank, grid, cluster, n_bytes.tolist())
        wait_for_all(comm)  # a flow that starts when others end gets more bandwidth
        streams = [flow.stream for flow in flows]
        stream_s(comm, streams, max(n_messages // 3, OPENING))
        for run, times in enumerate((1, MORE)):
            took_s = stream_s(comm, streams, times * n_messages)
            for (source, target, stream), seconds in zip(flows, took_s, strict=True):
                if stream.sends:
                    place = run, at, source, target
                    mine[place] = max(mine[place], seconds - trips_s[source, target])
    wait_for_all(comm)
    slowest_s = np.empty_like(mine)
    comm.Allreduce(mine, slowest_s, MPI.MAX)
    progress("uplinks", len(turns), len(turns))
    return list(map(_Run, moved, np.maximum(longer_s(*slowest_s), 1e-9)))
