"""Paths through all clusters, and where they meet."""

from __future__ import annotations

import numpy as np

EXACT_TO = 9
"""Vertices to which the shortest path is found exactly."""


def shortest_path(cost: np.ndarray, start: int) -> tuple[int, ...]:
    """Visit all of ``cost``'s vertices from ``start``: exact to `EXACT_TO`, greedy beyond."""
    n = len(cost)
    if n > EXACT_TO:
        path, left = [start], np.array(cost, dtype=float)
        for _ in range(n - 1):
            left[:, path[-1]] = np.inf
            path.append(int(np.argmin(left[path[-1]])))
        return tuple(path)
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {
        (1 << start, start): (0.0, (start,))
    }
    for _ in range(n - 1):
        longer: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        for (seen, last), (length, path_so_far) in best.items():
            for v in range(n):
                if not seen >> v & 1:
                    key = (seen | 1 << v, v)
                    offer = (length + float(cost[last, v]), (*path_so_far, v))
                    if key not in longer or offer < longer[key]:
                        longer[key] = offer
        best = longer
    return min(best.values())[1]


def find_hub(latency_s: np.ndarray) -> int:
    """The vertex that all others reach soonest, there and back."""
    return int(np.argmin(latency_s.max(axis=0) + latency_s.max(axis=1)))
