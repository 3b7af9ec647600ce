"""Clusters of clusters, found by latency: the levels above the logical clusters.

Paper 003 names more than two levels as future work; paper 000's Table 1 lists some by hand. Here
the same clustering that finds clusters is applied to clusters, then to what comes out, until all
are one: two groups are as far apart as their farthest members.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridcoll.topology.clustering import find_clusters

Groups = tuple[tuple[int, ...], ...]
"""Clusters by index, every cluster in one group; groups and members ascending."""


def find_levels(latency_s: npt.ArrayLike) -> tuple[Groups, ...]:
    """Partitions of clusters, each of groups of the one before; the last has one group.

    Empty for one cluster. ``latency_s`` is (C, C) between clusters; its diagonal is ignored.

    Raises `UsageError` as `find_clusters`.
    """
    matrix = np.array(latency_s, dtype=float)
    found: list[Groups] = []
    groups: Groups = tuple((cluster,) for cluster in range(len(matrix)))
    while len(groups) > 1:
        between = np.array([[matrix[np.ix_(a, b)].max() for b in groups] for a in groups])
        joined = find_clusters(between)
        if len(joined) == len(groups):  # none nearer to each other than to the rest
            joined = [list(range(len(groups)))]
        groups = tuple(
            sorted(tuple(sorted(c for group in each for c in groups[group])) for each in joined)
        )
        found.append(groups)
    return tuple(found)


def join_nearest(latency_s: npt.ArrayLike) -> tuple[tuple[float, Groups], ...]:
    """Partitions as the two nearest groups become one, until all are; with the widest latency in
    any group.

    Groups are as far apart as their farthest members. Where several joins have the same latency,
    only what all of them give is a partition. The first has every cluster by itself.
    """
    matrix = np.array(latency_s, dtype=float)
    matrix = np.maximum(matrix, matrix.T)
    np.fill_diagonal(matrix, np.inf)
    groups: dict[int, tuple[int, ...]] = {cluster: (cluster,) for cluster in range(len(matrix))}
    found: list[tuple[float, Groups]] = [(0.0, tuple(groups.values()))]
    while len(groups) > 1:
        first, second = sorted(divmod(int(matrix.argmin()), len(matrix)))
        widest = max(float(matrix[first, second]), found[-1][0])
        groups[first] = tuple(sorted(groups[first] + groups.pop(second)))
        matrix[first] = matrix[:, first] = np.maximum(matrix[first], matrix[second])
        matrix[second] = matrix[:, second] = np.inf
        matrix[first, first] = np.inf
        if widest == found[-1][0]:
            found.pop()
        found.append((widest, tuple(sorted(groups.values()))))
    return tuple(found)
