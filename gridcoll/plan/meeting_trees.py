"""Allreduce trees whose tops exchange partial results, for messages of medium size.

An allreduce up one tree and down again uses every path twice. With several trees whose tops
exchange their partial results, the longest links are crossed only once, but by more bytes. How many
tops there should be, which hosts are below which, and how fast contributions may leave without
delaying forwarded messages, no formula says where latency and bandwidth matter about equally. So a
local search tries trees, whose times it takes from `plan.tree_walk`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gridcoll.constants import TIE_FACTOR
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.tree_packing import Platform
from gridcoll.plan.tree_walk import TreeWalk, use_in_turns
from gridcoll.plan.trees import SMALLEST_SEGMENT

Parents = tuple[int, ...]
"""The parent of each host, -1 for tops."""

MOST_TOPS = 4
"""Each top sends its partial result to all others. With more tops, bytes matter more than
latency."""

MOST_MESSAGES = 24_000
"""Limit of simulated messages, for all trees that are tried: about 0.1 s. On 30 random grids,
64 KiB took 1.282 times the lower bound in the median; with 40,000, 1.276, with 12,000, 1.294."""

N_TRIAL_SEGMENTS = 12
"""Number of segments while trees are compared."""

N_SEGMENTS = (8, 16, 24, 32, 48)
"""Numbers of segments that are tried with the best trees."""

LEAST_GAIN = 0.002
"""A tree is changed if that saves at least this fraction of the time."""

PATH_BYTES_FRACTION = 0.3
"""To compare paths to tops, each link counts with its time for this fraction of the message."""

N_BEST_SETS = 3
"""How many of the best sets of tops are extended by one more top."""

N_IMPROVED = 2
"""How many of the best start trees are improved step by step."""

SENDING_FRACTIONS = (1 / 8, 1 / 4, 2 / 5)
"""Contributions are sent over one of these fractions of the total time."""

LEAST_SHARE = 0.2
"""The search does not start from trees of a packing with a smaller share of the message."""

SECOND_SHARES = (0.25, 0.5, 0.15)
"""Shares of the message that are tried for a second tree."""


class MeetingTrees(NamedTuple):
    """Trees, the share of each, and the number of segments.

    Hosts send their own contributions evenly over ``sending_s``. ``total_s`` comes first, so that
    the fastest is the least in order.
    """

    total_s: float
    trees: tuple[Parents, ...]
    shares: tuple[float, ...]
    n_segments: int
    sending_s: float


def meeting_trees(
    model: GridModel, platform: Platform, n_bytes: int, known: MeetingTrees
) -> MeetingTrees:
    """Return the fastest of all trees that were tried, including ``known``."""
    return _Search(model, platform, n_bytes).best(known)


class _Search:
    def __init__(self, model: GridModel, platform: Platform, n_bytes: int) -> None:
        self._platform, self._n_bytes = platform, n_bytes
        self._walk = TreeWalk(model, platform, n_bytes)
        self._kinds = platform.kind_of
        self._firsts = [self._kinds.index(kind) for kind in range(len(platform.counts))]

    @property
    def _is_over(self) -> bool:
        return self._walk.n_messages >= MOST_MESSAGES

    def best(self, known: MeetingTrees) -> MeetingTrees:
        """Find the best single tree; then its sending time, a second tree, and segments."""
        known_parts = zip(known.trees, known.shares, strict=True)
        starts = [_untimed(tree) for tree, share in known_parts if share >= LEAST_SHARE]
        starts = [self._timed(start) for start in starts] + self._short_path_trees()
        best = min(self._improved(start) for start in sorted(starts)[:N_IMPROVED])
        (tree,), total_s = best.trees, best.total_s
        for fraction in SENDING_FRACTIONS:
            best = self._faster(best, best._replace(sending_s=fraction * total_s))
        for other in self._changed(tree):
            if self._is_over:
                break
            both = best._replace(trees=(tree, other), shares=_shares(SECOND_SHARES[0]))
            best = self._faster(best, both)
        if len(best.trees) > 1:
            for share in SECOND_SHARES[1:]:
                best = self._faster(best, best._replace(shares=_shares(share)))
        segmented = [
            self._timed(best._replace(n_segments=n), best.total_s * TIE_FACTOR)
            for n in N_SEGMENTS
            if self._n_bytes // n >= SMALLEST_SEGMENT // 2
        ]
        least_s = min([best.total_s, *(each.total_s for each in segmented)])
        best = next(t for t in [*segmented, best] if t.total_s <= least_s * TIE_FACTOR)
        return self._faster(best, known)

    def _timed(self, trees: MeetingTrees, most_s: float = np.inf) -> MeetingTrees:
        """Return ``trees`` with their simulated time; infinite if it is more than ``most_s``."""
        uses = use_in_turns(trees.shares, trees.n_segments)
        period_s = trees.sending_s / trees.n_segments
        return trees._replace(total_s=self._walk.total_s(trees.trees, uses, period_s, most_s))

    def _faster(self, best: MeetingTrees, other: MeetingTrees) -> MeetingTrees:
        timed = self._timed(other, best.total_s)
        return timed if timed.total_s < best.total_s else best

    def _improved(self, trees: MeetingTrees) -> MeetingTrees:
        """Change the only tree as long as that helps, each time by the best change."""
        while not self._is_over:
            most_s = trees.total_s * (1 - LEAST_GAIN)
            best = trees._replace(total_s=most_s)
            for other in self._changed(trees.trees[0]):
                if self._busy_s(other) < best.total_s:
                    best = self._faster(best, _untimed(other))
            if best.total_s == most_s:
                break
            trees = best
        return trees

    def _busy_s(self, tree: Parents) -> float:
        """Return a lower bound of the time for which the busiest interfaces or link are busy."""
        platform = self._platform
        cluster = [platform.clusters[kind] for kind in self._kinds]
        tops = [host for host, above in enumerate(tree) if above < 0]
        n_sent = [0] * len(platform.counts)
        n_crossed: Counter[tuple[int, int]] = Counter()
        for host, above in enumerate(tree):
            for other in [above] if above >= 0 else [top for top in tops if top > host]:
                for a, b in ((host, other), (other, host)):
                    n_sent[self._kinds[a]] += 1
                    n_crossed[cluster[a], cluster[b]] += 1
        hosts_s = (
            n / (rate * count)
            for n, rate, count in zip(n_sent, platform.rates, platform.counts, strict=True)
        )
        links_s = (n / platform.links[a][b] for (a, b), n in n_crossed.items() if a != b)
        return self._n_bytes * max(*hosts_s, *links_s, 0.0)

    def _changed(self, tree: Parents) -> Iterator[Parents]:
        for kind in range(len(self._firsts)):
            yield from self._moved(tree, kind)

    def _moved(self, tree: Parents, kind: int) -> Iterator[Parents]:
        """Yield trees with some hosts of ``kind`` moved: the first, all others, or the last."""
        first, count = self._firsts[kind], self._platform.counts[kind]
        groups = [[first], list(range(first + 1, first + count)), [first + count - 1]]
        for group in groups[: min(count, 3)]:
            for above in (-1, *self._firsts):
                if above in group or all(tree[host] == above for host in group):
                    continue
                other = list(tree)
                for host in group:
                    other[host] = above
                if other.count(-1) <= MOST_TOPS and is_forest(other):
                    yield tuple(other)

    def _short_path_trees(self) -> list[MeetingTrees]:
        """Return trees of shortest paths to one top, to two and so on.

        In each round, one more top is added to the best sets of tops.
        """
        clusters, kinds = self._platform.clusters, range(len(self._firsts))
        hops_s = np.array(self._platform.hops_s)
        links_s = hops_s + PATH_BYTES_FRACTION * self._n_bytes / np.array(self._platform.links)
        between_s = links_s[np.ix_(clusters, clusters)].tolist()
        found: list[MeetingTrees] = []
        best_sets: list[tuple[int, ...]] = [()]
        for _ in range(min(MOST_TOPS, len(kinds))):
            larger = {
                tuple(sorted({*tops, k})) for tops in best_sets for k in kinds if k not in tops
            }
            timed = sorted(
                (self._timed(_untimed(self._shortest_paths(between_s, tops))), tops)
                for tops in sorted(larger)
                if not self._is_over
            )
            found += [trees for trees, _ in timed]
            best_sets = [tops for _, tops in timed[:N_BEST_SETS]]
        return found

    def _shortest_paths(self, between_s: list[list[float]], tops: Sequence[int]) -> Parents:
        """Return the tree in which all kinds of hosts are on shortest paths from ``tops``."""
        n_kinds = len(self._firsts)
        distance_s, above = [np.inf] * n_kinds, [-1] * n_kinds
        for top in tops:
            distance_s[top] = 0.0
        left = set(range(n_kinds))
        while left:
            nearest = min(left, key=lambda kind: (distance_s[kind], kind))
            left.remove(nearest)
            for kind in left:
                path_s = distance_s[nearest] + between_s[nearest][kind]
                if path_s < distance_s[kind]:
                    distance_s[kind], above[kind] = path_s, nearest
        parents: list[int] = []
        for kind, count in enumerate(self._platform.counts):
            parents.append(self._firsts[above[kind]] if above[kind] >= 0 else -1)
            parents += [self._firsts[kind]] * (count - 1)
        return tuple(parents)


def _untimed(tree: Parents) -> MeetingTrees:
    return MeetingTrees(np.inf, (tree,), (1.0,), N_TRIAL_SEGMENTS, 0.0)


def _shares(second: float) -> tuple[float, float]:
    return 1 - second, second


def is_forest(parents: Sequence[int]) -> bool:
    """Whether every path upwards ends at a top."""
    for host in range(len(parents)):
        at, n_steps = host, 0
        while at >= 0:
            at, n_steps = parents[at], n_steps + 1
            if n_steps > len(parents):
                return False
    return True
