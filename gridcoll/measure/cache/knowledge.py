"""What is known about hosts, clusters and links, and the model of a job made from it.

Nothing here communicates: the same entries and hosts give the same model on every rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

import numpy as np

from gridcoll.measure.cache.entries import (
    AnyEntry,
    ClusterEntry,
    Host,
    Key,
    Library,
    LinkEntry,
    Outcome,
    Statistic,
)
from gridcoll.model import Correction, GridModel, PLogP, TimesBySize
from gridcoll.plan.natives import NATIVE, NATIVES
from gridcoll.topology.grid import Cluster, Grid, Process

E = TypeVar("E", bound=AnyEntry)

Pair = tuple[str, str]
"""Names of two clusters, sender first; equal names mean the inside of a cluster."""

MEASURED_NOW = "measured at the start of this job"

Labels = tuple[str, ...]
"""The cluster of each rank; empty if it is not known."""


class Knowledge:
    """Entries by key, the newest of each. A measured one takes precedence over a declared one."""

    def __init__(self, entries: Iterable[AnyEntry] = ()) -> None:
        self._by_key: dict[Key, AnyEntry] = {}
        self.put_all(entries)

    def __iter__(self) -> Iterator[AnyEntry]:
        return iter(self._by_key[key] for key in sorted(self._by_key))

    def __len__(self) -> int:
        return len(self._by_key)

    def put(self, entry: AnyEntry) -> bool:
        """Take ``entry`` unless the present one takes precedence; return whether it was taken."""
        here = self._by_key.get(entry.key)
        if here is not None and _precedence(here) > _precedence(entry):
            return False
        self._by_key[entry.key] = entry
        return True

    def put_all(self, entries: Iterable[AnyEntry]) -> None:
        for entry in entries:
            self.put(entry)

    def replace(self, entry: AnyEntry) -> None:
        """Take ``entry`` in place of any present one."""
        self._by_key[entry.key] = entry

    def replace_all(self, entries: list[AnyEntry]) -> list[AnyEntry]:
        """Take ``entries`` in place of any present ones, and return them."""
        for entry in entries:
            self.replace(entry)
        return entries

    def find(self, key: Key) -> AnyEntry | None:
        return self._by_key.get(key)

    def _typed(self, kind: type[E], *parts: str) -> E | None:
        found = self._by_key.get((kind.folder, *parts))
        return found if isinstance(found, kind) else None

    def host(self, name: str) -> Host | None:
        return self._typed(Host, name)

    def cluster(self, name: str) -> ClusterEntry | None:
        """Return the cluster called ``name``, or the one that it is the same as."""
        for _ in range(8):  # limited, in case entries form a ring
            found = self._typed(ClusterEntry, name)
            if found is None or not found.same_as:
                return found
            name = found.same_as
        return None

    def link(self, sender: str, receiver: str) -> LinkEntry | None:
        return self._typed(LinkEntry, sender, receiver)

    def mpi_library(self, mpi: str, ranks_per_host: int) -> Library | None:
        return self._typed(Library, mpi, str(ranks_per_host))

    def outcomes(self, shape: str, mpi: str) -> list[Outcome]:
        return [
            entry
            for entry in self
            if isinstance(entry, Outcome) and (entry.shape, entry.mpi) == (shape, mpi)
        ]

    def cluster_of(self, host: str) -> str:
        """Return the cluster of the host called ``host``; empty if it is not known."""
        found = self.host(host)
        cluster = self.cluster(found.cluster) if found else None
        return cluster.name if cluster else ""

    def since(self) -> datetime | None:
        """Return the time since which links are known; None if there are none."""
        return min((e.first for e in self if isinstance(e, LinkEntry)), default=None)

    def free_name(self, base: str, taken: Container[str]) -> str:
        """Return ``base``, with a number if another cluster has that name or it is ``taken``."""
        name, k = base, 2
        while name in taken or self.cluster(name) is not None:
            name, k = f"{base}-{k}", k + 1
        return name

    def about(self, hosts: Iterable[str], mpi: str, n_ranks: int) -> Knowledge:
        """Return what concerns a job on ``hosts``, and so has to be sent to all ranks."""
        names = set(hosts)
        labels = {self.cluster_of(host) for host in names} - {""}
        found = Knowledge()
        for entry in self:
            wanted = (
                (isinstance(entry, Host) and entry.name in names)
                or (
                    isinstance(entry, ClusterEntry)
                    and getattr(self.cluster(entry.name), "name", "") in labels
                )
                or (isinstance(entry, LinkEntry) and {entry.sender, entry.receiver} <= labels)
                or (isinstance(entry, Library) and entry.mpi == mpi)
                or (
                    isinstance(entry, Outcome)
                    and entry.mpi == mpi
                    and n_ranks_of_shape(entry.shape) == n_ranks
                )
            )
            if wanted:
                found.replace(entry)
        return found


def _precedence(entry: AnyEntry) -> tuple[bool, datetime, int]:
    return entry.origin == "measured", entry.last, entry.count


def labels_of(known: Knowledge, hosts: Sequence[str]) -> Labels:
    """Return the cluster of each rank, by its host's name."""
    found = {host: known.cluster_of(host) for host in set(hosts)}
    return tuple(found[host] for host in hosts)


def grid_of(known: Knowledge, labels: Sequence[str], hosts: Sequence[str]) -> Grid:
    """Return the grid of a job whose rank ``i`` is in cluster ``labels[i]``."""
    groups: dict[str, list[Process]] = {}
    for rank, (label, host) in enumerate(zip(labels, hosts, strict=True)):
        groups.setdefault(label, []).append(Process(rank, host))
    clusters = []
    for label, members in groups.items():
        entry = known.cluster(label)
        place = (entry.site, entry.region) if entry else ("", "")
        clusters.append(Cluster(label, tuple(members), *place))
    return Grid(tuple(clusters))


def known_links(known: Knowledge, grid: Grid) -> dict[tuple[int, int], PLogP]:
    """Return the known pLogP of pairs of clusters of ``grid``; equal numbers mean the inside."""
    found: dict[tuple[int, int], PLogP] = {}
    for i, a in enumerate(grid.clusters):
        inside = _inside(known, a)
        if inside is not None:
            found[i, i] = inside
        for j, b in enumerate(grid.clusters):
            link = known.link(a.name, b.name) if i != j else None
            if link is not None:
                found[i, j] = link.plogp
    return found


def _inside(known: Knowledge, cluster: Cluster) -> PLogP | None:
    entry = known.cluster(cluster.name)
    if entry is None or len(cluster) == 1:
        return None
    return entry.inside if len(cluster.nodes) > 1 else entry.within_host


def missing_links(grid: Grid, links: Mapping[tuple[int, int], PLogP]) -> list[tuple[int, int]]:
    """Return the pairs of clusters to be measured: one direction if both are missing."""
    missing = [(i, i) for i, c in enumerate(grid.clusters) if len(c) > 1 and (i, i) not in links]
    n = len(grid.clusters)
    missing += [
        (i, j)
        for i in range(n)
        for j in range(i + 1, n)
        if (i, j) not in links and (j, i) not in links
    ]
    return missing


def build_model(
    known: Knowledge,
    grid: Grid,
    links: Mapping[tuple[int, int], PLogP],
    new_bytes_per_s: Mapping[tuple[int, int], float],
    mpi: str,
    tolerance: float,
    measured_now: Collection[tuple[int, int]] = (),
) -> GridModel:
    """Return the model of ``grid``, all of whose ``links`` are known in at least one direction.

    ``new_bytes_per_s`` has the rates of several flows over links that were measured now, in place
    of ``known`` ones. ``measured_now`` has the links that do not come from ``known``.
    """
    n = len(grid.clusters)

    def link(i: int, j: int) -> PLogP | None:
        if i == j and len(grid.clusters[i]) == 1:
            return None
        return links.get((i, j)) or links[j, i]

    rows = tuple(tuple(link(i, j) for j in range(n)) for i in range(n))
    bare = GridModel(grid, rows, "measured", tolerance, mpi=mpi)

    def aggregate_rate(i: int, j: int) -> float:
        if i == j:
            return float(bare.flow_bytes_per_s[i, i])
        entry = known.link(grid.clusters[i].name, grid.clusters[j].name)
        known_bytes_per_s = entry.aggregate_bytes_per_s if entry else 0.0
        # The known rate may have been measured by a job with more hosts.
        most = min(_lone_host_bytes_per_s(known, grid.clusters[c]) or np.inf for c in (i, j))
        return float(max(new_bytes_per_s.get((i, j), min(known_bytes_per_s, most)), 1.0))

    library = known.mpi_library(mpi, max_ranks_per_host(grid)) or known.mpi_library(mpi, 1)
    engine_times = library.engine if library else None
    entries = [known.cluster(cluster.name) for cluster in grid.clusters]
    rates = tuple(tuple(aggregate_rate(i, j) for j in range(n)) for i in range(n))
    uplinks = tuple(
        _uplink(known, cluster, [rate for j, rate in enumerate(rates[i]) if j != i])
        for i, cluster in enumerate(grid.clusters)
    )
    corrections, native, variants = _learned(known, grid, mpi)
    return GridModel(
        grid,
        rows,
        "measured",
        tolerance,
        native=native,
        relay_gap=_relay_gap_of(bare, engine_times) if engine_times else None,
        aggregate_bytes_per_s=rates,
        start_s=library.start_s.mean if library else 0.0,
        contention=tuple(entry.contention if entry else 1.0 for entry in entries),
        corrections=corrections,
        native_variants=variants,
        mpi=mpi,
        uplink_bytes_per_s=uplinks if any(uplinks) and n > 1 else (),
        sources=tuple(
            tuple(
                MEASURED_NOW if (i, j) in measured_now else _source_of(known, grid, i, j)
                for j in range(n)
            )
            for i in range(n)
        ),
    )


def _lone_host_bytes_per_s(known: Knowledge, cluster: Cluster) -> float:
    """Return the rate of the interface of a cluster's only host; 0 for several, or if unknown."""
    host = known.host(cluster.processes[0].host) if len(cluster.nodes) == 1 else None
    return host.rate_bytes_per_s if host else 0.0


def _uplink(known: Knowledge, cluster: Cluster, links_bytes_per_s: Sequence[float]) -> float:
    """Return the known uplink of ``cluster``; for a lone host at most the rate of its interface."""
    entry = known.cluster(cluster.name)
    uplink = entry.uplink_bytes_per_s if entry else 0.0
    if len(cluster.nodes) > 1 or not links_bytes_per_s:
        return uplink
    outgoing_bytes_per_s = min(_lone_host_bytes_per_s(known, cluster), sum(links_bytes_per_s))
    if outgoing_bytes_per_s <= max(links_bytes_per_s):
        return uplink
    return min(uplink, outgoing_bytes_per_s) if uplink else outgoing_bytes_per_s


def _source_of(known: Knowledge, grid: Grid, i: int, j: int) -> str:
    """Return a text about the source of the link from cluster ``i`` to ``j``."""
    a, b = grid.clusters[i].name, grid.clusters[j].name
    entry = known.cluster(a) if i == j else known.link(a, b) or known.link(b, a)
    if entry is None:
        return ""
    if entry.origin == "declared":
        return "declared"
    times = f", seen {entry.count} times" if entry.count > 1 else ""
    return f"measured {entry.last:%Y-%m-%d}{times}"


def _relay_gap_of(model: GridModel, engine: TimesBySize) -> TimesBySize | None:
    """Return the seconds per segment of the slowest cluster: its gap plus the engine's time."""
    several = [i for i, c in enumerate(model.grid.clusters) if len(c) > 1]
    if not several:
        return None
    gaps = [max(model.link(i, i).gap(float(m)) for i in several) for m in engine.sizes_bytes]
    return TimesBySize(
        engine.sizes_bytes,
        tuple(gap + added for gap, added in zip(gaps, engine.seconds, strict=True)),
    )


def _learned(
    known: Knowledge, grid: Grid, mpi: str
) -> tuple[
    dict[str, dict[str, Correction]], dict[str, TimesBySize], dict[str, dict[str, TimesBySize]]
]:
    corrections: dict[str, dict[str, Correction]] = {}
    native: dict[str, TimesBySize] = {}
    variants: dict[str, dict[str, TimesBySize]] = {}
    here = [cluster.name for cluster in grid.clusters]
    for entry in known.outcomes(shape_of(grid), mpi):
        sizes = tuple(each.n_bytes for each in entry.sizes)
        values = tuple(each.value.mean for each in entry.sizes)
        if not entry.is_native:
            if min(values) > 0:
                found = Correction(sizes, values)
                corrections.setdefault(entry.collective, {})[entry.algorithm] = found
        elif entry.clusters == here:
            times = TimesBySize(sizes, values)
            if entry.algorithm == NATIVE:
                native[entry.collective] = times
            elif entry.algorithm in NATIVES:
                variants.setdefault(entry.collective, {})[entry.algorithm] = times
    return corrections, native, variants


def max_ranks_per_host(grid: Grid) -> int:
    return max(Counter(grid.host_of).values())


def shape_of(grid: Grid) -> str:
    """Return hosts and ranks per host of each cluster, in rank order, for example ``4x1+4x1``.

    It ends with ``mixed`` if the ranks of a cluster are not consecutive, as the time of natives
    depends on that.
    """
    parts = []
    for cluster in grid.clusters:
        sizes = sorted(Counter(cluster.node_sizes).items(), reverse=True)
        parts.append(",".join(f"{hosts}x{ranks}" for ranks, hosts in sizes))
    blocks = all(c.ranks[-1] - c.ranks[0] == len(c) - 1 for c in grid.clusters)
    return "+".join(parts) + ("" if blocks else " mixed")


def n_ranks_of_shape(shape: str) -> int:
    """Return the number of ranks of a job of ``shape``; 0 if the text is not a shape."""
    try:
        return sum(
            int(hosts) * int(ranks)
            for cluster in shape.split()[0].split("+")
            for hosts, ranks in (part.split("x") for part in cluster.split(","))
        )
    except (ValueError, IndexError):
        return 0


def statistic_after(before: Statistic | None, value: float, tolerance: float) -> Statistic:
    """Return ``before`` with ``value`` added.

    If ``value`` is off, the network has changed, and the result starts with it.
    """
    if before is None or before.is_off(value, tolerance):
        return Statistic(max(value, 0.0))
    return before.added(value)
