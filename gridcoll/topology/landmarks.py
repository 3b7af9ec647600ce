"""Who is near whom, from a few latencies of every node instead of all: no messages, only which.

Every node measures a few others at first. Near a near one others are near, so that within a few
rounds everybody has met some of its own cluster (as in NN-descent: Dong, Moses and Li 2011). Groups
that result are landmarks for each other: two of them whose latencies to a third one differ too much
cannot be one cluster (as in network coordinates: Ng and Zhang 2002); only of those that are alike
something is measured between them. Then Lowekamp's rule tells clusters, as of a full matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from gridcoll.topology.clustering import SHORT_S, Groups, Latencies, sparse_groups
from gridcoll.topology.rounds import in_rounds

Pair = tuple[int, int]
Rounds = Sequence[Sequence[Pair]]
"""Pairs of one round share no node."""

Measure = Callable[[Rounds], Mapping[Pair, tuple[float, float]]]
"""Measures every pair, a round after another: the shortest and the typical latency in seconds."""

FIRST_ROUNDS = 15
"""So many others everybody meets first: of 16 nodes that are all."""

MOST_DESCENTS = 12
"""Steps towards near nodes, of two rounds each. A step goes on from the nearest of fifteen or more,
so that three or four are enough for thousands of nodes in space; the rest is for what is none."""

SETTLED = 0.005
"""Of all nodes: so few found a nearer one, and nobody is looked for any more."""

MOST_REPEATS = 6
"""Short links that keep groups apart are measured again so often: noise never shortens."""

ENOUGH_REPEATS = 2
"""So many in a row that change nothing end that: what is apart stays apart."""

DIFFER = 1.5
"""Latencies of two nodes to a third one that differ by less say nothing: those of one wire differ
by a fifth from one measurement to the next, and routes through the Internet are no straight lines.
"""

SMALL = 3
"""What so few nodes are may be an accident of who met whom: each of them looks for itself."""

LOOSE = 20.0
"""So many times as wide as the closest group, a group may hold several that did not meet yet."""

ENOUGH_INSIDE = 3
"""Latencies to its own group that every node of a larger one has."""

ALL_INSIDE = 12
"""In a group of so many nodes everybody knows everybody: several pairs may hide in it."""

ROUNDS_AT_ONCE = 4
"""Rounds between two looks at what they say, as that takes an exchange between all."""

MOST_CHECKS = 40
"""Looks at which groups were never compared."""


@dataclass(frozen=True)
class Grouping:
    """Groups of nodes, each ascending, by their lowest node; and what finding them took.

    ``n_rounds`` counts rounds of disjoint pairs with at least one link of `SHORT_S` or more,
    ``n_short_rounds`` those of short links only, ``n_exchanges`` how often all were told.
    """

    groups: list[list[int]]
    n_rounds: int
    n_short_rounds: int
    n_pairs: int
    n_exchanges: int


def group_nodes(
    n_nodes: int,
    measure: Measure,
    tolerance: float,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Grouping:
    """Groups of ``n_nodes`` as `find_clusters` finds them; a pure function of what is measured."""
    if n_nodes == 1:
        return Grouping([[0]], 0, 0, 0, 0)
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
        groups.members, search.n_rounds, search.n_short_rounds, search.n_pairs, search.n_exchanges
    )


class _Search:
    def __init__(self, n_nodes: int, measure: Measure, tolerance: float) -> None:
        self._n = n_nodes
        self._measure = measure
        self._tolerance = tolerance
        self._latencies = Latencies(n_nodes)
        self._random = Random(n_nodes)  # the same on all ranks
        self.n_rounds = self.n_short_rounds = self.n_pairs = self.n_exchanges = 0

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
        """Everybody meets `FIRST_ROUNDS` others, by chance; short links twice."""
        order = list(range(self._n))
        self._random.shuffle(order)
        rounds = _first_rounds(order)
        self._run(rounds)
        of = self._latencies.of
        self._run([[(a, b) for a, b in pairs if of[a][b] < SHORT_S] for pairs in rounds])

    def descend(self) -> None:
        """Everybody asks those near it who is near them, until hardly anyone finds a nearer one."""
        if self._n <= FIRST_ROUNDS + 1:
            return
        for _ in range(MOST_DESCENTS):
            before = [min(each.values()) for each in self._latencies.of]
            wishes = [self._near_a_near_one(node) for node in range(self._n)]
            self._run([self._match(wishes), self._match(wishes)])
            now = [min(each.values()) for each in self._latencies.of]
            slack = 1 + self._tolerance
            n_nearer = sum(new * slack < old for new, old in zip(now, before, strict=True))
            if n_nearer <= SETTLED * self._n:
                break

    def _near_a_near_one(self, node: int, width: int = 4) -> list[int]:
        """Whom ``node`` does not know and its nearest are near to, the nearest first."""
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

    def _match(self, wishes: list[list[int]]) -> list[Pair]:
        """Disjoint pairs of nodes and whom they wish to meet; what is granted is wished no more."""
        order = list(range(self._n))
        self._random.shuffle(order)
        free = [True] * self._n
        pairs = []
        for node in order:
            other = next((each for each in wishes[node] if free[node] and free[each]), None)
            if other is None:
                continue
            free[node] = free[other] = False
            pairs.append((min(node, other), max(node, other)))
            for one, met in ((node, other), (other, node)):
                wishes[one] = [each for each in wishes[one] if each != met]
        return pairs

    def compare(self) -> None:
        """Measure between groups that may be one, and inside groups that hardly know themselves."""
        for _ in range(MOST_CHECKS):
            groups = sparse_groups(self._latencies, self._tolerance)
            rounds = self._missing_inside(groups) + self._missing_between(groups)
            if not any(rounds):
                return
            self._run(rounds)

    def _missing_inside(self, groups: Groups) -> list[list[Pair]]:
        """Rounds in which everybody gets to know `ENOUGH_INSIDE` of its own group."""
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
        inside = set(members)
        wanted = len(members) - 1 if len(members) <= ALL_INSIDE else ENOUGH_INSIDE
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
            if len(members) <= ALL_INSIDE:
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
        units, width_s, doubts = self._units(groups)
        unit_of = np.zeros(self._n, dtype=int)
        for index, members in enumerate(units):
            unit_of[members] = index
        near_s = np.full((len(units), len(units)), np.inf)
        for length_s, a, b in self._latencies.edges():
            u, v = unit_of[a], unit_of[b]
            near_s[u, v] = near_s[v, u] = min(near_s[u, v], length_s)
        home = np.array([groups.label[members[0]] for members in units])
        most = [2 * ROUNDS_AT_ONCE * len(members) for members in units]
        open_pairs = _alike(near_s, width_s, doubts, home, self._tolerance, most)
        return self._rounds_between(units, open_pairs)

    def _units(self, groups: Groups) -> tuple[list[list[int]], np.ndarray, np.ndarray]:
        """Groups that are sure of themselves, and nodes of those that are not; and how wide."""
        closest_s = min(groups.founded_s)
        units, width_s, doubts = [], [], []
        for members, founded_s in zip(groups.members, groups.founded_s, strict=True):
            sure = len(members) > SMALL and founded_s <= LOOSE * closest_s
            for unit in [members] if sure else [[node] for node in members]:
                units.append(unit)
                nearest_s = min(min(self._latencies.of[node].values()) for node in unit)
                width_s.append(founded_s if sure else nearest_s)
                doubts.append(len(members) > 1 and not sure)
        return units, np.array(width_s), np.array(doubts)

    def _rounds_between(
        self, units: Sequence[Sequence[int]], wanted: Sequence[Pair]
    ) -> list[list[Pair]]:
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
        """Groups, after links that keep some apart were measured again: short ones, and long ones
        round which a much shorter way leads. A busy host answers late for some milliseconds.
        """
        groups, n_same = sparse_groups(self._latencies, self._tolerance), 0
        for _ in range(MOST_REPEATS):
            between = [
                (a, b)
                for length_s, a, b in self._latencies.edges()
                if groups.label[a] != groups.label[b]
                and (length_s < SHORT_S or length_s > DIFFER * self._way_round_s(a, b))
            ]
            if not between:
                break
            self._run(in_rounds(between, lambda p: p)[: ROUNDS_AT_ONCE * FIRST_ROUNDS])
            before, groups = groups, sparse_groups(self._latencies, self._tolerance)
            n_same = n_same + 1 if groups.members == before.members else 0
            if n_same == ENOUGH_REPEATS:
                break
        return groups

    def _way_round_s(self, a: int, b: int) -> float:
        """From ``a`` to ``b`` by a node that is near both; infinite where there is none."""
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
    """`FIRST_ROUNDS` rounds in which nobody meets anyone twice; all there are for 16 nodes."""
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


def _alike(
    near_s: np.ndarray,
    width_s: np.ndarray,
    doubts: np.ndarray,
    home: np.ndarray,
    tolerance: float,
    most: Sequence[int],
) -> list[Pair]:
    """Pairs of units that nothing measured tells apart, those that seem nearest first.

    Of each unit not many more than it can measure at once, ``most`` by unit.

    Two cannot be one cluster whose latencies to a third differ by more than a cluster is wide.
    """
    n = len(width_s)
    looks_s = np.where(doubts, width_s / (1 + tolerance), 0.0)
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
        apart_s = np.maximum(mine, theirs) / DIFFER - np.minimum(mine, theirs)
        limit_s = (1 + tolerance) * np.minimum(width_s[u], width_s[others])
        # Nobody is at home with a stranger who has a nearer neighbour: so who is nearest, counts.
        limit_s = np.maximum(limit_s, np.maximum(looks_s[u], looks_s[others]))
        open_ = ~(np.nan_to_num(apart_s, nan=-1.0) > limit_s[:, None]).any(axis=1)
        by_way = np.nan_to_num(np.maximum(mine, theirs), nan=math.inf).min(axis=1)
        found += _nearest(by_way, open_, u, others, most[u])
    return [(u, v) for _, u, v in sorted(found)]


def _nearest(
    by_way: np.ndarray, open_: np.ndarray, u: int, others: np.ndarray, most: int
) -> list[tuple[float, int, int]]:
    places = np.flatnonzero(open_)
    if len(places) > most:
        places = places[np.argpartition(by_way[places], most - 1)[:most]]
    return list(
        zip(by_way[places].tolist(), [u] * len(places), others[places].tolist(), strict=True)
    )
