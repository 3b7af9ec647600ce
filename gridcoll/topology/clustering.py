"""Logical homogeneous clusters (Lowekamp's greedy algorithm), from all or some latencies."""

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

    Edges are taken from the shortest on. An edge between two ungrouped nodes founds a group; an
    edge that leaves a group takes the other node in if all its latencies to the members lie within
    ``tolerance`` of the group's shortest edge. An edge between two groups makes them one if all
    their latencies lie within ``tolerance`` of the shorter of both: inside one cluster the shortest
    edges rarely meet, and each founds a group. A node that fits no group is a group of its own.

    Returns groups, each ascending, ordered by their lowest node. Raises `UsageError` for a matrix
    that is not square, negative or NaN entries, a second one of another shape, or a tolerance out
    of range.

    Parameters
    ----------
    latency_s : (n, n) array
        One-way latencies; the diagonal is ignored. An asymmetric matrix is read as the larger of
        both directions.
    tolerance : float
        ρ of the papers: 0.3 admits latencies up to 30 % above the group's shortest edge.
    resolution_s : float
        What the measurement could tell apart. Latencies below it count as equal.
    at_least_s : (n, n) array, optional
        What is certain of each latency, where that is less. Only this keeps nodes apart; how near
        they are, and so which edge founds a group, is what ``latency_s`` says.

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
    certain = matrix if at_least_s is None else np.array(at_least_s, dtype=float)
    if certain.shape != matrix.shape:
        raise UsageError(f"at_least_s: must be of shape {matrix.shape}, got {certain.shape}")
    matrix = _symmetric("latency_s", matrix, resolution_s)
    certain = np.minimum(_symmetric("at_least_s", certain, resolution_s), matrix)
    rows, columns = np.triu_indices(len(matrix), k=1)
    edges = _Edges(matrix[rows, columns], certain[rows, columns], rows, columns)
    near, sure = ([dict(enumerate(row)) for row in each.tolist()] for each in (matrix, certain))
    return Groups(edges, near, sure, tolerance).members


def _symmetric(
    name: str, matrix: npt.NDArray[np.float64], resolution_s: float
) -> npt.NDArray[np.float64]:
    """The larger of both directions, and of the resolution; 0 on the diagonal."""
    off_diagonal = matrix[~np.eye(len(matrix), dtype=bool)]
    if not (np.isfinite(off_diagonal).all() and (off_diagonal >= 0).all()):
        raise UsageError(f"{name}: must be finite and non-negative off the diagonal")
    matrix = np.maximum(np.maximum(matrix, matrix.T), resolution_s)
    np.fill_diagonal(matrix, 0.0)
    return matrix


class _Edges(NamedTuple):
    """Latencies that are known, what is certain of each, and the nodes at their ends, (E,) each."""

    length_s: npt.NDArray[np.float64]
    certain_s: npt.NDArray[np.float64]
    a: npt.NDArray[np.int64]
    b: npt.NDArray[np.int64]

    def ascending(self) -> Iterator[tuple[float, float, int, int, float]]:
        """Each edge, and the least of what is certain of it and of all that follow."""
        # Ties go to low numbers.
        order = np.lexsort((self.b, self.a, self.length_s))
        columns = [each[order] for each in self]
        columns.append(np.minimum.accumulate(columns[1][::-1])[::-1])
        return zip(*(column.tolist() for column in columns), strict=True)


SHORT_S = 2e-3
"""A busy moment of a node weighs most on links that are shorter."""


class Latencies:
    """What was measured between nodes: the shortest, and what is certain of it.

    ``of[a][b]`` is the shortest latency between two nodes. A link whose round trips scatter may be
    shorter than the shortest seen, by about as much as the typical one is longer: only what is
    certain keeps nodes apart.
    """

    def __init__(self, n_nodes: int) -> None:
        self.of: list[dict[int, float]] = [{} for _ in range(n_nodes)]
        self._typical: dict[tuple[int, int], float] = {}
        self._spreads_s: dict[tuple[int, int], tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self.of)

    def enter(self, a: int, b: int, shortest_s: float, typical_s: float) -> None:
        """One more measurement between two nodes."""
        pair = (min(a, b), max(a, b))
        if pair in self._typical:
            low, high = self._spreads_s.get(pair, (self.of[a][b],) * 2)
            self._spreads_s[pair] = (min(low, shortest_s), max(high, shortest_s))
            shortest_s = min(shortest_s, self.of[a][b])
            typical_s = min(typical_s, self._typical[pair])
        self._typical[pair] = typical_s
        self.of[a][b] = self.of[b][a] = shortest_s

    def certain(self, floor_s: float) -> list[dict[int, float]]:
        """What each latency is at least, as far as anybody can tell; `of` where that is less.

        Nothing is less than ``floor_s``.
        """
        found: list[dict[int, float]] = [{} for _ in self.of]
        for (a, b), typical_s in self._typical.items():
            shortest_s = self.of[a][b]
            certain_s = max(min(2 * shortest_s - typical_s, shortest_s), floor_s)
            found[a][b] = found[b][a] = certain_s
        return found

    def edges(self) -> Iterator[tuple[float, int, int]]:
        """The shortest latency of every measured pair, with the pair, ascending."""
        return ((self.of[a][b], a, b) for a, b in self._typical)

    def resolution_s(self) -> float:
        """Below which latency repeated measurements cannot tell two links apart.

        Three times by how much the upper quartile of them differs: see `measure.clusters`. Never
        more than `SHORT_S`: longer ones are no noise, on however busy a machine.
        """
        spreads = sorted(high - low for low, high in self._spreads_s.values())
        if not spreads:
            return 0.0
        coarse_s = 3 * spreads[min(int(0.75 * len(spreads)), len(spreads) - 1)]
        return min(coarse_s, SHORT_S)


def sparse_groups(latencies: Latencies, tolerance: float) -> Groups:
    """What `find_clusters` finds, of what was measured; what was not keeps nobody apart."""
    floor_s = latencies.resolution_s()
    certain_s = latencies.certain(floor_s)
    rows = [(max(s, floor_s), certain_s[a][b], a, b) for s, a, b in latencies.edges()]
    length_s, sure_s, a, b = (np.array(each) for each in zip(*rows, strict=True))
    near = [{node: max(s, floor_s) for node, s in each.items()} for each in latencies.of]
    return Groups(_Edges(length_s, sure_s, a, b), near, certain_s, tolerance)


class Groups:
    """Groups that grow by edges, from the shortest on; see `find_clusters`.

    A look at one edge must cost little, for there are half a million between a thousand nodes.
    ``near_s`` and ``certain_s`` have the same edges by node and other node.

    Attributes
    ----------
    members : list of list of int
        Every group ascending, groups by their lowest node.
    label : list of int
        By node, its group's place in ``members``.
    founded_s : list of float
        By group, its shortest edge; infinite for a node alone.
    """

    def __init__(
        self,
        edges: _Edges,
        near_s: Sequence[Mapping[int, float]],
        certain_s: Sequence[Mapping[int, float]],
        tolerance: float,
    ) -> None:
        self._certain_s = certain_s
        self._slack = 1 + tolerance
        self._of = [-1] * len(near_s)
        self._groups: list[list[int]] = []
        self._shortest_s: list[float] = []
        self._apart: set[tuple[int, int]] = set()
        self._n_left, self._widest_s = len(near_s), -1.0  # no limit was ever wider
        for length_s, sure_s, a, b, ahead_s in edges.ascending():
            if self._n_left <= 1 and ahead_s > self._widest_s:
                break  # nothing changes any more
            self._take(length_s, sure_s, a, b)
        self._release_strangers(near_s)
        alone = [[node] for node, group in enumerate(self._of) if group < 0]
        pairs = zip(self._groups, self._shortest_s, strict=True)
        found = [(sorted(group), shortest_s) for group, shortest_s in pairs if group]
        found = sorted(found + [(group, math.inf) for group in alone])
        self.members = [group for group, _ in found]
        self.founded_s = [shortest_s for _, shortest_s in found]
        self.label = [0] * len(near_s)
        for index, group in enumerate(self.members):
            for node in group:
                self.label[node] = index

    def _take(self, length_s: float, sure_s: float, a: int, b: int) -> None:
        """Found a group, let one in, or make two groups one: by the edge between two nodes."""
        first, second = sorted((self._of[a], self._of[b]))
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
            self._unite(first, second, sure_s)

    def _is_within(self, node: int, group: int, limit_s: float) -> bool:
        """Whether all that is known from ``node`` to the group is within ``limit_s``."""
        of, members, known = self._of, self._groups[group], self._certain_s[node]
        if len(members) < len(known):
            return all(known.get(other, 0.0) <= limit_s for other in members)
        return not any(s > limit_s and of[other] == group for other, s in known.items())

    def _unite(self, first: int, second: int, sure_s: float) -> None:
        """Make two groups one, if all that is known in and between them is within the limit.

        What keeps two apart stays as they grow, so that one look is enough.
        """
        shortest_s = min(self._shortest_s[first], self._shortest_s[second])
        limit_s = shortest_s * self._slack
        if sure_s > limit_s or (first, second) in self._apart:
            return
        small, large = sorted((first, second), key=lambda group: len(self._groups[group]))
        checked = [(node, large) for node in self._groups[small]]
        if self._shortest_s[first] != self._shortest_s[second]:
            # The one founded later may be wider than the other's limit.
            wide = first if self._shortest_s[first] > shortest_s else second
            checked += [(node, wide) for node in self._groups[wide]]
        if not all(self._is_within(node, group, limit_s) for node, group in checked):
            self._apart.add((first, second))
            return
        for node in self._groups[small]:
            self._of[node] = large
        self._groups[large] += self._groups[small]
        self._groups[small] = []
        self._shortest_s[large] = shortest_s

    def _release_strangers(self, near_s: Sequence[Mapping[int, float]]) -> None:
        """Release nodes that joined a group only because every nearer node was already taken.

        Two left-over nodes found a group whatever lies between them. A node is not at home there if
        a neighbour outside is nearer by more than the tolerance: Table 3 of Barchet-Steffenel and
        Mounié 2006 lists its two single IDPOT machines (242 us apart, 60 us from six others) apart.
        """
        strangers = []
        for group, shortest_s in zip(self._groups, self._shortest_s, strict=True):
            for node in group:
                outside = (
                    s for other, s in near_s[node].items() if self._of[other] != self._of[node]
                )
                if min(outside, default=math.inf) * self._slack < shortest_s:
                    strangers.append(node)
        for node in strangers:
            self._groups[self._of[node]].remove(node)
        for node in strangers:
            self._of[node] = -1
