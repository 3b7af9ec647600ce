"""pLogP of cluster pairs with as few messages as ``L``, ``os``, ``or`` and ``g`` need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from mpi4py import MPI

from gridcoll.engine.agreement import tell_all
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.clusters import Progress, silent
from gridcoll.measure.probe import Channel, Sample, fit_samples, gap_of_trains
from gridcoll.model.plogp import PLogP
from gridcoll.topology.grid import Grid

Pair = tuple[int, int]
T = TypeVar("T")

BUDGET_BYTES = 8 << 20
"""Most bytes sent over one link in all: a thin one has other traffic to carry."""

WITHIN = 0.15
"""A size where interpolation is right within this part need not be measured: of two runs of one
train the other is up to a tenth longer."""

BASE_SIZES = (0, 1 << 16, 1 << 13, 1 << 18)
"""Every link, in this order: what long messages take tells how many short ones to send. The last
one first shows whether time is in proportion to size by then."""

LARGEST_BYTES = 1 << 20
"""Where it is not, windows limit, or a handshake: that far pipelines may go."""

LEAST_TRAIN_S = 10e-3
MOST_MESSAGES = 256

ONE_BY_ONE = 8
"""Of a train of twice so many messages or more the first half shows when half of it is there. Fewer
are long, and libraries send long ones in pieces by turns: they come all at last.
"""

MOST_EMPTY_MESSAGES, MOST_ON_THE_WAY = 64, 16
"""Their gap is tens of microseconds: so many tell it within a few percent. On links longer than
`SHORT_S` twice the latter are under way at once, each a packet, and TCP's window counts packets:
that of `_OPENING` has room for some eighty."""

LONG_S = 0.1
"""A single message that takes so long needs no train: noise and round trips are a small part of
it."""

MORE_EXCHANGES, SHORT_S = 2, 3e-3
"""So many more of what is so short: a busy moment of either end would be a large part of it."""

ENOUGH_S = 10e-3
"""Of round trips: short ones that were tried so long tell what a busy moment adds. One that took
longer is known well enough to say that it is long."""

MOST_TRIPS, MOST_S = 20, 0.1
"""Where round trips do not agree. What takes so long in all is long, or has been tried often."""

AGREE = 1.1
"""Round trips of a link that differ by more are not the link's, but those of a host that was busy
with others: 88 on two processors take milliseconds where the wire takes 0.1."""

BOTH_AGREE = AGREE**2
"""Two numbers of which either is off by as much as `AGREE`."""

_OPENING = (1 << 14, 8)


def measure_pairs(
    comm: MPI.Intracomm,
    grid: Grid,
    pairs: Iterable[tuple[int, int]],
    progress: Progress = silent,
    budget_bytes: int = BUDGET_BYTES,
) -> dict[tuple[int, int], PLogP]:
    """Measure pLogP between ``pairs`` of clusters, and inside where both are one. Collective.

    Pairs that share no cluster are measured at once. Equal on all ranks.
    """
    return look_between(
        comm, grid, pairs, partial(quick_plogp, budget_bytes=budget_bytes), progress
    )


def look_between(
    comm: MPI.Intracomm,
    grid: Grid,
    pairs: Iterable[tuple[int, int]],
    measure: Callable[[Channel], T | None],
    progress: Progress = silent,
    what: str = "pLogP of links",
) -> dict[tuple[int, int], T]:
    """What ``measure`` finds between ``pairs``, as `measure_pairs`. Collective.

    Both ends call it; what is not None counts. A pair between clusters begins as soon as both are
    free: they need not wait for a slow link between two others.
    """
    wanted = [(a, b) for a, b in dict.fromkeys(pairs) if a != b or len(grid.clusters[a]) > 1]
    rounds = _packed(grid, disjoint_rounds(wanted))
    mine: list[tuple[int, int, T]] = []
    done, n_links = 0, sum(map(len, rounds))
    rank = comm.Get_rank()
    for each in rounds:
        progress(what, done, n_links)
        for a, b in each:
            sender, receiver = representatives(grid, a, b)
            if rank in (sender, receiver):
                active = rank == sender
                channel = Channel(comm, receiver if active else sender, active)
                channel.round_trip_s(0)  # the other one may still be with another pair
                measured = measure(channel)
                if measured is not None:
                    mine.append((a, b, measured))
        done += len(each)
        if any(a == b for a, b in each) or done == n_links:
            # Hosts that measure inside clusters are no coordinators, which would begin before they
            # are done; and at the end all wait politely.
            wait_for_all(comm)
    progress(what, n_links, n_links)
    return {(a, b): found for each in tell_all(comm, mine) for a, b, found in each}


def representatives(grid: Grid, a: int, b: int) -> tuple[int, int]:
    """The ranks that measure for a cluster pair: coordinators; inside, two on different nodes.

    Those are the last ones, where that leaves coordinators free for others.
    """
    first = grid.clusters[a].coordinator
    if a != b:
        return first, grid.clusters[b].coordinator
    nodes = grid.clusters[a].nodes
    if len(nodes) == 1:
        return first, grid.clusters[a].ranks[1]
    others = [node[0].rank for node in nodes if first not in [each.rank for each in node]]
    return (others[-2], others[-1]) if len(others) > 1 else (first, others[0])


def _packed(grid: Grid, rounds: Sequence[list[Pair]]) -> list[list[Pair]]:
    """``rounds``, with pairs inside clusters in the first round if no node is in two pairs."""
    if len(rounds) < 2 or any(a != b for a, b in rounds[0]):
        return list(rounds)
    together = [*rounds[0], *rounds[1]]
    nodes = [grid.host_of[rank] for pair in together for rank in set(representatives(grid, *pair))]
    return [together, *rounds[2:]] if len(set(nodes)) == len(nodes) else list(rounds)


def disjoint_rounds(pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """``pairs`` in rounds in which no cluster is in two; those inside clusters first.

    Pairs go in the order of the circle method, which for all pairs gives as few rounds as can be.
    """
    n = 1 + max((max(pair) for pair in pairs), default=0)
    n += n % 2

    def turn(pair: tuple[int, int]) -> int:
        low, high = min(pair), max(pair)
        if low == high:
            return -1
        return 2 * low % (n - 1) if high == n - 1 else (low + high) % (n - 1)

    rounds: dict[int, list[tuple[int, int]]] = {}
    for pair in pairs:
        rounds.setdefault(turn(pair), []).append(pair)
    return [rounds[key] for key in sorted(rounds)]


def is_near(one: float, other: float, factor: float) -> bool:
    """Whether neither is more than ``factor`` times the other."""
    return max(one, other) <= factor * min(one, other)


class End(Protocol):
    """One end of a link: a `Channel`, or what stands in for one."""

    @property
    def active(self) -> bool: ...
    def round_trip_s(self, n_bytes: int) -> float: ...
    def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]: ...
    def exchange(self, n_bytes: int) -> tuple[float, float, float]: ...
    def agree(self, value: int) -> int: ...


def is_enough(trips_s: Sequence[float]) -> bool:
    """Whether these round trips tell how long the shortest one is, or were tried often enough."""
    if len(trips_s) >= MOST_TRIPS or sum(trips_s) > MOST_S:
        return True
    shortest_s, *longer_s = sorted(trips_s)
    is_settled = not longer_s or longer_s[0] <= AGREE * shortest_s
    return is_settled and sum(trips_s) > ENOUGH_S


class _Link:
    """A link under measurement, and how many bytes may still be sent over it.

    Equal on both ends, as they count the same messages.
    """

    def __init__(self, channel: End, budget_bytes: int) -> None:
        self.channel = channel
        self.left_bytes = budget_bytes
        self.gaps_s: dict[int, float] = {}
        self.lone_s: dict[int, float] = {}
        self.opened_bytes = 0  # that were under way at once
        # Open TCP's window before anything is timed.
        n_bytes, n = _OPENING
        self.train(n_bytes, min(n, budget_bytes // (2 * n_bytes)))
        self.empty_s = self._empty_s()

    def _empty_s(self) -> float:
        trips_s: list[float] = []
        going = 1
        while going:
            trips_s.append(self.channel.round_trip_s(0))
            going = self.channel.agree(int(len(trips_s) < 2 or not is_enough(trips_s)))
        return min(trips_s)

    def affords(self, n_bytes: int) -> bool:
        return n_bytes <= self.left_bytes

    def exchange(self, n_bytes: int) -> tuple[float, float, float]:
        """A message and its answer: the round trip, ``os`` and ``or``; zeros on the passive end."""
        self.left_bytes -= n_bytes
        return self.channel.exchange(n_bytes)

    def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
        """Of its first half and of all; zeros on the passive end."""
        self.left_bytes -= n_bytes * n_messages
        self.opened_bytes = max(self.opened_bytes, n_bytes * n_messages)
        return self.channel.train(n_bytes, n_messages)

    def sample(self, n_bytes: int) -> Sample:
        """Gap from trains; a lone message; overheads."""
        lone_s, send_s, recv_s = self.exchange(n_bytes)
        for _ in range(MORE_EXCHANGES):
            if not self.channel.agree(int(lone_s < SHORT_S)) or not self.affords(8 * n_bytes):
                break
            again = self.exchange(n_bytes)
            lone_s, send_s, recv_s = map(min, (lone_s, send_s, recv_s), again)
        each_s = max(lone_s - self.empty_s, self._least_gap_s(n_bytes), 5e-6)
        is_long = lone_s >= max(LONG_S, 4 * self.empty_s)
        foretold_s = self._foretold_s(n_bytes, lone_s)
        self.lone_s[n_bytes] = lone_s
        if self.channel.agree(int(is_long)) or not self.affords(4 * n_bytes):
            # A long message: its time less the empty round trip is the gap.
            gap_s = each_s
        elif self.channel.agree(int(foretold_s > 0)):
            gap_s = foretold_s
        else:
            wanted = math.ceil(1.2 * max(self.empty_s, LEAST_TRAIN_S) / each_s)
            most = MOST_MESSAGES
            if not n_bytes:
                most = MOST_EMPTY_MESSAGES if self.empty_s < SHORT_S else MOST_ON_THE_WAY
            n = self.channel.agree(min(max(wanted, 2), most))
            if n_bytes:
                n = max(min(n, self.left_bytes // (4 * n_bytes)), 1)
            gap_s = self._gap_s(n_bytes, n, lone_s)
        self.gaps_s[n_bytes] = gap_s
        return Sample(gap_s, lone_s - self.empty_s / 2, send_s, recv_s)

    def _told_s(self, lone_s: float, train_s: float, n: int) -> float:
        """The gap that a lone message and a train of ``n`` agree on, 0 if they do not.

        Both have an empty round trip at their end, and a handshake before them takes another.
        """
        for once_s in (self.empty_s, 2 * self.empty_s):
            alone_s, average_s = lone_s - once_s, (train_s - once_s) / n
            if alone_s > 0 and is_near(alone_s, average_s, AGREE):
                return (alone_s + average_s) / 2
        return 0.0

    def _foretold_s(self, n_bytes: int, lone_s: float) -> float:
        """The gap by that of the longest size so far; 0 if a lone message does not confirm it.

        It does if it takes so much longer than a lone one of that size as that one's gap or time
        tells. Then trains, the longest part of a measurement, would show nothing new: no window and
        no handshake.
        """
        below = max(self.gaps_s, default=0)
        if not 0 < below < n_bytes or 0 not in self.gaps_s:
            return 0.0
        added_s, times = lone_s - self.lone_s[below], (n_bytes - below) / below
        by_gap_s = times * (self.gaps_s[below] - self.gaps_s[0])
        alone_s = times * (self.lone_s[below] - self.empty_s)
        are_near = is_near(by_gap_s, alone_s, BOTH_AGREE)
        if is_near(added_s, by_gap_s, AGREE) or (are_near and is_near(added_s, alone_s, AGREE)):
            return self.gaps_s[below] + (added_s + by_gap_s) / 2
        return 0.0

    def _least_gap_s(self, n_bytes: int) -> float:
        """Estimated by longer messages: a single one does not show how a window slows a train."""
        longer = [size for size in self.gaps_s if size > n_bytes]
        return self.gaps_s[min(longer)] * n_bytes / min(longer) if longer else 0.0

    def _gap_s(self, n_bytes: int, n: int, lone_s: float) -> float:
        """From a train of twice ``n`` messages and one of n, unless one and a lone message agree.

        The difference of two short trains is noisy, and windows open while the first is under way.
        """
        if n >= ONE_BY_ONE:
            took_s, longer_s = self.train(n_bytes, 2 * n)
        else:
            took_s = longer_s = 0.0
            # The shorter one first if it is what opens the window so far.
            for is_longer in (False, True) if n * n_bytes > self.opened_bytes else (True, False):
                n_messages = n + n * is_longer
                train_s = self.train(n_bytes, n_messages)[1]
                told_s = self._told_s(lone_s, train_s, n_messages) if n_bytes else 0.0
                if self.channel.agree(int(told_s > 0)):
                    return told_s
                took_s, longer_s = (took_s, train_s) if is_longer else (train_s, longer_s)
        gap_s, likely = gap_of_trains(took_s, longer_s, n, self.empty_s)
        if not n_bytes:
            return gap_s  # a few microseconds are within the noise of a round trip
        if not self.channel.agree(int(likely)) and self.affords(4 * n * n_bytes):
            # Handshakes and windows are a large part of short trains, and less of a longer one.
            took_s, longer_s, n = longer_s, self.train(n_bytes, 4 * n)[1], 2 * n
            gap_s, likely = gap_of_trains(took_s, longer_s, n, self.empty_s)
        if not self.channel.agree(int(likely)) and self.affords(n * n_bytes):
            took_s = min(took_s, self.train(n_bytes, n)[1])
            gap_s, _ = gap_of_trains(took_s, longer_s, n, self.empty_s)
        return gap_s


def quick_plogp(channel: End, budget_bytes: int = BUDGET_BYTES) -> PLogP | None:
    """The link's pLogP, on the active end; None on the other.

    Sizes are added where interpolation errs by more than `WITHIN`: one between two whose rates
    differ, a larger one while the rate still grows.
    """
    link = _Link(channel, budget_bytes)
    samples: dict[int, Sample] = {}
    for n_bytes in BASE_SIZES:
        if len(samples) < 2 or link.affords(4 * n_bytes):
            samples[n_bytes] = link.sample(n_bytes)
    low, high = sorted(BASE_SIZES)[1:3]
    is_known = not {low, high} <= samples.keys() or not link.affords(8 * high)
    if not is_known and not channel.agree(int(_foretells(samples, low, high))):
        middle = high // 2
        samples[middle] = link.sample(middle)
    largest = max(samples)
    while low < largest < LARGEST_BYTES and link.affords(8 * largest):
        below = max(size for size in samples if size < largest)
        if channel.agree(int(_foretells(samples, below, largest))):
            break
        largest *= 2
        samples[largest] = link.sample(largest)
    for n_bytes in sorted(samples)[1:-1]:
        # If a size seems faster than longer ones, one of them may have been disturbed.
        doubtful = (
            samples[n_bytes].gap_s * largest < (1 - WITHIN) * samples[largest].gap_s * n_bytes
        )
        if channel.agree(int(doubtful)) and link.affords(8 * n_bytes):
            again = link.sample(n_bytes)
            if again.gap_s > samples[n_bytes].gap_s:
                samples[n_bytes] = again
    return fit_samples(samples, link.empty_s) if channel.active else None


def _foretells(samples: Mapping[int, Sample], low: int, high: int) -> bool:
    """Whether a line through an empty message and one of ``low`` bytes gives ``high``'s gap.

    Then nothing changes between them, and beyond, until something else limits.
    """
    start_s = samples[0].gap_s
    slope = max(samples[low].gap_s - start_s, 0.0) / low
    return abs(start_s + slope * high - samples[high].gap_s) <= WITHIN * samples[high].gap_s
