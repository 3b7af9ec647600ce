"""Searches trees over hosts for messages of medium size, by small changes drawn at random.

Where latency and bandwidth matter about equally, no formula gives the best trees. A change is kept
if the simulated time (`plan.tree_walk`) does not get longer. All ranks draw the same changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.tree_packing import Platform
from gridcoll.plan.tree_walk import DOWNWARDS, UPWARDS, TreeWalk, in_ticks, use_in_turns
from gridcoll.plan.trees import SMALLEST_SEGMENT

Parents = tuple[int, ...]
"""The parent of each host, -1 for tops."""

MOST_TOPS = 4
"""In an allreduce, each top sends its partial result to all others. With more tops, bytes matter
more than latency."""

MOST_TREES = 3
"""A search adds no trees beyond so many: each uses connections of its own."""

MOST_MESSAGES = 100_000
"""Limit of simulated messages for a broadcast or a reduction: about 30 ms, or 0.4 s without a C
compiler. On 36 grids (4 named, 32 random), a broadcast of 64 KiB was predicted at 1.233 times the
limit before the search, at 1.216 with 24,000 messages, 1.200 with 100,000, 1.193 with 300,000."""

MOST_BUSY_FRACTION = 0.85
"""Trees are not searched if something is busy for more than this fraction of the time, since
latency matters little then. With 0.85 and half as many messages more, instead of 2/3, allreduces of
256 KiB were predicted at 1.334 times the limit instead of 1.357 (mean of 32 grids)."""

FEWEST_SEGMENTS, MOST_SEGMENTS = 4, 64
"""Limits of the number of segments in a search."""

N_SEARCHES = 3
"""Searches from the same start: one alone may be unlucky."""

MOST_TRIALS_PER_MESSAGE = 0.01
"""A search also ends after this many changes per message of its budget: many are impossible, or
their simulation soon ends. On 35 unlike grids, four times as many changes save 0.1 to 0.2 % of the
predicted time, but choosing takes up to twice as long."""

NEW_SHARES = (0.15, 0.25, 0.5)
"""Shares of the message that a new tree may get."""

SHARE_DIGITS = 6
"""Shares are rounded to so many digits before a search."""

SHARE_STEPS = (0.05, 0.1)
"""Shares of the message that move from one tree to another."""

SEGMENT_STEPS = (0.5, 0.75, 1.25, 1.5, 2.0)
"""Factors by which the number of segments changes."""


class TimedTrees(NamedTuple):
    """Trees, the share of each, and the number of segments.

    Hosts send their own contributions evenly over ``sending_s``, a root its message. ``total_s``
    comes first, so that the fastest is the least in order.
    """

    total_s: float
    trees: tuple[Parents, ...]
    shares: tuple[float, ...]
    n_segments: int
    sending_s: float


def timed(walk: TreeWalk, trees: TimedTrees, most_s: float = np.inf) -> TimedTrees:
    """Return ``trees`` with their simulated time; infinite if it is more than ``most_s``."""
    uses = use_in_turns(trees.shares, trees.n_segments)
    period_s = trees.sending_s / trees.n_segments
    return trees._replace(total_s=walk.total_s(trees.trees, uses, period_s, most_s))


def rounded(trees: TimedTrees) -> TimedTrees:
    """Return ``trees`` without the last bits of their numbers, in which machines may differ."""
    shares = tuple(max(round(share, SHARE_DIGITS), 10.0**-SHARE_DIGITS) for share in trees.shares)
    return trees._replace(shares=shares, sending_s=float(in_ticks(trees.sending_s)))


def improved(
    walk: TreeWalk, platform: Platform, n_bytes: int, start: TimedTrees, most_messages: int
) -> TimedTrees:
    """Change ``start`` at random, and keep what is not slower.

    Several searches begin at ``start``; the best of them goes on. More segments must save more than
    the overhead of their messages, which the simulation leaves out. Ends when ``walk`` has
    simulated ``most_messages`` more.
    """
    start = timed(walk, rounded(start))
    part = most_messages // (N_SEARCHES + 1)
    found = [
        _improved(walk, _Changes(walk, platform, n_bytes, k), start, part)
        for k in range(N_SEARCHES)
    ]
    best = min(found, key=lambda each: each.total_s + each.n_segments * walk.overhead_s)
    return _improved(walk, _Changes(walk, platform, n_bytes, N_SEARCHES), best, part)


def _improved(
    walk: TreeWalk, changes: _Changes, best: TimedTrees, most_messages: int
) -> TimedTrees:
    """Return what one search finds from ``best``."""
    end = walk.n_messages + most_messages
    for _ in range(int(most_messages * MOST_TRIALS_PER_MESSAGE)):
        if walk.n_messages >= end:
            break
        changed = changes.change(best)
        if changed is not None:
            more_s = (changed.n_segments - best.n_segments) * walk.overhead_s
            other = timed(walk, changed, best.total_s - more_s)
            best = other if other.total_s <= best.total_s - more_s else best
    return best


def rooted_trees(
    model: GridModel, platform: Platform, n_bytes: int, starts: Sequence[TimedTrees], upwards: bool
) -> TimedTrees:
    """Return trees that are not slower than any of ``starts``.

    They are for a broadcast, or for a reduction upwards. If the first of ``starts`` is the best one
    and by its predicted time not worth a search, it keeps that time: other algorithms are predicted
    in the same way.
    """
    walk = TreeWalk(model, platform, n_bytes, UPWARDS if upwards else DOWNWARDS)
    found = [timed(walk, rounded(start)) for start in starts]
    best = min(found)
    if best is found[0] and not is_worth_a_search(starts[0]):
        return starts[0]
    return improved(walk, platform, n_bytes, best, MOST_MESSAGES)


def is_worth_a_search(trees: TimedTrees) -> bool:
    """Whether the busiest host or link is idle for a good part of the time."""
    return trees.sending_s < MOST_BUSY_FRACTION * trees.total_s


class _Changes:
    """Draws changes. Every method returns None if what was drawn is impossible."""

    def __init__(self, walk: TreeWalk, platform: Platform, n_bytes: int, seed: int) -> None:
        kinds = platform.kind_of
        self._firsts = [kinds.index(kind) for kind in kinds]
        self._root = kinds.index(platform.root) if platform.root >= 0 else -1
        self._is_rooted, self._n_bytes = platform.root >= 0, n_bytes
        self._contributes = not walk.is_bcast
        # Only this method: what the others draw depends on the version of Python.
        self._draw = Random(seed).random

    def _below(self, n: int) -> int:
        return int(self._draw() * n)

    def change(self, trees: TimedTrees) -> TimedTrees | None:
        """Draw a change: four of five times, of a tree."""
        kind = self._draw()
        if kind < 0.06:
            return self._segments(trees)
        if kind < 0.1:
            return self._sending(trees)
        if kind < 0.16:
            return self._one_more(trees)
        if kind < 0.18:
            return self._one_less(trees)
        if kind < 0.2:
            return self._shares(trees)
        which = self._below(len(trees.trees))
        tree = self._tree(trees.trees[which])
        if tree is None or tree == trees.trees[which]:
            return None
        return trees._replace(trees=(*trees.trees[:which], tree, *trees.trees[which + 1 :]))

    def _segments(self, trees: TimedTrees) -> TimedTrees | None:
        n = int(trees.n_segments * SEGMENT_STEPS[self._below(len(SEGMENT_STEPS))])
        n = max(FEWEST_SEGMENTS, min(n, MOST_SEGMENTS))
        return trees._replace(n_segments=n) if self._n_bytes // n >= SMALLEST_SEGMENT // 2 else None

    def _sending(self, trees: TimedTrees) -> TimedTrees | None:
        """Change how fast contributions leave: a little, or to any part of the total time."""
        if not self._contributes:
            return None
        total_s = trees.total_s * (0.05 + 0.55 * self._draw())
        choices = (0.8 * trees.sending_s, 1.2 * trees.sending_s, 0.0, total_s)
        return trees._replace(sending_s=choices[self._below(len(choices))])

    def _one_more(self, trees: TimedTrees) -> TimedTrees | None:
        tree = self._tree(trees.trees[self._below(len(trees.trees))])
        if tree is None or len(trees.trees) >= MOST_TREES:
            return None
        new = NEW_SHARES[self._below(len(NEW_SHARES))]
        shares = (*(share * (1 - new) for share in trees.shares), new)
        return trees._replace(trees=(*trees.trees, tree), shares=shares)

    def _one_less(self, trees: TimedTrees) -> TimedTrees | None:
        if len(trees.trees) == 1:
            return None
        which = self._below(len(trees.trees))
        shares = [*trees.shares[:which], *trees.shares[which + 1 :]]
        shares = [share / sum(shares) for share in shares]
        left = (*trees.trees[:which], *trees.trees[which + 1 :])
        return trees._replace(trees=left, shares=tuple(shares))

    def _shares(self, trees: TimedTrees) -> TimedTrees | None:
        less, more = self._below(len(trees.trees)), self._below(len(trees.trees))
        if less == more:
            return None
        shares = list(trees.shares)
        moved = min(0.9 * shares[less], SHARE_STEPS[self._below(len(SHARE_STEPS))])
        shares[less] -= moved
        shares[more] += moved
        return trees._replace(shares=tuple(shares))

    def _tree(self, parents: Parents) -> Parents | None:
        """Return another tree: one or two hosts are elsewhere."""
        tree = list(parents)
        for _ in range(1 + (self._draw() < 0.25)):
            self._move(tree)
        n_tops = tree.count(-1)
        if not 1 <= n_tops <= (1 if self._is_rooted else MOST_TOPS) or not is_forest(tree):
            return None
        return tuple(tree)

    def _move(self, tree: list[int]) -> None:
        """Move a host, or also all like it below the same parent, or let two change places."""
        n_hosts = len(tree)
        host = self._below(n_hosts)
        above = self._below(n_hosts) if self._is_rooted else self._below(n_hosts + 1) - 1
        how = self._draw()
        if host in (self._root, above):
            return
        if how < 0.3:
            kind, parent = self._firsts[host], tree[host]
            alike = [h for h in range(n_hosts) if tree[h] == parent and self._firsts[h] == kind]
            if above not in alike:
                for each in alike:
                    tree[each] = above
        elif how < 0.8 or above in (-1, self._root):
            tree[host] = above
        else:
            places = {host: above, above: host}
            tree[:] = [places.get(parent, parent) for parent in tree]
            tree[host], tree[above] = tree[above], tree[host]


def is_forest(parents: Sequence[int]) -> bool:
    """Whether every path upwards ends at a top."""
    for host in range(len(parents)):
        at, n_steps = host, 0
        while at >= 0:
            at, n_steps = parents[at], n_steps + 1
            if n_steps > len(parents):
                return False
    return True
