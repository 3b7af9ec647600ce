"""Simulates a collective over trees of hosts: the messages of all segments, in order of time.

This does for hosts what `plan.cost` does for the ops of a plan, without a plan. It is a hundred
times as fast, and again ten times if `walk.c` was compiled, so that a search can try hundreds of
trees. Messages inside hosts are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heappop, heappush, heapreplace
from itertools import permutations
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridcoll.constants import LINK_PACE, PACE
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.model.tree_packing import Platform
from gridcoll.plan import compiled_walk
from gridcoll.plan.cost import link_times_s
from gridcoll.plan.pacing import root_ahead_s

BOTH, UPWARDS, DOWNWARDS = range(3)
"""Ways of segments: to the tops of their trees and from there to all hosts; or one of these."""

UP, MEET, DOWN = range(3)
"""Stages of a message: to the parent, between tops, to a child."""

Children = tuple[tuple[int, ...], ...]
"""For each host, the hosts below it."""

TICKS_PER_S = 2.0**36
"""Times are rounded to this fraction of a second, so that sums of them are exact. Otherwise, ranks
on machines that add in another order could differ in the last bit, and then choose other trees."""

DUE, FREE, ENTERS, ARRIVES, RECEIVED = range(5)
"""Kinds of events: a send may begin, an interface is free, a message enters a cluster, arrives at
an interface, and has been received."""


_Message = tuple[int, int, int]
"""Segment, host at the other end, stage."""

_Event = tuple[float, int, int, int, _Message]
"""Time, a number in order of creation, kind, host, message."""


class _Tree(NamedTuple):
    """A tree over hosts. Parents of tops, which meet, are -1."""

    parents: list[int]
    children: list[tuple[int, ...]]


class _Times(NamedTuple):
    """Times of a segment: of links by pair of clusters, of interfaces and uplinks by cluster.

    See `plan.cost.link_times_s` for those of links.
    """

    gap_s: list[list[float]]
    one_way_s: list[list[float]]
    unblocked_s: list[list[float]]
    shared_s: list[list[float]]
    port_s: list[float]
    uplink_s: list[float]


def in_ticks(seconds: npt.ArrayLike) -> FloatArray:
    """Return ``seconds``, rounded to multiples of a tick."""
    return np.asarray(np.round(np.asarray(seconds) * TICKS_PER_S) / TICKS_PER_S)


def children_of(platform: Platform, parents: Sequence[int]) -> Children:
    """Return the children of each host; the one with the longest path to a descendant is first."""
    below: list[list[int]] = [[] for _ in parents]
    for child, parent in enumerate(parents):
        if parent >= 0:
            below[parent].append(child)
    order = [host for host, above in enumerate(parents) if above < 0]
    for host in order:
        order += below[host]
    cluster = [platform.clusters[kind] for kind in platform.kind_of]
    path_s = [0.0] * len(order)
    for host in reversed(order):
        hops_s = platform.hops_s[cluster[host]]
        path_s[host] = max((hops_s[cluster[c]] + path_s[c] for c in below[host]), default=0.0)
    hops = platform.hops_s
    return tuple(
        tuple(sorted(each, key=lambda c, a=cluster[host]: (-hops[a][cluster[c]] - path_s[c], c)))  # type: ignore[misc]
        for host, each in enumerate(below)
    )


@lru_cache(maxsize=256)
def use_in_turns(shares: tuple[float, ...], n: int) -> tuple[tuple[int, int], ...]:
    """Return, for each of ``n`` segments, its tree and by how many places its hosts are rotated.

    At any time, the numbers of segments per tree are as close to the shares as possible: the next
    segment of a tree is due in the middle of the interval that it represents.
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
    """Simulates a collective with ``n_bytes`` over trees of the hosts of ``platform``.

    That is an allreduce if segments go `BOTH` ways. If all trees have the root of ``platform``, it
    is a broadcast `DOWNWARDS` or a reduction `UPWARDS`. If ``platform`` has no root, it is an
    allgather or a reduce-scatter, in which the top of a tree owns its segments.
    """

    def __init__(self, model: GridModel, platform: Platform, n_bytes: int, way: int = BOTH) -> None:
        self._model, self._platform, self._n_bytes = model, platform, n_bytes
        self._kinds = platform.kind_of
        self._cluster = [platform.clusters[kind] for kind in self._kinds]
        self._firsts = [self._kinds.index(kind) for kind in self._kinds]
        self._counts = [platform.counts[kind] for kind in self._kinds]
        self._root = self._kinds.index(platform.root) if platform.root >= 0 else -1
        self._way = way
        self.is_bcast = self._root >= 0 and way == DOWNWARDS
        n_ways = 2 if way == BOTH else 1
        self.overhead_s = n_ways * float(in_ticks(np.median(model.overhead_s)))
        """Seconds of processors that a segment needs on a way, which are not simulated."""
        self._times: dict[int, _Times] = {}
        self._compiled = compiled_walk.load_walk()
        self._networks: dict[int, compiled_walk.Network] = {}
        self.n_messages = 0
        """How many messages were simulated so far."""

    def _times_of(self, segment_bytes: int) -> _Times:
        if segment_bytes not in self._times:
            sizes = np.array([0.0, float(segment_bytes)])
            between = [each[:, :, 1] for each in link_times_s(self._model, sizes)]
            uplink_s = segment_bytes / self._model.uplinks
            times = *between, between[0].diagonal(), uplink_s
            self._times[segment_bytes] = _Times(*(in_ticks(each).tolist() for each in times))
        return self._times[segment_bytes]

    def total_s(
        self,
        trees: Sequence[Sequence[int]],
        uses: Sequence[tuple[int, int]],
        period_s: float,
        most_s: float = inf,
    ) -> float:
        """Return when all hosts have all segments, whose trees and rotations are ``uses``.

        A tree is given by the parent of each host, -1 for tops. A host sends its own contributions,
        or the root its message, no faster than one segment each ``period_s``. Returns infinity if
        it takes more than ``most_s``; the simulation ends as soon as that is clear.
        """
        segment_bytes = -(-self._n_bytes // len(uses))
        paced_s, ahead_s = float(in_ticks(period_s * PACE)), 0.0
        if self.is_bcast:
            home = self._platform.clusters[self._platform.root]
            paced_s = float(in_ticks(period_s * LINK_PACE))
            ahead_s = float(in_ticks(root_ahead_s(self._model, home)))
        if self._compiled is None:
            return self._walked_s(trees, uses, segment_bytes, paced_s, ahead_s, most_s)
        if segment_bytes not in self._networks:
            self._networks[segment_bytes] = compiled_walk.Network(
                self._root,
                self._way,
                (self._cluster, self._firsts, self._counts),
                (self._platform.hops_s, *self._times_of(segment_bytes)),
            )
        total_s, n_messages = self._compiled.total_s(
            self._networks[segment_bytes], trees, uses, paced_s, ahead_s, most_s
        )
        self.n_messages += n_messages
        return total_s

    def _rotated(self, parents: Sequence[int], children: Children, turn: int) -> _Tree:
        """Return the tree whose hosts are rotated by ``turn`` places within their kinds."""
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

    def _rests_s(
        self, parents: Sequence[int], children: Children, least_s: list[list[float]]
    ) -> tuple[list[float], list[float]]:
        """Return the least time until all hosts have a segment, by place in the tree.

        From when it is combined at that place, and from when it is complete there. ``least_s`` are
        the least times of a message between clusters.
        """
        cluster, tops = self._cluster, [h for h, above in enumerate(parents) if above < 0]
        order = list(tops)
        for host in order:
            order += children[host]
        combined_s, complete_s = [0.0] * len(order), [0.0] * len(order)

        def after(a: int, b: int, rest_s: list[float]) -> float:
            return least_s[cluster[a]][cluster[b]] + rest_s[b]

        for host in reversed(order) if self._way != UPWARDS else ():
            complete_s[host] = max((after(host, c, complete_s) for c in children[host]), default=0)
        for host in order:
            if parents[host] >= 0:
                combined_s[host] = after(host, parents[host], combined_s)
                continue
            others_s = [after(host, top, complete_s) for top in tops if top != host]
            combined_s[host] = max(complete_s[host], *others_s, 0.0)
        return combined_s, complete_s

    def _messages_left(
        self, rotated: Sequence[_Tree], tops: Sequence[Sequence[int]]
    ) -> tuple[Counter[int], Counter[tuple[int, int]]]:
        """Return how many messages hosts send, and how many go from cluster to cluster.

        ``rotated`` and ``tops`` are by segment.
        """
        pairs: Counter[tuple[int, int]] = Counter()
        for tree, ends in zip(rotated, tops, strict=True):
            edges = [(host, above) for host, above in enumerate(tree.parents) if above >= 0]
            pairs.update(edges if self._way != DOWNWARDS else ())
            pairs.update((above, host) for host, above in edges if self._way != UPWARDS)
            pairs.update(permutations(ends, 2))
        n_left: Counter[int] = Counter()
        n_crossing: Counter[tuple[int, int]] = Counter()
        for (host, peer), n in pairs.items():
            n_left[host] += n
            n_crossing[self._cluster[host], self._cluster[peer]] += n
        return n_left, n_crossing

    def _walked_s(
        self,
        trees: Sequence[Sequence[int]],
        uses: Sequence[tuple[int, int]],
        segment_bytes: int,
        paced_s: float,
        ahead_s: float,
        most_s: float,
    ) -> float:
        """Return `total_s`, found in Python: the very same as `walk.c` finds."""
        gap_s, one_way_s, unblocked_s, shared_s, port_s, uplink_s = self._times_of(segment_bytes)
        cluster, n_hosts, clusters = self._cluster, len(self._cluster), range(len(uplink_s))
        children = [children_of(self._platform, parents) for parents in trees]
        rotated = [self._rotated(trees[k], children[k], turn) for k, turn in uses]
        tops = [[h for h, above in enumerate(tree.parents) if above < 0] for tree in rotated]
        # Results that a host still waits for: of its children, and of tops (its own included).
        n_missing = [list(map(len, tree.children)) for tree in rotated]
        n_unmet = [dict.fromkeys(ends, len(ends)) for ends in tops]
        n_left, n_crossing = self._messages_left(rotated, tops)
        least_s = [
            [(unblocked_s if a != b and uplink_s[b] > 0 else one_way_s)[a][b] for b in clusters]
            for a in clusters
        ]
        rests_s = [self._rests_s(trees[k], children[k], least_s) for k in range(len(trees))]
        out_free, in_free, wakes = [0.0] * n_hosts, [0.0] * n_hosts, [0.0] * n_hosts
        pair_free: dict[tuple[int, int], float] = {}
        shared_free: dict[tuple[int, int], float] = {}
        uplink_out_free, uplink_in_free = [0.0] * len(uplink_s), [0.0] * len(uplink_s)
        waiting: list[list[tuple[float, int, _Message]]] = [[] for _ in cluster]
        no_message = (0, 0, 0)
        events: list[_Event] = [(0.0, h, FREE, h, no_message) for h in range(n_hosts)]
        count, last_s, is_late = n_hosts, 0.0, False

        def leaves_at(now_s: float, host: int, message: _Message) -> None:
            """Check that a message that leaves now, and all that waits for it, can be in time."""
            nonlocal is_late
            segment, peer, stage = message
            tree, turn = uses[segment]
            first, n = self._firsts[peer], self._counts[peer]
            rest_s = rests_s[tree][stage != UP][first + (peer - first - turn) % n]
            is_late |= now_s + least_s[cluster[host]][cluster[peer]] + rest_s > most_s

        def wait(host: int, ready_s: float, message: _Message) -> None:
            nonlocal count
            heappush(waiting[host], (ready_s, count, message))
            count += 1

        def schedule(when_s: float, kind: int, host: int, message: _Message) -> None:
            nonlocal count
            heappush(events, (when_s, count, kind, host, message))
            count += 1

        def send_when_due(host: int, now_s: float, message: _Message) -> None:
            due_s = message[0] * paced_s - ahead_s
            leaves_at(max(due_s, now_s), host, message)
            if due_s > now_s:
                schedule(due_s, DUE, host, message)
            else:
                wait(host, now_s, message)

        def combined(segment: int, host: int, now_s: float) -> None:
            """Handle that all contributions from below have been combined at ``host``."""
            parent = rotated[segment].parents[host]
            if parent >= 0:
                send_when_due(host, now_s, (segment, parent, UP))
                return
            own = tops[segment].index(host)
            for other in tops[segment][own + 1 :] + tops[segment][:own]:
                send_when_due(host, now_s, (segment, other, MEET))
            met(segment, host, now_s)

        def met(segment: int, host: int, now_s: float) -> None:
            n_unmet[segment][host] -= 1
            if not n_unmet[segment][host]:
                complete(segment, host, now_s)

        def complete(segment: int, host: int, now_s: float) -> None:
            nonlocal last_s
            last_s = max(last_s, now_s)
            if self._way == UPWARDS:
                return
            send = send_when_due if host == self._root else wait
            for child in rotated[segment].children[host]:
                send(host, now_s, (segment, child, DOWN))

        for segment, missing in enumerate(n_missing):
            if self._way == DOWNWARDS:
                complete(segment, tops[segment][0], 0.0)
                continue
            for host in range(n_hosts):
                if not missing[host]:
                    combined(segment, host, 0.0)
        while events:
            now_s, _, kind, host, message = heappop(events)
            if is_late or now_s > most_s:
                last_s = inf
                break
            segment, peer, stage = message
            if kind == DUE:
                wait(host, now_s, message)
            elif kind == FREE:
                if now_s >= wakes[host]:
                    wakes[host] = inf
            elif kind == ENTERS:
                a, b = cluster[peer], cluster[host]
                enters_s = max(now_s, uplink_in_free[b])
                uplink_in_free[b] = enters_s + uplink_s[b]
                schedule(enters_s + unblocked_s[a][b], ARRIVES, host, message)
                continue
            else:
                if kind == ARRIVES:
                    received_s = max(now_s, in_free[host] + port_s[cluster[host]])
                    in_free[host] = received_s
                    if received_s > now_s:
                        schedule(received_s, RECEIVED, host, message)
                        continue
                if stage == UP:
                    n_missing[segment][host] -= 1
                    if not n_missing[segment][host]:
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
                # Send the oldest message whose flow is free.
                blocked = []
                while ready and pair_free.get((host, ready[0][2][1]), 0.0) > now_s:
                    blocked.append(heappop(ready))
                sent = heappop(ready)[2] if ready else None
                for each in blocked:
                    heappush(ready, each)
                if sent is None:
                    soonest_s = min(pair_free[host, each[2][1]] for each in blocked)
                else:
                    self.n_messages += 1
                    leaves_at(now_s, host, sent)
                    n_left[host] -= 1
                    is_late |= now_s + n_left[host] * port_s[cluster[host]] > most_s
                    segment, peer, stage = sent
                    sent = segment, host, stage
                    a, b = cluster[host], cluster[peer]
                    soonest_s = out_free[host] = now_s + port_s[a]
                    pair_free[host, peer] = now_s + gap_s[a][b]
                    if a == b:
                        schedule(now_s + one_way_s[a][b], ARRIVES, peer, sent)
                    else:
                        enters_s = now_s
                        if uplink_s[a]:
                            enters_s = max(now_s, uplink_out_free[a])
                            uplink_out_free[a] = enters_s + uplink_s[a]
                        enters_s = max(enters_s, shared_free.get((a, b), 0.0))
                        shared_free[a, b] = enters_s + shared_s[a][b]
                        n_crossing[a, b] -= 1
                        is_late |= enters_s + n_crossing[a, b] * shared_s[a][b] > most_s
                        if uplink_s[b]:
                            schedule(enters_s, ENTERS, peer, sent)
                        else:
                            arrives_s = max(enters_s + unblocked_s[a][b], now_s + one_way_s[a][b])
                            schedule(arrives_s, ARRIVES, peer, sent)
            if ready and soonest_s < wakes[host]:
                wakes[host] = soonest_s
                schedule(soonest_s, FREE, host, no_message)
        return last_s
