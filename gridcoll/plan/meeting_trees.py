"""Trees whose tops meet, for messages of middle size: found by trying them.

An allreduce up one tree and down again takes every way twice. Tops of several trees exchange their
partial results instead: all that is far apart is crossed once, for more bytes. How many tops, which
hosts below which, and how fast contributions may leave without keeping what is passed on waiting:
where latency and bandwidth weigh alike, no formula says. So a local search tries it, by
`plan.tree_walk`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gridcoll.constants import ALL_BUT_AS_GOOD
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.tree_packing import Platform
from gridcoll.plan.tree_walk import TreeWalk, use_in_turns
from gridcoll.plan.trees import SMALLEST_SEGMENT

Parents = tuple[int, ...]
"""By host, -1 at tops."""

MOST_TOPS = 4
"""Each sends its partial result to all others: with more, bytes count more than latency."""

MOST_MESSAGES = 24_000
"""Of all trees that are tried: some 0.1 s. On 30 random grids, 64 KiB took 1.282 of the limit in
the median; with 40,000, 1.276, with 12,000, 1.294."""

N_TRIED = 12
"""Segments while trees are tried."""

N_SEGMENTS = (8, 16, 24, 32, 48)

LEAST_SAVED = 0.002
"""A tree is changed where that saves this part of the time."""

WAY_PART = 0.3
"""Which part of the message counts where ways to tops are compared."""

N_KEPT = 3
"""Sets of tops that get one more."""

N_CLIMBED = 2
"""Trees that are changed."""

SENT_PARTS = (1 / 8, 1 / 4, 2 / 5)
"""In which part of the time contributions may leave."""

LEAST_SHARE = 0.2
"""Trees of a packing with less of the message are no start."""

SECOND_SHARES = (0.25, 0.5, 0.15)
"""Of a second tree."""


class Met(NamedTuple):
    """Trees, the share of each, and how many segments; contributions leave over ``sent_s``."""

    total_s: float
    trees: tuple[Parents, ...]
    shares: tuple[float, ...]
    n_segments: int
    sent_s: float


def meeting_trees(model: GridModel, platform: Platform, n_bytes: int, known: Met) -> Met:
    """What takes least of what was tried, ``known`` among it."""
    return _Search(model, platform, n_bytes).best(known)


class _Search:
    def __init__(self, model: GridModel, platform: Platform, n_bytes: int) -> None:
        self._platform, self._n_bytes = platform, n_bytes
        self._walk = TreeWalk(model, platform, n_bytes)
        self._kinds = platform.kind_of
        self._firsts = [self._kinds.index(kind) for kind in range(len(platform.counts))]

    @property
    def _spent(self) -> bool:
        return self._walk.n_messages >= MOST_MESSAGES

    def best(self, known: Met) -> Met:
        """The best trees, changed, then paced, shared with a second one, and cut."""
        parts = zip(known.trees, known.shares, strict=True)
        starts = [_alone(tree) for tree, share in parts if share >= LEAST_SHARE]
        starts = [self._tried(start) for start in starts] + self._short_ways()
        best = min(self._climbed(start) for start in sorted(starts)[:N_CLIMBED])
        (tree,), total_s = best.trees, best.total_s
        for part in SENT_PARTS:
            best = self._better(best, best._replace(sent_s=part * total_s))
        for other in self._changed(tree):
            if self._spent:
                break
            both = best._replace(trees=(tree, other), shares=_shares(SECOND_SHARES[0]))
            best = self._better(best, both)
        if len(best.trees) > 1:
            for share in SECOND_SHARES[1:]:
                best = self._better(best, best._replace(shares=_shares(share)))
        cut = [
            self._tried(best._replace(n_segments=n), best.total_s * ALL_BUT_AS_GOOD)
            for n in N_SEGMENTS
            if self._n_bytes // n >= SMALLEST_SEGMENT // 2
        ]
        least_s = min([best.total_s, *(met.total_s for met in cut)])
        best = next(m for m in [*cut, best] if m.total_s <= least_s * ALL_BUT_AS_GOOD)
        return self._better(best, known)

    def _tried(self, met: Met, most_s: float = np.inf) -> Met:
        """``met`` with the time that it takes; infinite beyond ``most_s``."""
        uses = use_in_turns(met.shares, met.n_segments)
        period_s = met.sent_s / met.n_segments
        return met._replace(total_s=self._walk.total_s(met.trees, uses, period_s, most_s))

    def _better(self, best: Met, other: Met) -> Met:
        tried = self._tried(other, best.total_s)
        return tried if tried.total_s < best.total_s else best

    def _climbed(self, met: Met) -> Met:
        """Change the tree as long as that helps, each time in the best way."""
        while not self._spent:
            most_s = met.total_s * (1 - LEAST_SAVED)
            best = met._replace(total_s=most_s)
            for other in self._changed(met.trees[0]):
                if self._busy_s(other) < best.total_s:
                    best = self._better(best, _alone(other))
            if best.total_s == most_s:
                break
            met = best
        return met

    def _busy_s(self, tree: Parents) -> float:
        """How long the busiest interfaces or link are busy at the least."""
        platform = self._platform
        cluster = [platform.clusters[kind] for kind in self._kinds]
        tops = [host for host, above in enumerate(tree) if above < 0]
        passed = [0] * len(platform.counts)
        crossed: Counter[tuple[int, int]] = Counter()
        for host, above in enumerate(tree):
            for other in [above] if above >= 0 else [top for top in tops if top > host]:
                for a, b in ((host, other), (other, host)):
                    passed[self._kinds[a]] += 1
                    crossed[cluster[a], cluster[b]] += 1
        hosts_s = (
            n / (rate * count)
            for n, rate, count in zip(passed, platform.rates, platform.counts, strict=True)
        )
        links_s = (n / platform.links[a][b] for (a, b), n in crossed.items() if a != b)
        return self._n_bytes * max(*hosts_s, *links_s, 0.0)

    def _changed(self, tree: Parents) -> Iterator[Parents]:
        for kind in range(len(self._firsts)):
            yield from self._moved(tree, kind)

    def _moved(self, tree: Parents, kind: int) -> Iterator[Parents]:
        """Trees with some hosts of ``kind`` elsewhere: its first, all others, the last of them."""
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

    def _short_ways(self) -> list[Met]:
        """Short ways to one top, to two, and so on, the best of them with one more each time."""
        clusters, kinds = self._platform.clusters, range(len(self._firsts))
        hops_s = np.array(self._platform.hops_s)
        ways_s = hops_s + WAY_PART * self._n_bytes / np.array(self._platform.links)
        between_s = ways_s[np.ix_(clusters, clusters)].tolist()
        found: list[Met] = []
        kept: list[tuple[int, ...]] = [()]
        for _ in range(min(MOST_TOPS, len(kinds))):
            more = {tuple(sorted({*tops, k})) for tops in kept for k in kinds if k not in tops}
            tried = sorted(
                (self._tried(_alone(self._attached(between_s, tops))), tops)
                for tops in sorted(more)
                if not self._spent
            )
            found += [met for met, _ in tried]
            kept = [tops for _, tops in tried[:N_KEPT]]
        return found

    def _attached(self, ways_s: list[list[float]], tops: Sequence[int]) -> Parents:
        """All kinds on the shortest ways from ``tops``."""
        n_kinds = len(self._firsts)
        away_s, above = [np.inf] * n_kinds, [-1] * n_kinds
        for top in tops:
            away_s[top] = 0.0
        left = set(range(n_kinds))
        while left:
            nearest = min(left, key=lambda kind: (away_s[kind], kind))
            left.remove(nearest)
            for kind in left:
                way_s = away_s[nearest] + ways_s[nearest][kind]
                if way_s < away_s[kind]:
                    away_s[kind], above[kind] = way_s, nearest
        parents: list[int] = []
        for kind, count in enumerate(self._platform.counts):
            parents.append(self._firsts[above[kind]] if above[kind] >= 0 else -1)
            parents += [self._firsts[kind]] * (count - 1)
        return tuple(parents)


def _alone(tree: Parents) -> Met:
    return Met(np.inf, (tree,), (1.0,), N_TRIED, 0.0)


def _shares(second: float) -> tuple[float, float]:
    return 1 - second, second


def is_forest(parents: Sequence[int]) -> bool:
    """Whether all ways up end at a top."""
    for host in range(len(parents)):
        at, n_steps = host, 0
        while at >= 0:
            at, n_steps = parents[at], n_steps + 1
            if n_steps > len(parents):
                return False
    return True
