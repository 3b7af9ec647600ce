"""Clustering by looking at all latencies again for every edge: slow, and easy to read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def plain_clusters(
    latency_s: npt.ArrayLike,
    tolerance: float,
    resolution_s: float,
    at_least_s: npt.ArrayLike | None = None,
) -> list[list[int]]:
    """What `gridcoll.topology.find_clusters` finds."""
    matrix = np.array(latency_s, dtype=float)
    certain = matrix if at_least_s is None else np.array(at_least_s, dtype=float)
    n = len(matrix)
    matrix, certain = (np.maximum(np.maximum(m, m.T), resolution_s) for m in (matrix, certain))
    certain = np.minimum(certain, matrix)
    rows, columns = np.triu_indices(n, k=1)
    # A stable sort keeps the order of (row, column) among equal edges: ties go to low numbers.
    by_length = np.argsort(matrix[rows, columns], kind="stable")
    group_of = [-1] * n
    groups: list[list[int]] = []
    shortest: list[float] = []
    for edge in by_length:
        a, b = int(rows[edge]), int(columns[edge])
        if group_of[a] < 0 and group_of[b] < 0:
            group_of[a] = group_of[b] = len(groups)
            groups.append([a, b])
            shortest.append(float(matrix[a, b]))
            continue
        if group_of[a] < 0 or group_of[b] < 0:
            joiner, member = (a, b) if group_of[a] < 0 else (b, a)
            group = group_of[member]
            if (certain[joiner, groups[group]] <= shortest[group] * (1 + tolerance)).all():
                group_of[joiner] = group
                groups[group].append(joiner)
        elif group_of[a] != group_of[b]:
            first, second = sorted((group_of[a], group_of[b]))
            if _belong_together(certain, groups, shortest, (first, second), tolerance):
                for node in groups[second]:
                    group_of[node] = first
                groups[first] += groups[second]
                groups[second] = []
                shortest[first] = min(shortest[first], shortest[second])
    _release_strangers(matrix, groups, shortest, tolerance)
    groups = [group for group in groups if group]
    grouped = {node for group in groups for node in group}
    groups += [[node] for node in range(n) if node not in grouped]
    return sorted(sorted(group) for group in groups)


def _belong_together(
    certain: npt.NDArray[np.float64],
    groups: list[list[int]],
    shortest: list[float],
    pair: tuple[int, int],
    tolerance: float,
) -> bool:
    limit = min(shortest[k] for k in pair) * (1 + tolerance)
    members = groups[pair[0]] + groups[pair[1]]
    inside = certain[np.ix_(members, members)]
    return bool((inside[~np.eye(len(members), dtype=bool)] <= limit).all())


def _release_strangers(
    matrix: npt.NDArray[np.float64],
    groups: list[list[int]],
    shortest: list[float],
    tolerance: float,
) -> None:
    for group, founded_s in zip(groups, shortest, strict=True):
        outside = [node for node in range(len(matrix)) if node not in group]
        if outside:
            nearest_s = matrix[np.ix_(group, outside)].min(axis=1)
            group[:] = [
                node
                for node, nearest in zip(group, nearest_s, strict=True)
                if nearest * (1 + tolerance) >= founded_s
            ]
