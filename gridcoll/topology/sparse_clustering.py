"""Lowekamp's clusters from some of the latencies: those between nodes that were ever measured."""

from __future__ import annotations

import math
from collections.abc import Iterator

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


class SparseGroups:
    """What `find_clusters` finds, of what was measured; what was not keeps nobody apart.

    Attributes
    ----------
    members : list of list of int
        Every group ascending, groups by their lowest node.
    label : list of int
        By node, its group's place in ``members``.
    founded_s : list of float
        By group, its shortest edge; infinite for a node alone.
    """

    def __init__(self, latencies: Latencies, tolerance: float) -> None:
        self._latencies = latencies
        self._slack = 1 + tolerance
        self._floor_s = latencies.resolution_s()
        self._of = [-1] * len(latencies)
        self._groups: list[list[int]] = []
        self._shortest_s: list[float] = []
        self._apart: set[tuple[int, int]] = set()
        self._certain_s = latencies.certain(self._floor_s)
        edges = sorted((max(s, self._floor_s), a, b) for s, a, b in latencies.edges())
        for length_s, a, b in edges:
            self._take(length_s, a, b)
        self._release_strangers()
        alone = [[node] for node, group in enumerate(self._of) if group < 0]
        pairs = zip(self._groups, self._shortest_s, strict=True)
        found = [(sorted(group), shortest_s) for group, shortest_s in pairs if group]
        found = sorted(found + [(group, math.inf) for group in alone])
        self.members = [group for group, _ in found]
        self.founded_s = [shortest_s for _, shortest_s in found]
        self.label = [0] * len(latencies)
        for index, group in enumerate(self.members):
            for node in group:
                self.label[node] = index

    def _take(self, length_s: float, a: int, b: int) -> None:
        first, second = sorted((self._of[a], self._of[b]))
        if second < 0:
            self._of[a] = self._of[b] = len(self._groups)
            self._groups.append([a, b])
            self._shortest_s.append(length_s)
        elif first < 0:
            joiner = a if self._of[a] < 0 else b
            if self._is_within(joiner, second, self._shortest_s[second] * self._slack):
                self._of[joiner] = second
                self._groups[second].append(joiner)
        elif first != second:
            self._unite(a, b)

    def _is_within(self, node: int, group: int, limit_s: float) -> bool:
        """Whether all that was measured from ``node`` to the group is within ``limit_s``."""
        of = self._of
        return not any(
            certain_s > limit_s and of[other] == group
            for other, certain_s in self._certain_s[node].items()
        )

    def _unite(self, a: int, b: int) -> None:
        """Make the groups of two nodes one, if all that was measured in and between is within.

        What keeps two apart stays as they grow, so that one look is enough.
        """
        first, second = self._of[a], self._of[b]
        small, large = sorted((first, second), key=lambda group: len(self._groups[group]))
        shortest_s = min(self._shortest_s[first], self._shortest_s[second])
        limit_s = shortest_s * self._slack
        if self._certain_s[a][b] > limit_s or (small, large) in self._apart:
            return
        checked = [(node, large) for node in self._groups[small]]
        if self._shortest_s[first] != self._shortest_s[second]:
            # The one founded later may be wider than the other's limit.
            wide = first if self._shortest_s[first] > shortest_s else second
            checked += [(node, wide) for node in self._groups[wide]]
        if not all(self._is_within(node, group, limit_s) for node, group in checked):
            self._apart |= {(small, large), (large, small)}
            return
        for node in self._groups[small]:
            self._of[node] = large
        self._groups[large] += self._groups[small]
        self._groups[small] = []
        self._shortest_s[large] = shortest_s

    def _release_strangers(self) -> None:
        """As in `find_clusters`: whoever has a nearer neighbour outside is not at home."""
        strangers = []
        for group, shortest_s in zip(self._groups, self._shortest_s, strict=True):
            for node in group:
                outside = (
                    max(s, self._floor_s)
                    for other, s in self._latencies.of[node].items()
                    if self._of[other] != self._of[node]
                )
                if min(outside, default=math.inf) * self._slack < shortest_s:
                    strangers.append(node)
        for node in strangers:
            self._groups[self._of[node]].remove(node)
        for node in strangers:
            self._of[node] = -1
