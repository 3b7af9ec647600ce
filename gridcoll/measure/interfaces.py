"""Split clusters whose hosts have interfaces of different rates.

Latency does not distinguish an old host from a new one beside it, but a plan gives all hosts of a
cluster equal shares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.engine.agreement import tell_all
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.clusters import Progress, name_clusters, silent
from gridcoll.measure.flows import MESSAGE_BYTES, Stream, stream_s
from gridcoll.measure.pairs import Pair
from gridcoll.measure.probe import Channel
from gridcoll.measure.uplinks import OPENING_MESSAGES
from gridcoll.topology.grid import Grid
from gridcoll.topology.rounds import rounds_of_pairs

UNLIKE = 1.5
"""Interfaces are unlike if one carries at least this many times what another does. Measured rates
of equal interfaces, each the best of several runs, differ by a tenth on a busy machine and by a
third on one with fifty processes for two cores. Keeping unlike hosts in one cluster costs up to
this factor."""

MOST_ROUNDS = 6
"""Each host exchanges with at most this many others, which are all others in a cluster of seven."""

FLOW_S, FEWEST_MESSAGES, MOST_MESSAGES = 20e-3, 8, 256
"""Seconds that a flow should last, and limits of its number of messages."""

FASTEST_BYTES_PER_S = MOST_MESSAGES * MESSAGE_BYTES / 5e-3
"""13 Gbit/s. Faster interfaces count as equal: a flow is too short to distinguish them."""


def unlike_hosts_apart(comm: MPI.Intracomm, grid: Grid, progress: Progress = silent) -> Grid:
    """Return ``grid`` with clusters split whose hosts have unlike interfaces. Collective.

    Equal on all ranks. A cluster of two hosts is not split, and neither is one with a single host
    that is faster than the others: an exchange of two hosts shows the rate of the slower one.
    """
    hosts = [[node[0].rank for node in cluster.nodes] for cluster in grid.clusters]
    wanted = [c for c, members in enumerate(hosts) if len(members) > 2]
    if not wanted:
        return grid
    progress("interfaces of hosts", 0, 2)
    best: dict[int, float] = {}
    meet = {c: _first_rounds(hosts[c]) for c in wanted}
    _exchange(comm, grid, meet, best)
    # Measure each host that seems slow again, with one that does not: a busy moment must not split
    # a cluster.
    doubtful = {c: _again(hosts[c], best) for c in wanted}
    progress("interfaces of hosts", 1, 2)
    if any(doubtful.values()):
        _exchange(comm, grid, doubtful, best)
    progress("interfaces of hosts", 2, 2)
    return _split(grid, best)


def _first_rounds(members: Sequence[int]) -> list[list[Pair]]:
    rounds = rounds_of_pairs(len(members))[:MOST_ROUNDS]
    return [[(members[a], members[b]) for a, b in pairs] for pairs in rounds]


def _again(members: Sequence[int], best: Mapping[int, float]) -> list[list[Pair]]:
    fastest = max(best[rank] for rank in members)
    slow = [rank for rank in members if best[rank] * UNLIKE < fastest]
    fast = [rank for rank in members if rank not in slow]
    turns = range(0, len(slow), len(fast))
    rounds = [list(zip(slow[k : k + len(fast)], fast, strict=False)) for k in turns]
    return rounds[:MOST_ROUNDS]


def _exchange(
    comm: MPI.Intracomm,
    grid: Grid,
    rounds_by_cluster: Mapping[int, Sequence[Sequence[Pair]]],
    best: dict[int, float],
) -> None:
    """Enter into ``best`` the most bytes per second that each host sent or received.

    All clusters exchange at the same time.
    """
    rank = comm.Get_rank()
    mine: list[tuple[int, int, float]] = []
    wait_for_all(comm)
    for pairs in rounds_by_cluster.get(grid.cluster_of[rank], ()):
        for sender, receiver in pairs:
            if rank in (sender, receiver):
                sends = rank == sender
                channel = Channel(comm, receiver if sends else sender, sends)
                flow = [Stream(channel.peer, MESSAGE_BYTES, sends)]
                opening_s = stream_s(comm, flow, OPENING_MESSAGES)[0]
                wanted = math.ceil(FLOW_S * OPENING_MESSAGES / opening_s)
                n = channel.agree(min(max(wanted, FEWEST_MESSAGES), MOST_MESSAGES))
                took_s = stream_s(comm, flow, n)[0]
                if sends:
                    # This includes the time of the answer. It is the same for all hosts, and
                    # subtracting it would add noise.
                    rate = n * MESSAGE_BYTES / max(took_s, 1e-9)
                    mine.append((sender, receiver, min(rate, FASTEST_BYTES_PER_S)))
    wait_for_all(comm)
    for found in tell_all(comm, mine):
        for sender, receiver, rate in found:
            for host in (sender, receiver):
                best[host] = max(best.get(host, 0.0), rate)


def _split(grid: Grid, best: Mapping[int, float]) -> Grid:
    parts = []
    for cluster in grid.clusters:
        for members in alike([[p.rank for p in node] for node in cluster.nodes], best):
            processes = tuple(p for p in cluster.processes if p.rank in members)
            parts.append(replace(cluster, processes=processes))
    if len(parts) == len(grid.clusters):
        return grid
    parts.sort(key=lambda part: part.coordinator)
    names = name_clusters([[p.host for p in part.processes] for part in parts])
    renamed = (replace(part, name=name) for part, name in zip(parts, names, strict=True))
    return replace(grid, clusters=tuple(renamed))


def alike(nodes: Sequence[Sequence[int]], best: Mapping[int, float]) -> list[set[int]]:
    """Return sets of ranks of ``nodes`` whose interfaces are alike, the fastest set first.

    ``best`` has the rates of the first ranks of nodes. If it has none of them, all are alike.
    """
    parts: list[set[int]] = []
    fastest = 0.0
    for node in sorted(nodes, key=lambda node: -best.get(node[0], 0.0)):
        rate = best.get(node[0], 0.0)
        if not parts or rate * UNLIKE < fastest:
            parts.append(set())
            fastest = rate
        parts[-1] |= set(node)
    return parts
