"""Logical homogeneous clusters from a latency matrix (Lowekamp's greedy algorithm)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gridcoll.errors import UsageError

DEFAULT_TOLERANCE = 0.3


def find_clusters(
    latency_s: npt.ArrayLike, tolerance: float = DEFAULT_TOLERANCE, resolution_s: float = 0.0
) -> list[list[int]]:
    """Group nodes whose mutual latencies differ by no more than ``tolerance``.

    Edges are taken from the shortest on. An edge between two ungrouped nodes founds a group; an
    edge that leaves a group takes the other node in if all its latencies to the members lie within
    ``tolerance`` of the group's shortest edge. An edge between two groups makes them one if all
    their latencies lie within ``tolerance`` of the shorter of both: inside one cluster the shortest
    edges rarely meet, and each founds a group. A node that fits no group is a group of its own.

    Parameters
    ----------
    latency_s : (n, n) array
        One-way latencies; the diagonal is ignored. An asymmetric matrix is read as the larger of
        both directions.
    tolerance : float
        ρ of the papers: 0.3 admits latencies up to 30 % above the group's shortest edge.
    resolution_s : float
        What the measurement could tell apart. Latencies below it count as equal.

    Returns
    -------
    list of list of int
        The groups, each ascending, ordered by their lowest node.

    Raises
    ------
    UsageError
        For a matrix that is not square, negative or NaN entries, or a tolerance out of range.

    References
    ----------
    Lowekamp, *Discovery and application of network information*, 2000; equation (3) of Steffenel
    and Mounié 2007. Their text compares with the group's minimum only; we compare all edges to the
    members with it, so that a node near one member and far from another is not taken in.
    """
    matrix = np.array(latency_s, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise UsageError(f"latency_s: must be a square matrix, got shape {matrix.shape}")
    if not 0 <= tolerance < 10:
        raise UsageError(f"tolerance: must be in [0, 10), got {tolerance}")
    n = len(matrix)
    off_diagonal = matrix[~np.eye(n, dtype=bool)]
    if not (np.isfinite(off_diagonal).all() and (off_diagonal >= 0).all()):
        raise UsageError("latency_s: must be finite and non-negative off the diagonal")
    matrix = np.maximum(np.maximum(matrix, matrix.T), resolution_s)
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
            if (matrix[joiner, groups[group]] <= shortest[group] * (1 + tolerance)).all():
                group_of[joiner] = group
                groups[group].append(joiner)
        elif group_of[a] != group_of[b]:
            first, second = sorted((group_of[a], group_of[b]))
            if _belong_together(matrix, groups, shortest, (first, second), tolerance):
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
    matrix: npt.NDArray[np.float64],
    groups: list[list[int]],
    shortest: list[float],
    pair: tuple[int, int],
    tolerance: float,
) -> bool:
    limit = min(shortest[k] for k in pair) * (1 + tolerance)
    if max(shortest[k] for k in pair) > limit:
        return False
    members = groups[pair[0]] + groups[pair[1]]
    inside = matrix[np.ix_(members, members)]
    return bool((inside[~np.eye(len(members), dtype=bool)] <= limit).all())


def _release_strangers(
    matrix: npt.NDArray[np.float64],
    groups: list[list[int]],
    shortest: list[float],
    tolerance: float,
) -> None:
    """Release nodes that joined a group only because every nearer node was already taken.

    Two left-over nodes found a group whatever lies between them. A node is not at home there if a
    neighbour outside is nearer by more than the tolerance: Table 3 of Barchet-Steffenel and Mounié
    2006 lists its two single IDPOT machines (242 us apart, 60 us from six others) apart.
    """
    for group, founded_s in zip(groups, shortest, strict=True):
        outside = [node for node in range(len(matrix)) if node not in group]
        if outside:
            nearest_s = matrix[np.ix_(group, outside)].min(axis=1)
            group[:] = [
                node
                for node, nearest in zip(group, nearest_s, strict=True)
                if nearest * (1 + tolerance) >= founded_s
            ]
