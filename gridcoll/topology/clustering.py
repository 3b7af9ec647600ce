"""Finds logical homogeneous clusters from all or some latencies (Lowekamp's greedy algorithm)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridcoll.errors import UsageError

DEFAULT_TOLERANCE = 0.3


def find_clusters(
    latency_s: npt.ArrayLike,
    tolerance: float = DEFAULT_TOLERANCE,
    resolution_s: float = 0.0,
    at_least_s: npt.ArrayLike | None = None,
) -> list[list[int]]:
    """Group nodes whose mutual latencies differ by no more than ``tolerance``.

    Edges are processed from the shortest on. An edge between two ungrouped nodes founds a group. An
    edge from a group to an ungrouped node adds the node if all its latencies to the members are
    within ``tolerance`` of the group's shortest edge. An edge between two groups joins them if all
    their latencies are within ``tolerance`` of the shorter one of their shortest edges: inside a
    cluster the shortest edges rarely share a node, and each founds a group. A node that fits into
    no group becomes a group of its own.

    Returns groups, each ascending, ordered by their lowest node. Raises `UsageError` for a matrix
    that is not square, for negative or NaN entries, for an ``at_least_s`` of another shape, or for
    a tolerance out of range.

    Parameters
    ----------
    latency_s : (n, n) array
        One-way latencies; the diagonal is ignored. The larger of both directions is used.
    tolerance : float
        ρ of the papers: 0.3 allows latencies up to 30 % above the group's shortest edge.
    resolution_s : float
        The resolution of the measurement. Latencies below it count as equal.
    at_least_s : (n, n) array, optional
        A lower bound of each latency that is certain, if that is less than ``latency_s``. Only this
        bound separates nodes; ``latency_s`` gives the order of edges, and so which edges found
        groups.

    References
    ----------
    Lowekamp, *Discovery and application of network information*, 2000; equation (3) of Steffenel
    and Mounié 2007. Their text compares one edge with the group's minimum. We compare the edges to
    all members with it, so that a node near one member and far from another is not added.
    """
    matrix = np.array(latency_s, dtype=float)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise UsageError(f"latency_s: must be a square matrix, got shape {matrix.shape}")
    if not 0 <= tolerance < 10:
        raise UsageError(f"tolerance: must be in [0, 10), got {tolerance}")
    certain = matrix if at_least_s is None else np.array(at_least_s, dtype=float)
    if certain.shape != matrix.shape:
        raise UsageError(f"at_least_s: must be of shape {matrix.shape}, got {certain.shape}")
    matrix = _symmetric("latency_s", matrix, resolution_s)
    certain = np.minimum(_symmetric("at_least_s", certain, resolution_s), matrix)
    rows, columns = np.triu_indices(len(matrix), k=1)
    edges = Edges(matrix[rows, columns], certain[rows, columns], rows, columns)
    return Groups(edges, [dict(enumerate(row)) for row in certain.tolist()], tolerance).members


def _symmetric(
    name: str, matrix: npt.NDArray[np.float64], resolution_s: float
) -> npt.NDArray[np.float64]:
    """Return the largest of both directions and the resolution; 0 on the diagonal."""
    off_diagonal = matrix[~np.eye(len(matrix), dtype=bool)]
    if not (np.isfinite(off_diagonal).all() and (off_diagonal >= 0).all()):
        raise UsageError(f"{name}: must be finite and non-negative off the diagonal")
    matrix = np.maximum(np.maximum(matrix, matrix.T), resolution_s)
    np.fill_diagonal(matrix, 0.0)
    return matrix


class Edges(NamedTuple):
    """Known latencies, a certain lower bound of each, and the nodes at their ends, (E,) each."""

    length_s: npt.NDArray[np.float64]
    certain_s: npt.NDArray[np.float64]
    a: npt.NDArray[np.int64]
    b: npt.NDArray[np.int64]

    def ascending(self) -> Iterator[tuple[float, float, int, int, float]]:
        """Yield each edge with the least certain bound of it and of all edges that follow."""
        # Ties go to the lowest nodes.
        order = np.lexsort((self.b, self.a, self.length_s))
        columns = [each[order] for each in self]
        columns.append(np.minimum.accumulate(columns[1][::-1])[::-1])
        return zip(*(column.tolist() for column in columns), strict=True)


SHORT_S = 2e-3
"""Delays of a busy node distort latencies below this most."""


class Latencies:
    """Latencies measured between nodes.

    ``of[a][b]`` is the shortest one seen between two nodes. If the round trips of a link scatter,
    its latency may be even shorter, by about as much as the typical one is longer. Only the part
    that is certain separates nodes: ``certain_s[a][b]``.
    """

    def __init__(self, n_nodes: int) -> None:
        self.of: list[dict[int, float]] = [{} for _ in range(n_nodes)]
        self.certain_s: list[dict[int, float]] = [{} for _ in range(n_nodes)]
        self._typical: dict[tuple[int, int], float] = {}
        self._spreads_s: dict[tuple[int, int], tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self.of)

    def enter(self, a: int, b: int, shortest_s: float, typical_s: float) -> None:
        """Add a measurement between two nodes."""
        pair = (min(a, b), max(a, b))
        if pair in self._typical:
            low, high = self._spreads_s.get(pair, (self.of[a][b],) * 2)
            self._spreads_s[pair] = (min(low, shortest_s), max(high, shortest_s))
            shortest_s = min(shortest_s, self.of[a][b])
            typical_s = min(typical_s, self._typical[pair])
        self._typical[pair] = typical_s
        self.of[a][b] = self.of[b][a] = shortest_s
        certain_s = min(2 * shortest_s - typical_s, shortest_s)
        self.certain_s[a][b] = self.certain_s[b][a] = certain_s

    def edges(self) -> Edges:
        """Return all measured latencies, each once, with the lower node as ``a``."""
        a, b = np.array(list(self._typical)).T
        length_s, certain_s = (
            np.array([by_node[a][b] for a, b in self._typical])
            for by_node in (self.of, self.certain_s)
        )
        return Edges(length_s, certain_s, a, b)

    def resolution_s(self) -> float:
        """Return the latency below which measurements cannot distinguish two links.

        It is three times the upper quartile of the spreads of repeated measurements: see
        `measure.clusters`. It is never more than `SHORT_S`: differences above that are not noise,
        even on a busy machine.
        """
        spreads = sorted(high - low for low, high in self._spreads_s.values())
        if not spreads:
            return 0.0
        coarse_s = 3 * spreads[min(int(0.75 * len(spreads)), len(spreads) - 1)]
        return min(coarse_s, SHORT_S)


def sparse_groups(latencies: Latencies, tolerance: float) -> Groups:
    """Like `find_clusters`, with the latencies that were measured; others separate no nodes."""
    # Certain bounds below the resolution are below every limit, so they need not be raised to it.
    edges = latencies.edges()
    length_s = np.maximum(edges.length_s, latencies.resolution_s())
    return Groups(edges._replace(length_s=length_s), latencies.certain_s, tolerance)


class Groups:
    """Groups that grow edge by edge, from the shortest on: see `find_clusters`.

    The work per edge must be small, because a thousand nodes have half a million edges.
    ``certain_s`` has the certain bounds of the same edges by node and other node.

    Attributes
    ----------
    members : list of list of int
        All groups, each ascending, ordered by their lowest node.
    label : list of int
        For each node, the index of its group in ``members``.
    founded_s : list of float
        For each group, its shortest edge; infinite for a single node.
    """

    def __init__(
        self,
        edges: Edges,
        certain_s: Sequence[Mapping[int, float]],
        tolerance: float,
    ) -> None:
        self._certain_s = certain_s
        self._slack = 1 + tolerance
        self._of = [-1] * len(certain_s)
        self._groups: list[list[int]] = []
        self._shortest_s: list[float] = []
        self._separate: set[tuple[int, int]] = set()
        self._n_left = len(certain_s)
        """Number of ungrouped nodes."""
        self._widest_s = -1.0
        """The widest limit so far."""
        for length_s, edge_certain_s, a, b, least_left_s in edges.ascending():
            if self._n_left <= 1 and least_left_s > self._widest_s:
                break  # no further edge can change a group
            self._add_edge(length_s, edge_certain_s, a, b)
        self._release_strangers(edges)
        alone = [[node] for node, group in enumerate(self._of) if group < 0]
        pairs = zip(self._groups, self._shortest_s, strict=True)
        found = [(sorted(group), shortest_s) for group, shortest_s in pairs if group]
        found = sorted(found + [(group, math.inf) for group in alone])
        self.members = [group for group, _ in found]
        self.founded_s = [shortest_s for _, shortest_s in found]
        self.label = [0] * len(certain_s)
        for index, group in enumerate(self.members):
            for node in group:
                self.label[node] = index

    def _add_edge(self, length_s: float, edge_certain_s: float, a: int, b: int) -> None:
        """Use an edge to found a group, to add a node to a group, or to join two groups."""
        first, second = self._of[a], self._of[b]
        if first > second:
            first, second = second, first
        if second < 0:
            self._of[a] = self._of[b] = len(self._groups)
            self._groups.append([a, b])
            self._shortest_s.append(length_s)
            self._widest_s = max(self._widest_s, length_s * self._slack)
            self._n_left -= 2
        elif first < 0:
            joiner = a if self._of[a] < 0 else b
            if self._is_within(joiner, second, self._shortest_s[second] * self._slack):
                self._of[joiner] = second
                self._groups[second].append(joiner)
                self._n_left -= 1
        elif first != second:
            self._unite(first, second, edge_certain_s)

    def _is_within(self, node: int, group: int, limit_s: float) -> bool:
        """Whether all known latencies from ``node`` to the group are within ``limit_s``."""
        of, members, known = self._of, self._groups[group], self._certain_s[node]
        if len(members) < len(known):
            return all(known.get(other, 0.0) <= limit_s for other in members)
        return not any(s > limit_s and of[other] == group for other, s in known.items())

    def _unite(self, first: int, second: int, edge_certain_s: float) -> None:
        """Join two groups if all known latencies in and between them are within the limit.

        A latency that separates two groups still does after they grow, so one check is enough.
        """
        shortest_s = min(self._shortest_s[first], self._shortest_s[second])
        limit_s = shortest_s * self._slack
        if edge_certain_s > limit_s or (first, second) in self._separate:
            return
        small, large = sorted((first, second), key=lambda group: len(self._groups[group]))
        checked = [(node, large) for node in self._groups[small]]
        if self._shortest_s[first] != self._shortest_s[second]:
            # The group with the longer shortest edge may be wider than the limit of the other.
            wide = first if self._shortest_s[first] > shortest_s else second
            checked += [(node, wide) for node in self._groups[wide]]
        if not all(self._is_within(node, group, limit_s) for node, group in checked):
            self._separate.add((first, second))
            return
        for node in self._groups[small]:
            self._of[node] = large
        self._groups[large] += self._groups[small]
        self._groups[small] = []
        self._shortest_s[large] = shortest_s

    def _release_strangers(self, edges: Edges) -> None:
        """Release nodes that joined a group only because all nearer nodes were already grouped.

        The last two ungrouped nodes found a group even if they are far from each other. A node does
        not belong there if a node outside is nearer by more than the tolerance. In the same way,
        Table 3 of Barchet-Steffenel and Mounié 2006 lists its two single IDPOT machines separately
        (242 us from each other, 60 us from six others).
        """
        of = np.array(self._of)
        outside_s = np.full(len(of), math.inf)
        is_between = of[edges.a] != of[edges.b]
        for end in (edges.a, edges.b):
            np.minimum.at(outside_s, end[is_between], edges.length_s[is_between])
        limits_s = (outside_s * self._slack).tolist()
        strangers = [
            node
            for group, shortest_s in zip(self._groups, self._shortest_s, strict=True)
            for node in group
            if limits_s[node] < shortest_s
        ]
        for node in strangers:
            self._groups[self._of[node]].remove(node)
        for node in strangers:
            self._of[node] = -1


FAR_S = 2.5e-3
"""No two hosts of a site are that far apart: 500 km of fibre, one way."""

NEAR_PART = 0.3
"""Hosts of a site are nearer to each other than this part of the latency to any other host, also
where time is dilated."""

MOST_FAR_HOSTS = 6
"""Only groups of at most so many nodes are split: links of many lone hosts would take long to
measure one by one."""


def far_nodes_apart(
    groups: Sequence[Sequence[int]], of: Sequence[Mapping[int, float]]
) -> list[list[int]]:
    """Return ``groups`` with those split into single nodes whose nodes are in different places.

    Lone hosts about equally far apart are one cluster by Lowekamp's rule. Yet each has its own
    links, which may have any rate. ``of[a][b]``: latencies in seconds; some may be missing.
    """
    found: list[list[int]] = []
    for group in groups:
        inside = [of[a][b] for a in group for b in group if a < b and b in of[a]]
        outside = [s for a in group for b, s in of[a].items() if b != a and b not in group]
        is_far = bool(inside) and min(inside) >= max(FAR_S, NEAR_PART * min(outside, default=0.0))
        if len(group) <= MOST_FAR_HOSTS and is_far:
            found += [[node] for node in group]
        else:
            found.append(list(group))
    return sorted(found)
