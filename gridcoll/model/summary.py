"""Latency and rate of each link of a grid, for people and for pictures."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.topology.units import format_rate

RATE_BYTES = 1 << 20
"""The message size at which a link's rate is stated."""


def rates_bytes_per_s(model: GridModel) -> FloatArray:
    """Return each link's rate with messages of 1 MiB, (C, C). The diagonal is inside a cluster.

    A declared model gives the declared rate: its constant cost per message is not counted.
    """
    gap_s = model.gap_s(RATE_BYTES)
    if model.origin == "declared":
        gap_s = gap_s - model.gap_s(0)
    return np.asarray(RATE_BYTES / np.maximum(gap_s, 1e-12))


def rounded_rate(bytes_per_s: float) -> str:
    """Return ``bytes_per_s`` as text, in bits per second with three digits."""
    return format_rate(float(f"{8 * bytes_per_s:.3g}") / 8)


def is_symmetric(model: GridModel) -> bool:
    """Whether every link is the same in both directions, as far as the model knows."""
    n = model.n_clusters
    return all(model.links[i][j] == model.links[j][i] for i in range(n) for j in range(i))


def format_sources(model: GridModel) -> str:
    """Return where links between clusters come from, as ``2 measured 2026-11-20, 1 declared``."""
    if not model.sources:
        return model.origin  # every choice asks, and 100 clusters have 4,950 links
    n = model.n_clusters
    pairs = [(i, j) for i in range(n) for j in range(i)] or [(0, 0)]
    counts = Counter(model.source(*pair) for pair in pairs)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count} {source}" for source, count in counts.most_common())


def summarise(model: GridModel) -> dict[str, Any]:
    """Return ``model`` as plain data for JSON. Names have units; links name clusters by index."""
    rates = rates_bytes_per_s(model)
    clusters = model.grid.clusters
    return {
        "name": model.grid.name,
        "origin": model.origin,
        "tolerance": model.tolerance,
        "n_ranks": model.grid.n_ranks,
        "clusters": [
            {
                "name": cluster.name,
                "site": cluster.site,
                "region": cluster.region,
                "coordinator": cluster.coordinator,
                "ranks": list(cluster.ranks),
                "hosts": [process.host for process in cluster.processes],
                "uplink_bytes_per_s": float(up) if np.isfinite(up) else None,
            }
            for cluster, up in zip(clusters, model.uplinks, strict=True)
        ],
        "links": [
            {
                "sender": i,
                "receiver": j,
                "latency_s": float(model.latency_s[i, j]),
                "rate_bytes_per_s": float(rates[i, j]),
                "source": model.source(i, j),
            }
            for i in range(len(clusters))
            for j in range(len(clusters))
            if model.links[i][j] is not None
        ],
    }
