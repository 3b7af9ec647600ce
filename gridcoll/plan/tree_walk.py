"""Simulates trees over hosts: the messages of all segments, in order of time.

What `plan.cost` does with the ops of a plan, done with hosts, before there is a plan: a hundred
times as fast, so that a search can ask for hundreds of trees. Ranks of one host are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from math import inf
from typing import NamedTuple

import numpy as np

from gridcoll.constants import PACE
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.tree_packing import Platform
from gridcoll.plan.cost import link_times_s

UP, MEET, DOWN = range(3)
"""Of a message: to the parent, between tops, to a child."""

Children = tuple[tuple[int, ...], ...]

DUE, FREE, ENTERS, COMES, THERE = range(5)
"""Of an event: a send may begin, an interface is free, a message enters a cluster, comes to an
interface, and is taken in."""


_Message = tuple[int, int, int]
"""Segment; the host at the other end; stage."""

_Event = tuple[float, int, int, int, _Message]
"""When, a number, what, at which host, of which message."""


class _Tree(NamedTuple):
    """Over hosts; -1 above tops, which meet."""

    parents: list[int]
    children: list[tuple[int, ...]]


class _Times(NamedTuple):
    """Seconds that a segment keeps interfaces, pairs of hosts, links and uplinks; by cluster."""

    gap_s: list[list[float]]
    one_way_s: list[list[float]]
    freely_s: list[list[float]]
    shared_s: list[list[float]]
    port_s: list[float]
    up_s: list[float]


def children_of(platform: Platform, parents: Sequence[int]) -> Children:
    """By host, those below it, the one with the longest path to its last descendant first."""
    below: list[list[int]] = [[] for _ in parents]
    for child, parent in enumerate(parents):
        if parent >= 0:
            below[parent].append(child)
    order = [host for host, above in enumerate(parents) if above < 0]
    for host in order:
        order += below[host]
    cluster = [platform.clusters[kind] for kind in platform.kind_of]
    way_s = [0.0] * len(order)
    for host in reversed(order):
        hops_s = platform.hops_s[cluster[host]]
        way_s[host] = max((hops_s[cluster[c]] + way_s[c] for c in below[host]), default=0.0)
    hops = platform.hops_s
    return tuple(
        tuple(sorted(each, key=lambda c, a=cluster[host]: (-hops[a][cluster[c]] - way_s[c], c)))  # type: ignore[misc]
        for host, each in enumerate(below)
    )


@lru_cache(maxsize=256)
def use_in_turns(shares: tuple[float, ...], n: int) -> tuple[tuple[int, int], ...]:
    """Which tree each of ``n`` segments takes, and how many places its hosts have moved on.

    At any time the numbers of segments are as close to the shares as possible: a tree's next
    segment is due in the middle of the interval that it stands for.
    """
    due = [(0.5 / share, tree, 0) for tree, share in enumerate(shares) if share > 0]
    heapify(due)
    found = []
    for _ in range(n):
        _, tree, turn = due[0]
        heapreplace(due, (round((turn + 1.5) / shares[tree], 6), tree, turn + 1))
        found.append((tree, turn))
    return tuple(found)


class TreeWalk:
    """An allreduce of ``n_bytes`` up trees over the hosts of ``platform`` and down again."""

    def __init__(self, model: GridModel, platform: Platform, n_bytes: int) -> None:
        self._model, self._platform, self._n_bytes = model, platform, n_bytes
        self._kinds = platform.kind_of
        self._cluster = [platform.clusters[kind] for kind in self._kinds]
        self._firsts = [self._kinds.index(kind) for kind in self._kinds]
        self._counts = [platform.counts[kind] for kind in self._kinds]
        self._times: dict[int, _Times] = {}
        self.n_messages = 0
        """So far."""

    def _times_of(self, segment_bytes: int) -> _Times:
        if segment_bytes not in self._times:
            sizes = np.array([0.0, float(segment_bytes)])
            of_links = [each[:, :, 1].tolist() for each in link_times_s(self._model, sizes)]
            gap_s, one_way_s, freely_s, shared_s = of_links
            port_s = [row[c] for c, row in enumerate(gap_s)]
            up_s = (segment_bytes / self._model.uplinks).tolist()
            self._times[segment_bytes] = _Times(gap_s, one_way_s, freely_s, shared_s, port_s, up_s)
        return self._times[segment_bytes]

    def _turned(self, parents: Sequence[int], children: Children, turn: int) -> _Tree:
        """The tree whose hosts have moved ``turn`` places on."""
        host = [
            first + (place - first + turn) % count
            for place, (first, count) in enumerate(zip(self._firsts, self._counts, strict=True))
        ]
        tree = _Tree([-1] * len(host), [()] * len(host))
        for place, at in enumerate(host):
            above = parents[place]
            tree.parents[at] = host[above] if above >= 0 else -1
            tree.children[at] = tuple(host[child] for child in children[place])
        return tree

    def total_s(
        self,
        trees: Sequence[Sequence[int]],
        uses: Sequence[tuple[int, int]],
        period_s: float,
        most_s: float = inf,
    ) -> float:
        """When all hosts have all segments, which take ``trees`` and turns as in ``uses``.

        A tree is the parent of each host, -1 for tops. A host sends its own contributions no
        faster than one each ``period_s``. Infinite if that takes more than ``most_s``.
        """
        times = self._times_of(-(-self._n_bytes // len(uses)))
        gap_s, one_way_s, freely_s, shared_s, port_s, up_s = times
        cluster, n_hosts = self._cluster, len(self._cluster)
        children = [children_of(self._platform, parents) for parents in trees]
        hung = [self._turned(trees[k], children[k], turn) for k, turn in uses]
        tops = [[h for h, above in enumerate(tree.parents) if above < 0] for tree in hung]
        below = [list(map(len, tree.children)) for tree in hung]  # how many are still to come
        meets = [dict.fromkeys(ends, len(ends)) for ends in tops]
        out_free, in_free, wakes = [0.0] * n_hosts, [0.0] * n_hosts, [0.0] * n_hosts
        pair_free: dict[tuple[int, int], float] = {}
        pipe_free: dict[tuple[int, int], float] = {}
        out_of_free, into_free = [0.0] * len(up_s), [0.0] * len(up_s)
        waiting: list[list[tuple[float, int, _Message]]] = [[] for _ in cluster]
        nothing = (0, 0, 0)
        events: list[_Event] = [(0.0, h, FREE, h, nothing) for h in range(n_hosts)]
        count, last_s = n_hosts, 0.0

        def wait(host: int, ready_s: float, message: _Message) -> None:
            nonlocal count
            heappush(waiting[host], (ready_s, count, message))
            count += 1

        def happens(when_s: float, what: int, host: int, message: _Message) -> None:
            nonlocal count
            heappush(events, (when_s, count, what, host, message))
            count += 1

        def combined(segment: int, host: int, now_s: float) -> None:
            """All from below is there."""
            parent, due_s = hung[segment].parents[host], segment * period_s * PACE
            if parent < 0:
                own = tops[segment].index(host)
                for other in tops[segment][own + 1 :] + tops[segment][:own]:
                    wait(host, now_s, (segment, other, MEET))
                met(segment, host, now_s)
            elif due_s > now_s:
                happens(due_s, DUE, host, (segment, parent, UP))
            else:
                wait(host, now_s, (segment, parent, UP))

        def met(segment: int, host: int, now_s: float) -> None:
            meets[segment][host] -= 1
            if not meets[segment][host]:
                complete(segment, host, now_s)

        def complete(segment: int, host: int, now_s: float) -> None:
            nonlocal last_s
            last_s = max(last_s, now_s)
            for child in hung[segment].children[host]:
                wait(host, now_s, (segment, child, DOWN))

        for segment, to_come in enumerate(below):
            for host in range(n_hosts):
                if not to_come[host]:
                    combined(segment, host, 0.0)
        while events:
            now_s, _, what, host, message = heappop(events)
            if now_s > most_s:
                last_s = inf
                break
            segment, peer, stage = message
            if what == DUE:
                wait(host, now_s, message)
            elif what == FREE:
                if now_s >= wakes[host]:
                    wakes[host] = inf
            elif what == ENTERS:
                a, b = cluster[peer], cluster[host]
                enters_s = max(now_s, into_free[b])
                into_free[b] = enters_s + up_s[b]
                happens(enters_s + freely_s[a][b], COMES, host, message)
                continue
            else:
                if what == COMES:
                    there_s = max(now_s, in_free[host] + port_s[cluster[host]])
                    in_free[host] = there_s
                    if there_s > now_s:
                        happens(there_s, THERE, host, message)
                        continue
                if stage == UP:
                    below[segment][host] -= 1
                    if not below[segment][host]:
                        combined(segment, host, now_s)
                elif stage == MEET:
                    met(segment, host, now_s)
                else:
                    complete(segment, host, now_s)
            ready = waiting[host]
            if not ready:
                continue
            soonest_s = out_free[host]
            if soonest_s <= now_s:
                # The oldest whose flow is free.
                kept = []
                while ready and pair_free.get((host, ready[0][2][1]), 0.0) > now_s:
                    kept.append(heappop(ready))
                sent = heappop(ready)[2] if ready else None
                for each in kept:
                    heappush(ready, each)
                if sent is None:
                    soonest_s = min(pair_free[host, each[2][1]] for each in kept)
                else:
                    self.n_messages += 1
                    segment, peer, stage = sent
                    sent = segment, host, stage
                    a, b = cluster[host], cluster[peer]
                    soonest_s = out_free[host] = now_s + port_s[a]
                    pair_free[host, peer] = now_s + gap_s[a][b]
                    if a == b:
                        happens(now_s + one_way_s[a][b], COMES, peer, sent)
                    else:
                        enters_s = max(now_s, pipe_free.get((a, b), 0.0), out_of_free[a])
                        pipe_free[a, b] = enters_s + shared_s[a][b]
                        if up_s[a]:
                            out_of_free[a] = enters_s + up_s[a]
                        if up_s[b]:
                            happens(enters_s, ENTERS, peer, sent)
                        else:
                            comes_s = max(enters_s + freely_s[a][b], now_s + one_way_s[a][b])
                            happens(comes_s, COMES, peer, sent)
            if ready and soonest_s < wakes[host]:
                wakes[host] = soonest_s
                happens(soonest_s, FREE, host, nothing)
        return last_s
