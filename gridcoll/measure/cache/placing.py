"""Hosts that nobody knows yet: in which known cluster are they?

Each looks at one host of every cluster, a landmark. It belongs where the landmark is as near as
hosts of that cluster are to one another. Who fits nowhere is clustered with the landmarks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.cache.check import shortest_trip
from gridcoll.measure.cache.knowledge import Knowledge, Labels
from gridcoll.measure.clusters import Progress, name_clusters, silent
from gridcoll.measure.landmarks import find_groups_by_landmarks
from gridcoll.measure.probe import Channel

MOST_TRIPS = 24
"""Of a host and a landmark that may be in one cluster, the shortest counts."""

CLEARLY_FAR = 4.0
"""So many times the longest latency inside a known cluster: two round trips are enough."""

MOST_PASSES = 3
"""Looks at hosts that fit nowhere: on short ways, a busy moment of either end weighs most."""

LANDMARKS = 2
"""Per cluster, among which strangers are clustered: with one alone, nothing shows what is near."""


@dataclass(frozen=True)
class Near:
    """How near hosts of one cluster are to each other."""

    inside_s: Mapping[str, float]
    """Latency inside known clusters, where it is known."""
    limit_s: Mapping[str, float]
    """The longest at which a host that was in a cluster is still taken for one of it."""
    before: Labels
    """The cluster that each rank's host was in; empty for a host nobody knows."""


def leaders_of(hosts: Sequence[str]) -> list[int]:
    """The lowest rank of each host, ascending."""
    first: dict[str, int] = {}
    for rank, host in enumerate(hosts):
        first.setdefault(host, rank)
    return sorted(first.values())


def place_hosts(
    comm: MPI.Intracomm,
    hosts: Sequence[str],
    labels: Labels,
    near: Near,
    known: Knowledge,
    tolerance: float,
    progress: Progress = silent,
) -> Labels:
    """``labels`` with a cluster for every rank. Collective; equal on all ranks."""
    leaders = leaders_of(hosts)
    strangers = [rank for rank in leaders if not labels[rank]]
    landmarks: dict[str, list[int]] = {}
    for rank in leaders:
        if labels[rank]:
            landmarks.setdefault(labels[rank], []).append(rank)
    chosen = dict(enumerate(labels))
    names = list(landmarks)
    limits = np.array([near.inside_s.get(name, 0.0) for name in names])
    nearest = np.full((len(strangers), len(names)), np.inf)
    for turn in range(MOST_PASSES if names else 0):
        left = [k for k, rank in enumerate(strangers) if not chosen[rank]]
        if not left:
            break
        progress("latency to landmarks", turn, MOST_PASSES)
        looking = [strangers[k] for k in left]
        bounds_s = float(limits.min()), CLEARLY_FAR * float(limits.max())
        seen = _distances(comm, looking, landmarks, turn, *bounds_s)
        nearest[left] = np.minimum(nearest[left], seen)
        for k in left:
            rank = strangers[k]
            at = fitting(nearest[k], limits, tolerance)
            if at is not None:
                chosen[rank] = names[at]
                continue
            at = int(np.argmin(nearest[k]))
            if near.before[rank] == names[at] and nearest[k, at] <= near.limit_s.get(names[at], 0):
                chosen[rank] = names[at]
    left_over = [rank for rank in strangers if not chosen[rank]]
    if left_over:
        found = _cluster_strangers(comm, hosts, left_over, landmarks, known, tolerance, progress)
        chosen.update(found)
    by_host = {hosts[rank]: chosen[rank] for rank in leaders}
    return tuple(by_host[host] for host in hosts)


def fitting(distance_s: np.ndarray, inside_s: np.ndarray, tolerance: float) -> int | None:
    """The cluster whose landmark is the nearest, if it is as near as hosts of it are; else None.

    0 in ``inside_s`` says that nobody knows.
    """
    at = int(np.argmin(distance_s))
    limit_s = (1 + tolerance) * float(inside_s[at])
    return at if 0 < float(distance_s[at]) <= limit_s else None


def _distances(
    comm: MPI.Intracomm,
    strangers: Sequence[int],
    landmarks: Mapping[str, Sequence[int]],
    turn: int,
    near_s: float,
    far_s: float,
) -> np.ndarray:
    """One-way latency between each stranger and a landmark of each cluster, (S, C). Collective.

    Strangers go round the clusters, each beginning at another, and share out their hosts. What is
    shorter than ``near_s`` or longer than ``far_s`` need not be known well.
    """
    rank, groups = comm.Get_rank(), list(landmarks.values())
    mine = np.zeros((len(strangers), len(groups)))
    for step in range(len(groups)):
        for k, stranger in enumerate(strangers):
            c = (k + step) % len(groups)
            landmark = groups[c][(k // len(groups) + turn) % len(groups[c])]
            if rank in (stranger, landmark):
                active = rank == stranger
                channel = Channel(comm, landmark if active else stranger, active)
                trip_s = shortest_trip(channel, MOST_TRIPS, 2 * near_s, hopeless_s=2 * far_s)
                if active:
                    mine[k, c] = trip_s / 2
    total = np.empty_like(mine)
    wait_for_all(comm)
    comm.Allreduce(mine, total, MPI.SUM)
    return total


def _cluster_strangers(
    comm: MPI.Intracomm,
    hosts: Sequence[str],
    strangers: Sequence[int],
    landmarks: Mapping[str, Sequence[int]],
    known: Knowledge,
    tolerance: float,
    progress: Progress,
) -> dict[int, str]:
    """A cluster for each of ``strangers``: a landmark's, or a new one. Collective."""
    cluster_of = {rank: name for name, ranks in landmarks.items() for rank in ranks[:LANDMARKS]}
    nodes = sorted([*strangers, *cluster_of])
    found_groups = find_groups_by_landmarks(comm, nodes, tolerance, progress)
    groups = [[nodes[k] for k in group] for group in found_groups]
    new = [group for group in groups if not any(rank in cluster_of for rank in group)]
    found: dict[int, str] = {}
    for group in groups:
        names = [cluster_of[rank] for rank in group if rank in cluster_of]
        if names:
            found.update((rank, names[0]) for rank in group if rank not in cluster_of)
    taken = {*landmarks}
    for group, base in zip(
        new, name_clusters([[hosts[rank] for rank in group] for group in new]), strict=True
    ):
        name = known.free_name(base, taken)
        taken.add(name)
        found.update((rank, name) for rank in group)
    return found
