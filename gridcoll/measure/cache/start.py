"""Make the model of a job from what is known: check it, and measure only what is missing or off."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

import msgspec
import numpy as np
from mpi4py import MPI
from msgspec import Struct, field

from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.cache.check import (
    CheckResult,
    Expected,
    Index,
    check_grid,
    inside_limits_s,
    shortest_trip,
)
from gridcoll.measure.cache.entries import AnyEntry, LinkEntry, now
from gridcoll.measure.cache.knowledge import (
    Knowledge,
    Labels,
    Pair,
    build_model,
    grid_of,
    known_links,
    labels_of,
    missing_links,
)
from gridcoll.measure.cache.learning import learn_check, learn_model, rate_of
from gridcoll.measure.clusters import Progress, name_clusters, silent
from gridcoll.measure.interfaces import UNLIKE
from gridcoll.measure.landmarks import find_groups_by_landmarks
from gridcoll.measure.pairs import measure_pairs
from gridcoll.measure.priors import add_priors
from gridcoll.measure.probe import Channel
from gridcoll.model import GridModel, PLogP
from gridcoll.topology.grid import Grid

MOST_TRIPS = 24
"""Most round trips between a host and a landmark that may be near it. The shortest one counts."""

CLEARLY_FAR = 4.0
"""A latency is clearly far at this many times the longest latency inside a known cluster. Then two
round trips are enough."""

MOST_PASSES = 3
"""Most measurements of hosts that fit nowhere: on short links, a busy moment of either end matters
most."""

LANDMARKS_PER_CLUSTER = 2
"""Hosts of each known cluster that take part when unplaced hosts are clustered. One alone would not
show which latencies are short."""


class InsideLatencies(Struct, frozen=True):
    """Latencies between hosts of one cluster."""

    inside_s: Mapping[str, float]
    """Latency inside known clusters, if it is known."""
    limit_s: Mapping[str, float]
    """Longest latency at which a host that was in a cluster still counts as part of it."""
    before: Labels
    """The cluster that each rank's host was in; empty for an unknown host."""


def leaders_of(hosts: Sequence[str]) -> list[int]:
    """Return the lowest rank of each host, ascending."""
    first: dict[str, int] = {}
    for rank, host in enumerate(hosts):
        first.setdefault(host, rank)
    return sorted(first.values())


def place_hosts(
    comm: MPI.Intracomm,
    hosts: Sequence[str],
    labels: Labels,
    near: InsideLatencies,
    known: Knowledge,
    tolerance: float,
    progress: Progress = silent,
) -> Labels:
    """Return ``labels`` with a cluster for every rank. Collective; equal on all ranks.

    Each host without a cluster measures the latency to one host of every cluster, a landmark. It
    belongs to a cluster if its landmark is as near as hosts of that cluster are to one another.
    Hosts that fit nowhere are clustered together with landmarks.
    """
    leaders = leaders_of(hosts)
    unplaced = [rank for rank in leaders if not labels[rank]]
    landmarks: dict[str, list[int]] = {}
    for rank in leaders:
        if labels[rank]:
            landmarks.setdefault(labels[rank], []).append(rank)
    chosen = dict(enumerate(labels))
    names = list(landmarks)
    limits = np.array([near.inside_s.get(name, 0.0) for name in names])
    nearest = np.full((len(unplaced), len(names)), np.inf)
    for turn in range(MOST_PASSES if names else 0):
        left = [k for k, rank in enumerate(unplaced) if not chosen[rank]]
        if not left:
            break
        progress("latency to landmarks", turn, MOST_PASSES)
        searching = [unplaced[k] for k in left]
        bounds_s = float(limits.min()), CLEARLY_FAR * float(limits.max())
        latencies_s = _latencies_to_landmarks(comm, searching, landmarks, turn, *bounds_s)
        nearest[left] = np.minimum(nearest[left], latencies_s)
        for k in left:
            rank = unplaced[k]
            at = fitting_cluster(nearest[k], limits, tolerance)
            if at is not None:
                chosen[rank] = names[at]
                continue
            at = int(np.argmin(nearest[k]))
            if near.before[rank] == names[at] and nearest[k, at] <= near.limit_s.get(names[at], 0):
                chosen[rank] = names[at]
    fits_nowhere = [rank for rank in unplaced if not chosen[rank]]
    if fits_nowhere:
        found = _cluster_unplaced(comm, hosts, fits_nowhere, landmarks, known, tolerance, progress)
        chosen.update(found)
    by_host = {hosts[rank]: chosen[rank] for rank in leaders}
    return tuple(by_host[host] for host in hosts)


def fitting_cluster(distance_s: np.ndarray, inside_s: np.ndarray, tolerance: float) -> int | None:
    """Return the cluster with the nearest landmark, if that is as near as its hosts are; else None.

    0 in ``inside_s`` means that the latency inside a cluster is not known.
    """
    at = int(np.argmin(distance_s))
    limit_s = (1 + tolerance) * float(inside_s[at])
    return at if 0 < float(distance_s[at]) <= limit_s else None


def _latencies_to_landmarks(
    comm: MPI.Intracomm,
    unplaced: Sequence[int],
    landmarks: Mapping[str, Sequence[int]],
    turn: int,
    near_s: float,
    far_s: float,
) -> np.ndarray:
    """Return latencies between unplaced hosts and a landmark of each cluster, (S, C). Collective.

    They are one way. Unplaced hosts visit the clusters in turn, each beginning at another one, and
    are spread over their hosts. Latencies shorter than ``near_s`` or longer than ``far_s`` are
    measured with fewer round trips.
    """
    rank, groups = comm.Get_rank(), list(landmarks.values())
    mine = np.zeros((len(unplaced), len(groups)))
    for step in range(len(groups)):
        for k, stranger in enumerate(unplaced):
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


def _cluster_unplaced(
    comm: MPI.Intracomm,
    hosts: Sequence[str],
    unplaced: Sequence[int],
    landmarks: Mapping[str, Sequence[int]],
    known: Knowledge,
    tolerance: float,
    progress: Progress,
) -> dict[int, str]:
    """Return a cluster for each of ``unplaced``: that of a landmark, or a new one. Collective."""
    cluster_of = {
        rank: name for name, ranks in landmarks.items() for rank in ranks[:LANDMARKS_PER_CLUSTER]
    }
    nodes = sorted([*unplaced, *cluster_of])
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


class Start(Struct, frozen=True):
    """A model, and how it was made."""

    model: GridModel
    measured: frozenset[Index] = frozenset()
    """Pairs of clusters whose links were measured, in both directions."""
    confirmed: dict[Pair, tuple[float, float]] = field(default_factory=dict)
    """Latency and rate of links that were checked and did not change, by names of clusters."""
    merged: dict[str, str] = field(default_factory=dict)
    """Clusters that turned out to be another one, and the name of that one."""
    n_placed: int = 0
    """Number of hosts that were not known, or that moved."""
    n_changed: int = 0
    """Number of links that changed."""
    check_s: float = 0.0
    """Seconds that the check took; 0 if there was none."""

    def learn(self, known: Knowledge) -> list[AnyEntry]:
        """Put what was found into ``known``, and return the entries that are new or renewed."""
        entries: list[AnyEntry] = []
        for name, other in self.merged.items():
            entry = known.cluster(name)
            if entry is not None and entry.name == name != other:
                entries.append(msgspec.structs.replace(entry, same_as=other, last=now()))
                known.replace(entries[-1])
        entries += learn_check(known, self.confirmed)
        entries += learn_model(known, self.model, self.measured)
        return entries


def start_from(
    comm: MPI.Intracomm,
    known: Knowledge,
    hosts: Sequence[str],
    tolerance: float,
    *,
    is_certain: bool = False,
    progress: Progress = silent,
) -> Start | None:
    """Return the model of a job whose rank ``i`` runs on ``hosts[i]``, from ``known``. Collective.

    ``known`` is the same on all ranks, and so is the result. It is None if no host is known. If
    ``is_certain``, nothing is checked, because this very job measured it.
    """
    labels = labels_of(known, hosts)
    if not any(labels):
        return None
    began_s = time.monotonic()
    look, known_grid = CheckResult(), grid_of(known, labels, hosts)
    if not is_certain:
        grid = known_grid
        expected = _expected(known, grid)
        look = check_grid(comm, grid, expected, _both_known(grid, expected), tolerance)
        moved_hosts = {hosts[rank] for rank in look.moved}
        labels = tuple(
            "" if host in moved_hosts else label for host, label in zip(hosts, labels, strict=True)
        )
        confirmed = _by_name(grid, look)
        suspects = {
            frozenset((grid.clusters[a].name, grid.clusters[b].name)) for a, b in look.changed
        }
    else:
        confirmed, suspects = {}, set()
    n_placed = len({host for host, label in zip(hosts, labels, strict=True) if not label})
    if n_placed:
        near = _inside_latencies(known, labels_of(known, hosts), known_grid, look, tolerance)
        labels = place_hosts(comm, hosts, labels, near, known, tolerance, progress)
    changed_pairs: frozenset[Index] = frozenset()
    if suspects:
        # Check them again, fewer at once, and between hosts in their right clusters.
        grid = grid_of(known, labels, hosts)
        expected = _expected(known, grid)
        pairs = [
            (a, b)
            for a, b in _both_known(grid, expected)
            if frozenset((grid.clusters[a].name, grid.clusters[b].name)) in suspects
        ]
        again = check_grid(comm, grid, expected, pairs, tolerance, check_hosts=False)
        confirmed.update(_by_name(grid, again))
        changed_pairs = again.changed
    grid = grid_of(known, labels, hosts)
    merges = _merges_seen_in_check(known, grid, confirmed, tolerance)
    if merges:
        labels = tuple(merges.get(label, label) for label in labels)
        changed_pairs = frozenset()  # clusters are renumbered; the next start checks them
    check_s = 0.0 if is_certain else time.monotonic() - began_s
    model, measured, merged = _measure_missing_links(
        comm, known, labels, hosts, changed_pairs, tolerance, progress
    )
    return Start(
        model, measured, confirmed, {**merges, **merged}, n_placed, len(changed_pairs), check_s
    )


def _expected(known: Knowledge, grid: Grid) -> dict[Index, Expected]:
    """Return what to expect of measured links. Declared links are not checked."""
    found: dict[Index, Expected] = {}
    mpi = MPI.get_vendor()[0]
    for (i, j), link in known_links(known, grid).items():
        names = grid.clusters[i].name, grid.clusters[j].name
        entry = known.cluster(names[0]) if i == j else known.link(*names)
        if entry is None or entry.origin == "declared":
            continue
        spread_s = entry.latency_s.spread if isinstance(entry, LinkEntry) else 0.0
        found[i, j] = Expected(link, spread_s, entry.mpi == mpi)
    return found


def _both_known(grid: Grid, expected: Collection[Index]) -> list[Index]:
    """Return the pairs of clusters of which at least one direction is ``expected``."""
    n = len(grid.clusters)
    return [
        (a, b)
        for a in range(n)
        for b in range(a + 1, n)
        if (a, b) in expected or (b, a) in expected
    ]


def _by_name(grid: Grid, look: CheckResult) -> dict[Pair, tuple[float, float]]:
    return {
        (grid.clusters[a].name, grid.clusters[b].name): values
        for (a, b), values in look.unchanged.items()
    }


def _inside_latencies(
    known: Knowledge, before: Labels, grid: Grid, look: CheckResult, tolerance: float
) -> InsideLatencies:
    """Return latencies inside clusters: the known ones, or the present ones if they are longer.

    Busy hosts, or another library, make them longer than they were.
    """
    inside_s = {}
    now_s = max(look.inside_s.values(), default=0.0)
    for c, cluster in enumerate(grid.clusters):
        entry = known.cluster(cluster.name)
        if entry is not None and entry.inside is not None:
            known_s = float(entry.inside.one_way(0.0))
            inside_s[cluster.name] = max(known_s, look.inside_s.get(c, now_s))
    limits_s = inside_limits_s(_expected(known, grid), tolerance)
    limit_s = {grid.clusters[c].name: trip_s / 2 for c, trip_s in limits_s.items()}
    return InsideLatencies(inside_s, limit_s, before)


def _measure_missing_links(
    comm: MPI.Intracomm,
    known: Knowledge,
    labels: Labels,
    hosts: Sequence[str],
    changed_pairs: Collection[Index],
    tolerance: float,
    progress: Progress,
) -> tuple[GridModel, frozenset[Index], dict[str, str]]:
    """Return the model, the links measured for it, and the clusters that turned out to be one."""
    grid = grid_of(known, labels, hosts)
    names = _names(grid)
    changed = {frozenset((names[a], names[b])) for a, b in changed_pairs}
    found: dict[Pair, PLogP] = {}
    merged: dict[str, str] = {}

    def links_of() -> dict[Index, PLogP]:
        """Return the links that are known and unchanged, and those measured now."""
        links = {
            (i, j): link
            for (i, j), link in known_links(known, grid).items()
            if frozenset((names[i], names[j])) not in changed
        }
        for i, first in enumerate(names):
            for j, second in enumerate(names):
                new = found.get((first, second)) or found.get((second, first))
                if new is not None:
                    links[i, j] = new
        return links

    while wanted := missing_links(grid, links_of()):
        measured = measure_pairs(comm, grid, wanted, progress=progress)
        found.update({(names[a], names[b]): link for (a, b), link in measured.items()})
        latency_s = {pair: float(link.one_way(0.0)) for pair, link in measured.items()}
        inside_s = {i: float(link.one_way(0.0)) for (i, j), link in links_of().items() if i == j}
        merges = clusters_to_merge(grid, latency_s, inside_s, tolerance, _interfaces(known, grid))
        if merges:
            merged.update(merges)
            labels = tuple(merges.get(label, label) for label in labels)
            grid = grid_of(known, labels, hosts)
            names = _names(grid)
    measured_now = frozenset(
        (i, j)
        for i, first in enumerate(names)
        for j, second in enumerate(names)
        if (first, second) in found or (second, first) in found
    )
    together = _together(known, names, found)
    mpi = MPI.get_vendor()[0]
    model = build_model(known, grid, links_of(), together, mpi, tolerance, measured_now)
    return add_priors(model), measured_now, merged


def _names(grid: Grid) -> list[str]:
    return [cluster.name for cluster in grid.clusters]


def _merges_seen_in_check(
    known: Knowledge, grid: Grid, confirmed: Mapping[Pair, tuple[float, float]], tolerance: float
) -> dict[str, str]:
    """Return `clusters_to_merge` by the latencies of a check.

    Clusters may have been separated by a busy moment.
    """
    names = _names(grid)
    latency_s = {
        (names.index(a), names.index(b)): seconds
        for (a, b), (seconds, _) in confirmed.items()
        if a in names and b in names
    }
    inside_s = {
        i: float(link.one_way(0.0)) for (i, j), link in known_links(known, grid).items() if i == j
    }
    return clusters_to_merge(grid, latency_s, inside_s, tolerance, _interfaces(known, grid))


def _interfaces(known: Knowledge, grid: Grid) -> list[float]:
    """Return the rate of the hosts' interfaces in each cluster, (C,); 0 if not known."""
    entries = [[known.host(host) for host in {p.host for p in c.processes}] for c in grid.clusters]
    return [max((e.rate_bytes_per_s for e in each if e), default=0.0) for each in entries]


def clusters_to_merge(
    grid: Grid,
    latency_s: Mapping[Index, float],
    inside_s: Mapping[int, float],
    tolerance: float,
    interfaces: Sequence[float],
) -> dict[str, str]:
    """Return clusters that are as near to another one as its hosts are to each other.

    The values are the names of those other clusters.

    Two jobs found them separately, each on its own hosts. Clusters whose ``interfaces`` (bytes per
    second; 0 if not known) are unlike are not merged.
    """
    found: dict[str, str] = {}
    for (a, b), seconds in sorted(latency_s.items()):
        near_s = [inside_s[c] for c in (a, b) if c in inside_s and len(grid.clusters[c].nodes) > 1]
        first, second = (grid.clusters[c].name for c in sorted((a, b)))
        low, high = sorted((interfaces[a], interfaces[b]))
        if a == b or not near_s or second in found or 0 < low < high / UNLIKE:
            continue
        if seconds <= (1 + tolerance) * min(near_s):
            found[second] = found.get(first, first)
    return found


def _together(
    known: Knowledge, names: Sequence[str], found: dict[Pair, PLogP]
) -> dict[Index, float]:
    """Return the rates of several flows over links just measured.

    They exceed that of one flow by the same factor as before.
    """
    rates: dict[Index, float] = {}
    for (a, b), link in found.items():
        if a == b or a not in names or b not in names:
            continue
        for sender, receiver in ((a, b), (b, a)):
            entry = known.link(sender, receiver)
            before = entry.rate_bytes_per_s.mean if entry else 0.0
            gain = entry.aggregate_bytes_per_s / before if entry and before else 1.0
            rates[names.index(sender), names.index(receiver)] = rate_of(link) * max(gain, 1.0)
    return rates
