"""Sites that somebody wrote down, as entries that anything measured goes before."""

from __future__ import annotations

from datetime import datetime, timezone

from gridcoll.errors import FileError
from gridcoll.measure.cache.entries import (
    AnyEntry,
    ClusterEntry,
    Host,
    LinkEntry,
    Statistic,
)
from gridcoll.measure.cache.knowledge import Knowledge
from gridcoll.model import GridModel, declared_model
from gridcoll.model.summary import rates_bytes_per_s
from gridcoll.topology.gridfile import GridSpec


def declared_entries(spec: GridSpec, modified_s: float) -> list[AnyEntry]:
    """The entries of a grid file last written at ``modified_s``. Raises `FileError`.

    Hosts are needed by name.
    """
    if spec.by_rank:
        raise FileError(f"grid file {spec.name}: it gives ranks; the cache needs hosts by name")
    when = datetime.fromtimestamp(int(modified_s), timezone.utc)
    # Two processes on each host: what lies inside a cluster of one host is asked for, too.
    model = declared_model(spec, [host for hosts in spec.hosts for host in hosts])
    return model_entries(model, when)


def model_entries(model: GridModel, when: datetime) -> list[AnyEntry]:
    """Hosts, clusters and links of a declared ``model``."""
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
    """``known`` and what ``spec`` says where it knows nothing measured."""
    together = Knowledge(known)
    together.put_all(declared_entries(spec, modified_s))
    return together
