"""Wires whose limits can be worked out by hand."""

from __future__ import annotations

import numpy as np

from gridcoll.model.wires import Wires
from gridcoll.topology import Grid


def wires(
    labels: list[int],
    rate: float = 1e9,
    uplink: float = 1e9,
    hosts: tuple[str, ...] = (),
    burst_bytes: int = 0,
) -> Wires:
    """Interfaces of 10 MB/s; 10 ms between clusters, 12 from the first to the third; 0.1 inside.

    Of ``rate`` are links out of the first.
    """
    grid = Grid.from_labels(labels, hosts)
    n = len(grid.clusters)
    latency_s = np.full((n, n), 10e-3)
    np.fill_diagonal(latency_s, 0.1e-3)
    if n > 2:
        latency_s[0, 2] = latency_s[2, 0] = 12e-3
    rates = np.full((n, n), 1e9)
    rates[0, 1:] = rate
    return Wires(grid, latency_s, np.full(n, 10e6), np.full(n, uplink), rates, burst_bytes)
