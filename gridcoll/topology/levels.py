"""Clusters of clusters, found by latency: the levels above the logical clusters.

Paper 003 names more than two levels as future work; Table 1 of paper 000 lists some by hand. Here
the clustering that finds clusters is applied to clusters, then to the result, until one group is
left. The distance of two groups is that of their farthest members.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridcoll.topology.clustering import find_clusters

Groups = tuple[tuple[int, ...], ...]
"""Groups of cluster indices, each cluster in one group. Groups and their members are ascending."""


def find_levels(latency_s: npt.ArrayLike) -> tuple[Groups, ...]:
    """Return partitions of the clusters, from the finest on; the last has one group.

    Each partition joins groups of the one before. For one cluster the result is empty.
    ``latency_s`` is (C, C), between clusters; its diagonal is ignored.

    Raises `UsageError` like `find_clusters`.
    """
    matrix = np.array(latency_s, dtype=float)
    found: list[Groups] = []
    groups: Groups = tuple((cluster,) for cluster in range(len(matrix)))
    while len(groups) > 1:
        between = np.array([[matrix[np.ix_(a, b)].max() for b in groups] for a in groups])
        joined = find_clusters(between)
        if len(joined) == len(groups):  # no groups were joined
            joined = [list(range(len(groups)))]
        groups = tuple(
            sorted(tuple(sorted(c for group in each for c in groups[group])) for each in joined)
        )
        found.append(groups)
    return tuple(found)


def join_nearest(latency_s: npt.ArrayLike) -> tuple[tuple[float, Groups], ...]:
    """Join the two nearest groups repeatedly; return each partition with its widest latency.

    The widest latency is the largest one inside any group, and the distance of two groups is that
    of their farthest members. Several joins at the same latency give one partition. In the first
    partition every cluster is a group; the last has one group.
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
