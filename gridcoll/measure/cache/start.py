"""The model of a job from what is known: checked, and only what is missing or off is measured."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.cache.check import (
    Expected,
    Found,
    Index,
    check_grid,
    near_limits_s,
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
    """``labels`` with a cluster for every rank. Collective; equal on all ranks.

    Each host that nobody knows looks at one host of every cluster, a landmark. It belongs where the
    landmark is as near as hosts of that cluster are to one another. Who fits nowhere is clustered
    with the landmarks.
    """
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


@dataclass(frozen=True)
class Start:
    """A model, and how it was come by."""

    model: GridModel
    measured: frozenset[Index] = frozenset()
    """Pairs of clusters that were measured, in both directions."""
    seen: dict[Pair, tuple[float, float]] = field(default_factory=dict)
    """Latency and rate of links that were checked and are as they were, by names of clusters."""
    same: dict[str, str] = field(default_factory=dict)
    """Clusters that turned out to be another one."""
    n_placed: int = 0
    """Hosts that nobody knew, or that are not where they were."""
    n_off: int = 0
    """Links that were not what they were."""
    check_s: float = 0.0
    """How long looking at what is known took; 0 where it was taken as it is."""

    def learn(self, known: Knowledge) -> list[AnyEntry]:
        """The entries that this adds to ``known`` or renews there; they are put there."""
        entries: list[AnyEntry] = []
        for name, other in self.same.items():
            here = known.cluster(name)
            if here is not None and here.name == name != other:
                entries.append(msgspec.structs.replace(here, same_as=other, last=now()))
                known.replace(entries[-1])
        entries += learn_check(known, self.seen)
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
    """The model of a job whose rank ``i`` runs on ``hosts[i]``, from what is ``known``. Collective.

    ``known`` is the same on all ranks, and so is the result; None where no host is known. What
    ``is_certain`` is not checked: this very process measured it.
    """
    labels = labels_of(known, hosts)
    if not any(labels):
        return None
    began_s = time.monotonic()
    look, here = Found(), grid_of(known, labels, hosts)
    if not is_certain:
        grid = here
        expected = _expected(known, grid)
        look = check_grid(comm, grid, expected, _both_known(grid, expected), tolerance)
        lost = {hosts[rank] for rank in look.strangers}
        labels = tuple(
            "" if host in lost else label for host, label in zip(hosts, labels, strict=True)
        )
        seen = _by_name(grid, look)
        suspects = {frozenset((grid.clusters[a].name, grid.clusters[b].name)) for a, b in look.off}
    else:
        seen, suspects = {}, set()
    n_placed = len({host for host, label in zip(hosts, labels, strict=True) if not label})
    if n_placed:
        near = _near(known, labels_of(known, hosts), here, look, tolerance)
        labels = place_hosts(comm, hosts, labels, near, known, tolerance, progress)
    off: frozenset[Index] = frozenset()
    if suspects:
        # Again, fewer at once and between hosts that are in their place.
        grid = grid_of(known, labels, hosts)
        expected = _expected(known, grid)
        pairs = [
            (a, b)
            for a, b in _both_known(grid, expected)
            if frozenset((grid.clusters[a].name, grid.clusters[b].name)) in suspects
        ]
        again = check_grid(comm, grid, expected, pairs, tolerance, near=False)
        seen.update(_by_name(grid, again))
        off = again.off
    grid = grid_of(known, labels, hosts)
    one = _one_after_all(known, grid, seen, tolerance)
    if one:
        labels = tuple(one.get(label, label) for label in labels)
        off = frozenset()  # of clusters by another number; what is off is found at the next start
    check_s = 0.0 if is_certain else time.monotonic() - began_s
    model, measured, same = _complete(comm, known, labels, hosts, off, tolerance, progress)
    return Start(model, measured, seen, {**one, **same}, n_placed, len(off), check_s)


def _expected(known: Knowledge, grid: Grid) -> dict[Index, Expected]:
    """Links that were measured: those that somebody wrote down are believed."""
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
    """Pairs of clusters one of whose directions is ``expected``."""
    n = len(grid.clusters)
    return [
        (a, b)
        for a in range(n)
        for b in range(a + 1, n)
        if (a, b) in expected or (b, a) in expected
    ]


def _by_name(grid: Grid, look: Found) -> dict[Pair, tuple[float, float]]:
    return {
        (grid.clusters[a].name, grid.clusters[b].name): values
        for (a, b), values in look.seen.items()
    }


def _near(known: Knowledge, before: Labels, grid: Grid, look: Found, tolerance: float) -> Near:
    """Latencies inside clusters: as known, or as long as those seen now.

    What hosts are busy with, and another library, make ways longer than they were.
    """
    inside_s = {}
    now_s = max(look.near_s.values(), default=0.0)
    for c, cluster in enumerate(grid.clusters):
        entry = known.cluster(cluster.name)
        if entry is not None and entry.inside is not None:
            known_s = float(entry.inside.one_way(0.0))
            inside_s[cluster.name] = max(known_s, look.near_s.get(c, now_s))
    limits_s = near_limits_s(_expected(known, grid), tolerance)
    limit_s = {grid.clusters[c].name: trip_s / 2 for c, trip_s in limits_s.items()}
    return Near(inside_s, limit_s, before)


def _complete(
    comm: MPI.Intracomm,
    known: Knowledge,
    labels: Labels,
    hosts: Sequence[str],
    off: Collection[Index],
    tolerance: float,
    progress: Progress,
) -> tuple[GridModel, frozenset[Index], dict[str, str]]:
    """The model, which links were measured for it, and which clusters turned out to be one."""
    grid = grid_of(known, labels, hosts)
    names = _names(grid)
    changed = {frozenset((names[a], names[b])) for a, b in off}
    found: dict[Pair, PLogP] = {}
    same: dict[str, str] = {}

    def links_of() -> dict[Index, PLogP]:
        """What is known of them and still holds, and what was measured now."""
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
        one = united(grid, latency_s, inside_s, tolerance, _interfaces(known, grid))
        if one:
            same.update(one)
            labels = tuple(one.get(label, label) for label in labels)
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
    return add_priors(model), measured_now, same


def _names(grid: Grid) -> list[str]:
    return [cluster.name for cluster in grid.clusters]


def _one_after_all(
    known: Knowledge, grid: Grid, seen: Mapping[Pair, tuple[float, float]], tolerance: float
) -> dict[str, str]:
    """`united` by what a check saw: a busy moment had kept clusters apart."""
    names = _names(grid)
    latency_s = {
        (names.index(a), names.index(b)): seconds
        for (a, b), (seconds, _) in seen.items()
        if a in names and b in names
    }
    inside_s = {
        i: float(link.one_way(0.0)) for (i, j), link in known_links(known, grid).items() if i == j
    }
    return united(grid, latency_s, inside_s, tolerance, _interfaces(known, grid))


def _interfaces(known: Knowledge, grid: Grid) -> list[float]:
    """By cluster, what interfaces of its hosts carry; 0 where nobody knows."""
    entries = [[known.host(host) for host in {p.host for p in c.processes}] for c in grid.clusters]
    return [max((e.rate_bytes_per_s for e in each if e), default=0.0) for each in entries]


def united(
    grid: Grid,
    latency_s: Mapping[Index, float],
    inside_s: Mapping[int, float],
    tolerance: float,
    interfaces: Sequence[float],
) -> dict[str, str]:
    """Clusters that are as near to another one as its hosts are to each other, and that one.

    Two jobs found them apart, each on its own hosts. Those whose ``interfaces`` (bytes per second;
    0 if not known) are unlike stay apart.
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
    """What several flows carry over links just measured: as much more than one as before."""
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
