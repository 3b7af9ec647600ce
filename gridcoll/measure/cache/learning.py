"""Make entries for the cache from a model, and from a check."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from datetime import datetime, timezone
from typing import TypeVar

import msgspec
import numpy as np

from gridcoll.errors import FileError
from gridcoll.measure.cache.entries import (
    AnyEntry,
    ClusterEntry,
    Host,
    Library,
    LinkEntry,
    Outcome,
    SizeClass,
    Statistic,
    now,
)
from gridcoll.measure.cache.knowledge import (
    Knowledge,
    Pair,
    max_ranks_per_host,
    shape_of,
    statistic_after,
)
from gridcoll.model import GridModel, PLogP, TimesBySize, declared_model
from gridcoll.model.summary import RATE_BYTES, rates_bytes_per_s
from gridcoll.plan.natives import NATIVE
from gridcoll.topology.grid import Cluster
from gridcoll.topology.gridfile import GridSpec

RENEW_AFTER_S = 3600.0
"""An entry that was seen less than this time ago is not renewed: measurements so close together add
little."""

E = TypeVar("E", bound=AnyEntry)


def can_be_kept(model: GridModel) -> bool:
    """Whether ``model`` was measured, and no two hosts of the same name are in two clusters."""
    names = Counter(
        host for cluster in model.grid.clusters for host in {p.host for p in cluster.processes}
    )
    return model.origin == "measured" and max(names.values()) == 1


def learn_model(
    known: Knowledge,
    model: GridModel,
    only: Collection[tuple[int, int]] | None = None,
    when: datetime | None = None,
) -> list[AnyEntry]:
    """Put what ``model`` shows into ``known``, and return the entries that are new or renewed.

    Everything in ``model`` was measured now, or ``only`` the links of these pairs of clusters. A
    cluster is identified with the known one of most of its hosts. A new cluster gets a number if
    its name is taken.
    """
    when, names = when or now(), _names_of(known, model)
    entries: list[AnyEntry] = []
    for i, (name, cluster) in enumerate(zip(names, model.grid.clusters, strict=True)):
        is_new = only is None or (i, i) in only
        if is_new or known.cluster(name) is None:
            entries.append(_cluster_entry(known, model, i, name, when, is_new))
        entries += _host_entries(known, cluster, name, _interface(model, i), when)
        for j, other in enumerate(names):
            link = model.links[i][j]
            if i != j and link is not None and (only is None or (i, j) in only):
                together = model.aggregate_bytes_per_s[i][j] if model.aggregate_bytes_per_s else 0.0
                about = model.mpi, model.tolerance, when
                entries.append(link_entry(known, (name, other), link, together, *about))
    if only is None:
        entries.append(_library_entry(known, model, when))
        entries += _outcomes(known, model, names, when)
    return known.replace_all(entries)


def learn_outcomes(
    known: Knowledge, model: GridModel, when: datetime | None = None
) -> list[AnyEntry]:
    """Put the times of collectives in ``model`` into ``known``, and return their entries."""
    return known.replace_all(_outcomes(known, model, _names_of(known, model), when or now()))


def _host_entries(
    known: Knowledge, cluster: Cluster, name: str, rate: float, when: datetime
) -> list[AnyEntry]:
    """Return entries of the cluster's hosts that are new, moved, or were not seen for an hour."""
    entries: list[AnyEntry] = []
    for host in dict.fromkeys(process.host for process in cluster.processes):
        before = known.host(host)
        entry = Host(name=host, cluster=name, rate_bytes_per_s=rate, first=when, last=when)
        if before is None or before.cluster != name:
            entries.append(entry)
        elif (when - before.last).total_seconds() >= RENEW_AFTER_S:
            entries.append(_renewed(known, entry))
    return entries


def learn_check(
    known: Knowledge, seen: Mapping[Pair, tuple[float, float]], when: datetime | None = None
) -> list[AnyEntry]:
    """Put latencies and rates of a check into ``known``, and return the renewed entries.

    ``seen`` has the links that are as expected, with latency in seconds and bytes per second (0:
    not measured). Entries seen less than `RENEW_AFTER_S` ago are not renewed.
    """
    when = when or now()
    entries: list[AnyEntry] = []
    for (a, b), (latency_s, rate) in seen.items():
        before = known.link(a, b)
        if before is None or (when - before.last).total_seconds() < RENEW_AFTER_S:
            continue
        entries.append(
            msgspec.structs.replace(
                before,
                last=when,
                count=before.count + 1,
                latency_s=before.latency_s.added(latency_s),
                rate_bytes_per_s=(
                    before.rate_bytes_per_s.added(rate) if rate else before.rate_bytes_per_s
                ),
            )
        )
    return known.replace_all(entries)


def link_entry(
    known: Knowledge,
    pair: Pair,
    link: PLogP,
    together: float,
    mpi: str,
    tolerance: float,
    when: datetime,
) -> LinkEntry:
    """Return the entry of a link that was measured now."""
    before = known.link(*pair)
    latency_s, rate = None, None
    if before is not None and before.origin != "declared":
        latency_s, rate = before.latency_s, before.rate_bytes_per_s
    return _renewed(
        known,
        LinkEntry(
            sender=pair[0],
            receiver=pair[1],
            plogp=link,
            aggregate_bytes_per_s=together,
            latency_s=statistic_after(latency_s, float(link.one_way(0)), tolerance),
            rate_bytes_per_s=statistic_after(rate, rate_of(link), tolerance),
            mpi=mpi,
            first=when,
            last=when,
        ),
    )


def rate_of(link: PLogP) -> float:
    """Return the bytes per second of long messages."""
    return RATE_BYTES / max(float(link.gap(float(RATE_BYTES))), 1e-12)


def _renewed(known: Knowledge, entry: E) -> E:
    """Return ``entry`` with the first time and the count of the known one of the same key."""
    before = known.find(entry.key)
    if before is None or before.origin != entry.origin:
        return entry
    return msgspec.structs.replace(entry, first=before.first, count=before.count + 1)


def _names_of(known: Knowledge, model: GridModel) -> list[str]:
    """Return the name of each cluster of ``model`` in ``known``."""
    names: list[str] = []
    for cluster in model.grid.clusters:
        names.append(_name_of(known, cluster, names))
    return names


def _name_of(known: Knowledge, cluster: Cluster, taken: Collection[str]) -> str:
    before = Counter(known.cluster_of(process.host) for process in cluster.processes)
    before.pop("", None)
    for name, _ in before.most_common():
        if name not in taken:
            return name
    return known.free_name(cluster.name, taken)


def _cluster_entry(
    known: Knowledge, model: GridModel, index: int, name: str, when: datetime, is_new: bool
) -> ClusterEntry:
    cluster, before = model.grid.clusters[index], known.cluster(name)
    uplink = _uplink(model, index, before)
    if before is None or before.origin == "declared":
        before = ClusterEntry(name=name, mpi=model.mpi, first=when, last=when)
    entry = msgspec.structs.replace(
        before,
        name=name,
        site=cluster.site or before.site,
        region=cluster.region or before.region,
        uplink_bytes_per_s=uplink,
        first=when,
        last=when,
        count=1,
    )
    link = model.links[index][index]
    if is_new and link is not None and len(cluster.nodes) > 1:
        entry = msgspec.structs.replace(
            entry,
            inside=link,
            latency_s=statistic_after(before.latency_s, float(link.one_way(0)), model.tolerance),
            rate_bytes_per_s=statistic_after(
                before.rate_bytes_per_s, rate_of(link), model.tolerance
            ),
            contention=model.contention[index] if model.contention else before.contention,
            mpi=model.mpi,
        )
    elif is_new and link is not None:
        entry = msgspec.structs.replace(entry, within_host=link)
    return _renewed(known, entry)


def _interface(model: GridModel, index: int) -> float:
    """Return the bytes per second of an interface of a cluster's hosts; 0 if not known."""
    cluster = model.grid.clusters[index]
    rate = float(model.flow_bytes_per_s[index, index])
    if len(cluster.nodes) > 1:
        return rate
    uplink = model.uplink_bytes_per_s[index] if model.uplink_bytes_per_s else 0.0
    return uplink or (rate if len(cluster) == 1 else 0.0)


def _uplink(model: GridModel, index: int, before: ClusterEntry | None) -> float:
    """Return the measured uplink, or the known or declared one if this job could not measure it.

    A lone host only shows its interface, and not what it shares with other hosts of the cluster.
    """
    is_lone = len(model.grid.clusters[index].nodes) == 1
    if not is_lone and model.uplink_bytes_per_s and model.uplink_bytes_per_s[index]:
        return model.uplink_bytes_per_s[index]
    known = before.uplink_bytes_per_s if before else 0.0
    others = np.delete(model.link_bytes_per_s[index], index)
    return known if others.size and others.max() <= known else 0.0


def _library_entry(known: Knowledge, model: GridModel, when: datetime) -> Library:
    ranks_per_host = max_ranks_per_host(model.grid)
    before = known.mpi_library(model.mpi, ranks_per_host)
    start_s = Statistic(model.start_s)
    if before is not None:
        start_s = before.start_s if model.start_s == 0 else before.start_s.added(model.start_s)
    engine = _engine_times(model) if model.relay_gap else None
    return _renewed(
        known,
        Library(
            mpi=model.mpi,
            ranks_per_host=ranks_per_host,
            start_s=start_s,
            engine=engine or (before.engine if before else None),
            eager_bytes=eager_bytes(model) or (before.eager_bytes if before else 0),
            copy_bytes_per_s=copy_rate(),
            first=when,
            last=when,
        ),
    )


def _engine_times(model: GridModel) -> TimesBySize | None:
    """Return the time that `GridModel.relay_gap` has above the gap of the slowest cluster."""
    several = [i for i, c in enumerate(model.grid.clusters) if len(c) > 1]
    if model.relay_gap is None or not several:
        return None
    sizes, seconds = model.relay_gap.sizes_bytes, model.relay_gap.seconds
    gaps = [max(model.link(i, i).gap(float(m)) for i in several) for m in sizes]
    return TimesBySize(
        sizes, tuple(max(pace - gap, 0.0) for pace, gap in zip(seconds, gaps, strict=True))
    )


def eager_bytes(model: GridModel) -> int:
    """Return the largest measured size that is sent over the longest link without a handshake.

    A lone message with a handshake takes a round trip longer than ``L + g(m)``. It is recognised by
    half a round trip. 0 if no size is sent without one.
    """
    links = [link for row in model.links for link in row if link is not None and link.one_way_s]
    if not links:
        return 0
    longest = max(links, key=lambda link: link.latency_s)
    eager = 0
    for size, gap_s, one_way_s in zip(
        longest.sizes_bytes, longest.gap_s, longest.one_way_s, strict=True
    ):
        if one_way_s > longest.latency_s + gap_s + longest.latency_s:
            break
        eager = size
    return eager


def copy_rate() -> float:
    """Return the bytes per second that this process copies in memory."""
    n_bytes = 1 << 22
    source, target = np.ones(n_bytes, np.uint8), np.empty(n_bytes, np.uint8)
    best_s = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        target[:] = source
        best_s = min(best_s, time.perf_counter() - start)
    return n_bytes / max(best_s, 1e-9)


def _outcomes(
    known: Knowledge, model: GridModel, names: list[str], when: datetime
) -> list[AnyEntry]:
    shape = shape_of(model.grid)
    before = {entry.key: entry for entry in known.outcomes(shape, model.mpi)}
    found: list[AnyEntry] = []

    def add(
        collective: str,
        algorithm: str,
        sizes: tuple[int, ...],
        values: tuple[float, ...],
        native: bool,
    ) -> None:
        entry = Outcome(
            collective=collective,
            algorithm=algorithm,
            is_native=native,
            shape=shape,
            mpi=model.mpi,
            clusters=names if native else [],
            sizes=[SizeClass(max(n, 1), Statistic(v)) for n, v in zip(sizes, values, strict=True)],
            first=when,
            last=when,
        )
        old = before.get(entry.key)
        if old is not None:
            entry = msgspec.structs.replace(
                entry, sizes=merged_sizes(old.sizes, entry.sizes, model.tolerance)
            )
        found.append(_renewed(known, entry))

    def add_times(collective: str, algorithm: str, times: TimesBySize) -> None:
        add(collective, algorithm, times.sizes_bytes, times.seconds, True)

    for collective, families in model.corrections.items():
        for family, correction in families.items():
            add(collective, family, correction.sizes_bytes, correction.factors, False)
    for collective, times in model.native.items():
        if collective not in model.native_priors:  # priors were not measured
            add_times(collective, NATIVE, times)
    for collective, variants in model.native_variants.items():
        for variant, times in variants.items():
            add_times(collective, variant, times)
    return found


def merged_sizes(old: list[SizeClass], new: list[SizeClass], tolerance: float) -> list[SizeClass]:
    """Return the sizes of both lists; values of a size in both are merged."""
    by_size = {each.n_bytes: each for each in old}
    for each in new:
        here = by_size.get(each.n_bytes)
        value = statistic_after(here.value if here else None, each.value.mean, tolerance)
        by_size[each.n_bytes] = SizeClass(each.n_bytes, value)
    return [by_size[size] for size in sorted(by_size)]


def declared_entries(spec: GridSpec, modified_s: float) -> list[AnyEntry]:
    """Return the entries of a grid file last modified at ``modified_s``.

    Raises `FileError` if the file does not name its hosts.
    """
    if spec.by_rank:
        raise FileError(f"grid file {spec.name}: it gives ranks; the cache needs hosts by name")
    when = datetime.fromtimestamp(int(modified_s), timezone.utc)
    # Two processes on each host, as the inside of a cluster of one host is needed, too.
    model = declared_model(spec, [host for hosts in spec.hosts for host in hosts])
    return model_entries(model, when)


def model_entries(model: GridModel, when: datetime) -> list[AnyEntry]:
    """Return entries of the hosts, clusters and links of a declared ``model``."""
    entries: list[AnyEntry] = []
    rates = rates_bytes_per_s(model)
    for i, cluster in enumerate(model.grid.clusters):
        inside = model.link(i, i)
        entries.append(
            ClusterEntry(
                name=cluster.name,
                site=cluster.site,
                region=cluster.region,
                inside=inside,
                within_host=inside,
                uplink_bytes_per_s=(
                    model.uplink_bytes_per_s[i] if model.uplink_bytes_per_s else 0.0
                ),
                origin="declared",
                first=when,
                last=when,
            )
        )
        rate = float(rates[i, i])
        entries += [
            Host(
                name=process.host,
                cluster=cluster.name,
                rate_bytes_per_s=rate,
                origin="declared",
                first=when,
                last=when,
            )
            for process in cluster.processes
        ]
        for j, other in enumerate(model.grid.clusters):
            if i == j:
                continue
            link = model.link(i, j)
            entries.append(
                LinkEntry(
                    sender=cluster.name,
                    receiver=other.name,
                    plogp=link,
                    aggregate_bytes_per_s=(
                        model.aggregate_bytes_per_s[i][j] if model.aggregate_bytes_per_s else 0.0
                    ),
                    latency_s=Statistic(float(link.one_way(0))),
                    rate_bytes_per_s=Statistic(float(rates[i, j])),
                    origin="declared",
                    first=when,
                    last=when,
                )
            )
    return entries


def with_declared(known: Knowledge, spec: GridSpec, modified_s: float = 0.0) -> Knowledge:
    """Return ``known`` with what ``spec`` declares. Measured entries take precedence."""
    together = Knowledge(known)
    together.put_all(declared_entries(spec, modified_s))
    return together
