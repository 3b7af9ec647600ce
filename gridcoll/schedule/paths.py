"""Shortest paths that visit all clusters, and the most central cluster."""

from __future__ import annotations

import numpy as np

MOST_EXACT = 9
"""Up to this many vertices the shortest path is exact."""


def shortest_path(cost: np.ndarray, start: int) -> tuple[int, ...]:
    """Return a short path from ``start`` that visits all vertices of ``cost``, (N, N).

    It is the shortest one up to `MOST_EXACT` vertices, and greedy beyond.
    """
    n = len(cost)
    if n > MOST_EXACT:
        path, remaining = [start], np.array(cost, dtype=float)
        for _ in range(n - 1):
            remaining[:, path[-1]] = np.inf
            path.append(int(np.argmin(remaining[path[-1]])))
        return tuple(path)
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {
        (1 << start, start): (0.0, (start,))
    }
    for _ in range(n - 1):
        longer: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        for (visited, last), (length, path_so_far) in best.items():
            for v in range(n):
                if not visited >> v & 1:
                    key = (visited | 1 << v, v)
                    candidate = (length + float(cost[last, v]), (*path_so_far, v))
                    if key not in longer or candidate < longer[key]:
                        longer[key] = candidate
        best = longer
    return min(best.values())[1]


def find_hub(latency_s: np.ndarray) -> int:
    """Return the vertex with the least sum of its largest latencies to and from others."""
    return int(np.argmin(latency_s.max(axis=0) + latency_s.max(axis=1)))
