"""Plan around hosts that are slower than the rest of their cluster.

A model has one rate for all interfaces of a cluster. If a host becomes slow while a job runs, the
grid stays as it is, but plans are made with a model in which such hosts are a cluster of their own.
"""

from __future__ import annotations

import math
from functools import lru_cache

from msgspec.structs import replace

from gridcoll.model.gridmodel import CHANGED_SOURCE, GridModel, ModelKey
from gridcoll.model.plogp import LONG_BYTES, PLogP
from gridcoll.topology.grid import Cluster, Grid, Process

Group = tuple[int, bool]
"""The number of a cluster, and whether its slow hosts are meant or the others."""

N_CACHED = 32
"""Most models whose planning models are kept."""


def planning_model(model: GridModel) -> GridModel:
    """Return the model that plans for ``model`` are made with: slow hosts are a cluster apart.

    It has the same ranks. The same object is returned for the same object.
    """
    return _apart(ModelKey(model)) if model.slow_hosts else model


@lru_cache(maxsize=N_CACHED)
def _apart(key: ModelKey) -> GridModel:
    model = key.model
    hosts_of = {each.cluster: each.hosts for each in model.slow_hosts}
    groups: dict[Group, list[Process]] = {}
    for rank, (c, host) in enumerate(zip(model.grid.cluster_of, model.grid.hosts, strict=True)):
        groups.setdefault((c, host in hosts_of.get(c, ())), []).append(Process(rank, host))
    origin = tuple(groups)  # in order of their lowest ranks
    rates = {
        (each.cluster, True): LONG_BYTES / model.slow_link(each.cluster).gap(float(LONG_BYTES))
        for each in model.slow_hosts
    }
    n_hosts = {group: len({each.host for each in found}) for group, found in groups.items()}

    def link(a: Group, b: Group) -> PLogP:
        found = model.link(a[0], b[0])
        slow = min((rates[group] for group in (a, b) if group in rates), default=math.inf)
        return found.at_rate(slow) if slow * found.gap(float(LONG_BYTES)) < LONG_BYTES else found

    def together(a: Group, b: Group) -> float:
        before = model.aggregate_bytes_per_s[a[0]][b[0]]
        return min([before, *(rates[each] * n_hosts[each] for each in (a, b) if each in rates)])

    def source(a: Group, b: Group) -> str:
        return CHANGED_SOURCE if a in rates or b in rates else model.source(a[0], b[0])

    def uplink(group: Group) -> float:
        return rates[group] * n_hosts[group] if group in rates else by_cluster[group[0]]

    by_cluster = model.uplink_bytes_per_s
    return replace(
        model,
        grid=Grid(tuple(_cluster(model.grid, g, groups[g]) for g in origin), model.grid.name),
        links=tuple(tuple(link(a, b) for b in origin) for a in origin),
        aggregate_bytes_per_s=(
            tuple(tuple(together(a, b) for b in origin) for a in origin)
            if model.aggregate_bytes_per_s
            else ()
        ),
        contention=tuple(model.contention[c] for c, _ in origin) if model.contention else (),
        sources=tuple(tuple(source(a, b) for b in origin) for a in origin),
        uplink_bytes_per_s=tuple(map(uplink, origin)) if by_cluster else (),
        slow_hosts=(),
    )


def _cluster(grid: Grid, group: Group, processes: list[Process]) -> Cluster:
    c, is_slow = group
    before = grid.clusters[c]
    name = f"{before.name} (slow)" if is_slow else before.name
    return Cluster(name, tuple(processes), before.site, before.region)
