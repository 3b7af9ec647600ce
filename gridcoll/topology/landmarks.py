"""Finds clusters from a few latencies of every node instead of all. It only chooses the pairs.

Every node first measures its latency to a few others. Neighbours of near nodes are likely to be
near too, so that within a few rounds every node has met some of its own cluster (as in NN-descent:
Dong, Moses and Li 2011). The resulting groups are landmarks for each other: two groups whose
latencies to a third one differ too much cannot be one cluster (as in network coordinates: Ng and
Zhang 2002). Latencies are then measured only between groups that may still be one. Finally,
Lowekamp's rule finds clusters as from a full matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

import numpy as np
from msgspec import Struct

from gridcoll.topology.clustering import SHORT_S, Groups, Latencies, sparse_groups
from gridcoll.topology.rounds import in_rounds

Pair = tuple[int, int]
Rounds = Sequence[Sequence[Pair]]
"""The pairs of a round share no node."""

Measure = Callable[[Rounds], Mapping[Pair, tuple[float, float]]]
"""Measures all pairs, round by round, and returns their shortest and typical latency in seconds."""

FIRST_ROUNDS = 15
"""Every node meets this many others first. With 16 nodes these are all."""

MOST_DESCENTS = 12
"""Steps towards near nodes, of two rounds each. Each step starts from the nearest of 15 or more
nodes. Three or four steps are enough for thousands of nodes whose latencies are like distances in
space; others may need more."""

SETTLED_PART = 0.005
"""These steps end when at most this fraction of all nodes found a nearer one."""

MOST_REPEATS = 6
"""Short links that separate groups are measured at most this many times more, because noise only
makes latencies longer."""

MOST_UNCHANGED = 2
"""The repeats end after this many in a row that did not change the groups."""

DIFFER_FACTOR = 1.5
"""If latencies of two nodes to a third one differ by less than this factor, that shows nothing.
Those of one wire differ by a fifth between measurements, and Internet routes are not straight."""

SMALL_GROUP = 3
"""Groups of at most this many nodes may result from chance: each node is compared by itself."""

LOOSE_FACTOR = 20.0
"""A group this many times wider than the closest group may consist of several groups whose nodes
have not met yet."""

KNOWN_INSIDE = 3
"""Every node of a larger group must know at least this many latencies inside its group. A single
one may be that of a direct cable."""

MOST_ALL_KNOWN = 12
"""In a group of at most this many nodes, all latencies are measured: it may consist of several
pairs."""

ROUNDS_AT_ONCE = 4
"""Rounds before results are exchanged between all nodes and evaluated."""

MOST_CHECKS = 40
"""The search for groups that were never compared is repeated at most this often."""


class Grouping(Struct, frozen=True):
    """Groups of nodes, each ascending, ordered by lowest node; and the cost to find them.

    ``n_rounds`` counts rounds with at least one link of `SHORT_S` or more, ``n_short_rounds``
    rounds of short links only, ``n_exchanges`` the exchanges of results between all nodes.
    """

    groups: list[list[int]]
    n_rounds: int
    n_short_rounds: int
    n_pairs: int
    n_exchanges: int
    latencies_s: Sequence[Mapping[int, float]] = ()
    """``latencies_s[a][b]``: the latencies that were measured."""


def group_nodes(
    n_nodes: int,
    measure: Measure,
    tolerance: float,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Grouping:
    """Return groups of nodes like those of `find_clusters`.

    The result depends only on what ``measure`` returns.
    """
    if n_nodes == 1:
        return Grouping([[0]], 0, 0, 0, 0, [{}])
    search = _Search(n_nodes, measure, tolerance)
    search.meet()
    progress(1, 4)
    search.descend()
    progress(2, 4)
    search.compare()
    progress(3, 4)
    groups = search.settle()
    progress(4, 4)
    return Grouping(
        groups.members,
        search.n_rounds,
        search.n_short_rounds,
        search.n_pairs,
        search.n_exchanges,
        search.latencies_s,
    )


class _Search:
    def __init__(self, n_nodes: int, measure: Measure, tolerance: float) -> None:
        self._n = n_nodes
        self._measure = measure
        self._tolerance = tolerance
        self._latencies = Latencies(n_nodes)
        self._random = Random(n_nodes)  # the same on all ranks
        self.n_rounds = self.n_short_rounds = self.n_pairs = self.n_exchanges = 0

    @property
    def latencies_s(self) -> Sequence[Mapping[int, float]]:
        return self._latencies.of

    def _run(self, rounds: Iterable[Sequence[Pair]]) -> None:
        wanted = [list(pairs) for pairs in rounds if pairs]
        if not wanted:
            return
        found = self._measure(wanted)
        self.n_exchanges += 1
        for pairs in wanted:
            self.n_pairs += len(pairs)
            is_short = bool(max(found[pair][0] for pair in pairs) < SHORT_S)
            self.n_short_rounds += is_short
            self.n_rounds += not is_short
        for (a, b), (shortest_s, typical_s) in found.items():
            self._latencies.enter(a, b, shortest_s, typical_s)

    def meet(self) -> None:
        """Measure from every node to `FIRST_ROUNDS` random others; measure short links twice."""
        order = list(range(self._n))
        self._random.shuffle(order)
        rounds = _first_rounds(order)
        self._run(rounds)
        of = self._latencies.of
        self._run([[(a, b) for a, b in pairs if of[a][b] < SHORT_S] for pairs in rounds])

    def descend(self) -> None:
        """Measure to neighbours of neighbours, until hardly any node finds a nearer one."""
        if self._n <= FIRST_ROUNDS + 1:
            return
        for _ in range(MOST_DESCENTS):
            before = [min(each.values()) for each in self._latencies.of]
            wanted = [self._neighbours_of_neighbours(node) for node in range(self._n)]
            self._run([self._match(wanted), self._match(wanted)])
            now = [min(each.values()) for each in self._latencies.of]
            slack = 1 + self._tolerance
            n_nearer = sum(new * slack < old for new, old in zip(now, before, strict=True))
            if n_nearer <= SETTLED_PART * self._n:
                break

    def _neighbours_of_neighbours(self, node: int, width: int = 4) -> list[int]:
        """Return unknown nodes that are near to the nearest nodes of ``node``, nearest first."""
        of = self._latencies.of
        known = of[node]
        scores: dict[int, float] = {}
        for near in sorted(known, key=known.__getitem__)[:width]:
            theirs = of[near]
            for other in sorted(theirs, key=theirs.__getitem__)[: 2 * width]:
                if other != node and other not in known:
                    score = max(known[near], theirs[other])
                    scores[other] = min(score, scores.get(other, math.inf))
        return sorted(scores, key=scores.__getitem__)

    def _match(self, wanted: list[list[int]]) -> list[Pair]:
        """Return disjoint pairs of each node and one of its ``wanted``, and remove these there."""
        order = list(range(self._n))
        self._random.shuffle(order)
        free = [True] * self._n
        pairs = []
        for node in order:
            other = next((each for each in wanted[node] if free[node] and free[each]), None)
            if other is None:
                continue
            free[node] = free[other] = False
            pairs.append((min(node, other), max(node, other)))
            for one, met in ((node, other), (other, node)):
                wanted[one] = [each for each in wanted[one] if each != met]
        return pairs

    def compare(self) -> None:
        """Measure between groups that may be one, and inside groups with few known latencies."""
        for _ in range(MOST_CHECKS):
            groups = sparse_groups(self._latencies, self._tolerance)
            rounds = self._missing_inside(groups) + self._missing_between(groups)
            if not any(rounds):
                return
            self._run(rounds)

    def _missing_inside(self, groups: Groups) -> list[list[Pair]]:
        """Return rounds so that every node knows `KNOWN_INSIDE` latencies in its own group."""
        rounds: list[list[Pair]] = []
        asked: set[Pair] = set()
        for turn in range(ROUNDS_AT_ONCE):
            pairs: list[Pair] = []
            for members in groups.members:
                if len(members) > 2:
                    pairs += self._pairs_inside(members, turn, asked)
            asked.update(pairs)
            rounds.append(pairs)
        return rounds

    def _pairs_inside(self, members: Sequence[int], turn: int, asked: set[Pair]) -> list[Pair]:
        """Return disjoint pairs to measure in a group, for nodes that know too few others."""
        inside = set(members)
        wanted = len(members) - 1 if len(members) <= MOST_ALL_KNOWN else KNOWN_INSIDE
        known = self._latencies.of
        lacking = [
            node
            for node in members
            if sum(other in inside for other in known[node]) < wanted - turn
        ]
        self._random.shuffle(lacking)
        free, pairs = set(members), []
        for node in lacking:
            if node not in free:
                continue
            tries: Sequence[int] = [
                *lacking[-2:],
                *(self._random.choice(members) for _ in range(10)),
            ]
            if len(members) <= MOST_ALL_KNOWN:
                tries = members if turn % 2 else members[::-1]
            for other in tries:
                pair = (min(node, other), max(node, other))
                if other in free and other != node and other not in known[node]:
                    if pair in asked:
                        continue
                    free -= {node, other}
                    pairs.append(pair)
                    break
            while lacking and lacking[-1] not in free:
                lacking.pop()
        return pairs

    def _missing_between(self, groups: Groups) -> list[list[Pair]]:
        """Return rounds of pairs between groups that no measurement has separated yet."""
        units, width_s, doubts = self._split_doubtful(groups)
        unit_of = np.zeros(self._n, dtype=int)
        for index, members in enumerate(units):
            unit_of[members] = index
        edges = self._latencies.edges()
        near_s = np.full((len(units), len(units)), np.inf)
        np.minimum.at(near_s, (unit_of[edges.a], unit_of[edges.b]), edges.length_s)
        near_s = np.minimum(near_s, near_s.T)
        home = np.array([groups.label[members[0]] for members in units])
        most = [2 * ROUNDS_AT_ONCE * len(members) for members in units]
        open_pairs = _undecided(near_s, width_s, doubts, home, self._tolerance, most)
        return self._rounds_between(units, open_pairs)

    def _split_doubtful(self, groups: Groups) -> tuple[list[list[int]], np.ndarray, np.ndarray]:
        """Split doubtful groups into single nodes; return the units, their widths and doubts."""
        closest_s = min(groups.founded_s)
        units, width_s, doubts = [], [], []
        for members, founded_s in zip(groups.members, groups.founded_s, strict=True):
            sure = len(members) > SMALL_GROUP and founded_s <= LOOSE_FACTOR * closest_s
            for unit in [members] if sure else [[node] for node in members]:
                units.append(unit)
                nearest_s = min(min(self._latencies.of[node].values()) for node in unit)
                width_s.append(founded_s if sure else nearest_s)
                doubts.append(len(members) > 1 and not sure)
        return units, np.array(width_s), np.array(doubts)

    def _rounds_between(
        self, units: Sequence[Sequence[int]], wanted: Sequence[Pair]
    ) -> list[list[Pair]]:
        """Return rounds with one pair of unmeasured nodes for each of the ``wanted`` units."""
        known = self._latencies.of
        rounds: list[list[Pair]] = []
        left = list(wanted)
        for _ in range(ROUNDS_AT_ONCE):
            free = [list(members) for members in units]
            for members in free:
                self._random.shuffle(members)
            pairs, later = [], []
            for u, v in left:
                a = free[u][-1] if free[u] else -1
                b = free[v][-1] if free[v] else -1
                if a < 0 or b < 0 or b in known[a]:
                    later.append((u, v))
                    continue
                free[u].pop()
                free[v].pop()
                pairs.append((min(a, b), max(a, b)))
            rounds.append(pairs)
            left = later
        return rounds

    def settle(self) -> Groups:
        """Measure links that separate groups again; return the groups.

        These are short links, and long links with a much shorter detour: a busy host may answer
        some milliseconds late.
        """
        groups, n_same = sparse_groups(self._latencies, self._tolerance), 0
        for _ in range(MOST_REPEATS):
            edges, label = self._latencies.edges(), np.array(groups.label)
            separates = label[edges.a] != label[edges.b]
            columns = (each[separates].tolist() for each in (edges.length_s, edges.a, edges.b))
            between = [
                (a, b)
                for length_s, a, b in zip(*columns, strict=True)
                if length_s < SHORT_S or length_s > DIFFER_FACTOR * self._detour_s(a, b)
            ]
            if not between:
                break
            self._run(in_rounds(between, lambda p: p)[: ROUNDS_AT_ONCE * FIRST_ROUNDS])
            before, groups = groups, sparse_groups(self._latencies, self._tolerance)
            n_same = n_same + 1 if groups.members == before.members else 0
            if n_same == MOST_UNCHANGED:
                break
        return groups

    def _detour_s(self, a: int, b: int) -> float:
        """Return the latency from ``a`` to ``b`` via a node near both; infinite without any."""
        mine, theirs = self._latencies.of[a], self._latencies.of[b]
        return min(
            (
                length_s + theirs[near]
                for near, length_s in mine.items()
                if length_s < SHORT_S and theirs.get(near, math.inf) < SHORT_S
            ),
            default=math.inf,
        )


def _first_rounds(order: Sequence[int]) -> list[list[Pair]]:
    """Return `FIRST_ROUNDS` rounds without repeated pairs; for up to 16 nodes, all pairs."""
    n = len(order)
    seats = [*order, -1] if n % 2 else list(order)
    around = len(seats) - 1  # the circle method: the last seat stays
    rounds = []
    for turn in range(min(FIRST_ROUNDS, around)):
        pairs = [(turn, around)]
        pairs += [((turn + k) % around, (turn - k) % around) for k in range(1, len(seats) // 2)]
        met = [(seats[a], seats[b]) for a, b in pairs]
        rounds.append(sorted((min(p), max(p)) for p in met if -1 not in p))
    return rounds


def _undecided(
    near_s: np.ndarray,
    width_s: np.ndarray,
    doubts: np.ndarray,
    home: np.ndarray,
    tolerance: float,
    most: Sequence[int],
) -> list[Pair]:
    """Return pairs of units that no measurement separates, the likely nearest first.

    Each unit has at most ``most`` pairs, not many more than it can measure at once. Two units
    cannot be one cluster if their latencies to a third one differ by more than a cluster is wide.
    """
    n = len(width_s)
    home_s = np.where(doubts, width_s / (1 + tolerance), 0.0)
    known = np.isfinite(near_s)
    reach_s = np.where(known, near_s, np.nan)
    found: list[tuple[float, int, int]] = []
    for u in range(n):
        others = np.flatnonzero(~known[u, u + 1 :] & (home[u + 1 :] != home[u])) + u + 1
        marks = np.flatnonzero(known[u])
        if not len(others):
            continue
        if not len(marks):
            everybody = np.ones(len(others), dtype=bool)
            found += _nearest(np.full(len(others), np.inf), everybody, u, others, most[u])
            continue
        mine, theirs = reach_s[u, marks][None, :], reach_s[np.ix_(others, marks)]
        apart_s = np.maximum(mine, theirs) / DIFFER_FACTOR - np.minimum(mine, theirs)
        limit_s = (1 + tolerance) * np.minimum(width_s[u], width_s[others])
        # A doubtful node leaves its group if a node outside is nearer, so nearer ones count too.
        limit_s = np.maximum(limit_s, np.maximum(home_s[u], home_s[others]))
        undecided = ~(np.nan_to_num(apart_s, nan=-1.0) > limit_s[:, None]).any(axis=1)
        detour_s = np.nan_to_num(np.maximum(mine, theirs), nan=math.inf).min(axis=1)
        found += _nearest(detour_s, undecided, u, others, most[u])
    return [(u, v) for _, u, v in sorted(found)]


def _nearest(
    detour_s: np.ndarray, undecided: np.ndarray, u: int, others: np.ndarray, most: int
) -> list[tuple[float, int, int]]:
    places = np.flatnonzero(undecided)
    if len(places) > most:
        places = places[np.argpartition(detour_s[places], most - 1)[:most]]
    return list(
        zip(detour_s[places].tolist(), [u] * len(places), others[places].tolist(), strict=True)
    )
