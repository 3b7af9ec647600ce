"""Allreduce trees whose tops exchange partial results, for messages of medium size.

An allreduce up one tree and down again uses every path twice. With several trees whose tops
exchange their partial results, the longest links are crossed only once, but by more bytes. How many
tops there should be, which hosts are below which, and how fast contributions may leave without
delaying forwarded messages, no formula says where latency and bandwidth matter about equally. So
single trees, pairs of them, and trees to a top in each cluster, are simulated (`plan.tree_walk`),
and the best of all is changed at random (`plan.tree_search`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.tree_packing import Platform
from gridcoll.plan.split_shares import MOST_SPLIT
from gridcoll.plan.tree_search import (
    MOST_TOPS,
    SHARE_DIGITS,
    Parents,
    TimedTrees,
    improved,
    is_forest,
    timed,
)
from gridcoll.plan.tree_walk import TreeWalk
from gridcoll.plan.trees import SMALLEST_SEGMENT

MOST_MESSAGES = 24_000
"""Limit of simulated messages while single trees are compared."""

MOST_CHANGED_MESSAGES = 150_000
"""Limit of simulated messages while the best of them is changed at random: about 50 to 100 ms, or
one to three seconds without a C compiler."""

N_TRIAL_SEGMENTS = 12
"""Number of segments while trees are compared."""

LEAST_GAIN = 0.002
"""A tree is changed if that saves at least this fraction of the time."""

PATH_BYTES_FRACTION = 0.3
"""To compare paths to tops, each link counts with its time for this fraction of the message."""

N_BEST_SETS = 3
"""How many of the best sets of tops are extended by one more top."""

N_IMPROVED = 2
"""How many of the best start trees are improved step by step."""

N_PAIRED, PAIR_SHARES = 6, (0.2, 0.4)
"""The best tree is tried together with each of so many others, which get these shares: a second
tree uses interfaces and links that the first one leaves idle. Few changes at random lead to such a
tree. On 35 unlike grids, this saves 2 % of the predicted time of 64 KiB in the mean."""

N_SEGMENTS_PER_TREES = (8, 16, 32, 64)
"""Numbers of segments that are tried if each cluster is the top for a share of the message."""

LEAST_SHARE = 0.2
"""The search does not start from trees of a packing with a smaller share of the message."""


def meeting_trees(
    model: GridModel, platform: Platform, n_bytes: int, known: TimedTrees
) -> TimedTrees:
    """Return the fastest of all trees that were tried, including ``known``."""
    walk = TreeWalk(model, platform, n_bytes)
    search = _Search(walk, platform, n_bytes)
    starts = [search.best(known), timed(walk, known)]
    if len(platform.uplinks) <= MOST_SPLIT:
        starts += [timed(walk, trees) for trees in _trees_per_cluster(platform, n_bytes)]
    start = _paired(walk, min(starts), search.short_path_trees)
    return improved(walk, platform, n_bytes, start, MOST_CHANGED_MESSAGES)


class _Search:
    def __init__(self, walk: TreeWalk, platform: Platform, n_bytes: int) -> None:
        self._walk, self._platform, self._n_bytes = walk, platform, n_bytes
        self._kinds = platform.kind_of
        self._firsts = [self._kinds.index(kind) for kind in range(len(platform.counts))]
        self.short_path_trees = self._short_path_trees()

    @property
    def _is_over(self) -> bool:
        return self._walk.n_messages >= MOST_MESSAGES

    def best(self, known: TimedTrees) -> TimedTrees:
        """Return the best single tree of a few."""
        known_parts = zip(known.trees, known.shares, strict=True)
        starts = [_untimed(tree) for tree, share in known_parts if share >= LEAST_SHARE]
        starts = [timed(self._walk, start) for start in starts] + self.short_path_trees
        return min(self._improved(start) for start in sorted(starts)[:N_IMPROVED])

    def _faster(self, best: TimedTrees, other: TimedTrees) -> TimedTrees:
        other = timed(self._walk, other, best.total_s)
        return other if other.total_s < best.total_s else best

    def _improved(self, trees: TimedTrees) -> TimedTrees:
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

    def _short_path_trees(self) -> list[TimedTrees]:
        """Return trees of shortest paths to one top, to two and so on.

        In each round, one more top is added to the best sets of tops.
        """
        clusters, kinds = self._platform.clusters, range(len(self._firsts))
        hops_s = np.array(self._platform.hops_s)
        links_s = hops_s + PATH_BYTES_FRACTION * self._n_bytes / np.array(self._platform.links)
        between_s = links_s[np.ix_(clusters, clusters)].tolist()
        found: list[TimedTrees] = []
        best_sets: list[tuple[int, ...]] = [()]
        for _ in range(min(MOST_TOPS, len(kinds))):
            larger = {
                tuple(sorted({*tops, k})) for tops in best_sets for k in kinds if k not in tops
            }
            fastest_first = sorted(
                (timed(self._walk, _untimed(self._shortest_paths(between_s, tops))), tops)
                for tops in sorted(larger)
                if not self._is_over
            )
            found += [trees for trees, _ in fastest_first]
            best_sets = [tops for _, tops in fastest_first[:N_BEST_SETS]]
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


def _paired(walk: TreeWalk, start: TimedTrees, others: Sequence[TimedTrees]) -> TimedTrees:
    """Return ``start``, or its only tree together with one of ``others`` if that is faster."""
    best = start
    if len(start.trees) == 1:
        for other in sorted(each for each in others if each.trees != start.trees)[:N_PAIRED]:
            for share in PAIR_SHARES:
                pair = start._replace(trees=start.trees + other.trees, shares=(1 - share, share))
                best = min(best, timed(walk, pair, best.total_s))
    return best


def _trees_per_cluster(platform: Platform, n_bytes: int) -> Iterator[TimedTrees]:
    """Yield trees to a top in each cluster, for equal shares of the message.

    All hosts of another cluster send to its first one, which sends to the top. As hosts take turns,
    all are equally busy.
    """
    kinds = platform.kind_of
    members: dict[int, list[int]] = {}
    for host, kind in enumerate(kinds):
        members.setdefault(platform.clusters[kind], []).append(host)
    trees = []
    for own in members.values():
        parents = [-1] * len(kinds)
        for hosts in members.values():
            for host in hosts[1:]:
                parents[host] = hosts[0]
            if hosts is not own:
                parents[hosts[0]] = own[0]
        trees.append(tuple(parents))
    share = round(1 / len(trees), SHARE_DIGITS)
    for n in N_SEGMENTS_PER_TREES:
        if n >= len(trees) and n_bytes >= n * SMALLEST_SEGMENT // 2:
            yield TimedTrees(np.inf, tuple(trees), (share,) * len(trees), n, 0.0)


def _untimed(tree: Parents) -> TimedTrees:
    return TimedTrees(np.inf, (tree,), (1.0,), N_TRIAL_SEGMENTS, 0.0)
