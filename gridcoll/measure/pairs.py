"""Measure pLogP of cluster pairs with as few messages as ``L``, ``os``, ``or`` and ``g`` need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
from mpi4py import MPI

from gridcoll.engine.agreement import tell_all
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.clusters import Progress, silent
from gridcoll.measure.probe import Channel, Sample, fit_samples, gap_of_trains, middle_of_step
from gridcoll.model.plogp import PLogP
from gridcoll.topology.grid import Grid

Pair = tuple[int, int]
T = TypeVar("T")

BUDGET_BYTES = 8 << 20
"""Most bytes sent over one link in all: a thin link also has to carry other traffic."""

INTERPOLATION_TOLERANCE = 0.15
"""A size is not measured if interpolation errs by less than this fraction there. Two runs of the
same train differ by up to a tenth."""

BASE_SIZES = (0, 1 << 16, 1 << 13, 1 << 18)
"""Sizes that every link is measured at, in this order: the time of long messages shows how many
short ones to send. The last size shows whether time is in proportion to size by then."""

LARGEST_BYTES = 1 << 20
"""Largest size, measured where time is not in proportion to size because of windows or a handshake.
Pipelines may use messages up to this size."""

LEAST_TRAIN_S = 10e-3
"""A train should last at least this long, and a round trip, to show a window."""

LONG_TRAIN_S = 40e-3
"""This is enough if longer messages have shown the window: bursts are a small part of it."""

MOST_MESSAGES = 256

FEWEST_FOR_HALFWAY = 8
"""From this number of messages n on, a train of 2n also gives the time of a train of n: that of its
first half. Fewer messages are long ones, which libraries send in interleaved pieces, so that all of
them arrive at the end."""

MOST_EMPTY_MESSAGES, MOST_EMPTY_IN_FLIGHT = 64, 16
"""Most empty messages n in a train of 2n. Their gap is tens of microseconds, which the former
number shows within a few percent. The latter is for round trips longer than `SHORT_TRIP_S`: then
all 2n are in flight at once, each in a packet of its own. TCP's window counts packets, and after
`_OPENING_TRAIN` it has room for some eighty."""

LONG_MESSAGE_S = 0.1
"""A single message that takes this long needs no train: noise and round trips are a small part of
its time."""

EXTRA_EXCHANGES, SHORT_TRIP_S = 2, 3e-3
"""Number of extra exchanges if one takes less than this time: a busy moment of either end would be
a large part of it."""

ENOUGH_TRIPS_S = 10e-3
"""Round trips that agree are enough if they take this long in all. Short trips repeated for that
time show what a busy moment adds, and a single longer trip is certain to be long."""

MOST_TRIPS, MOST_TRIPS_S = 20, 0.1
"""Limits if round trips do not agree: their number, and their time in all. By that time they are
long, or have been tried often."""

SAME_TRIP = 0.25
"""Two times differ by no handshake and no further window if by less than this fraction of a round
trip, where that is longer than `ENOUGH_TRIPS_S`. Each of them takes a whole one."""

AGREEMENT = 1.1
"""Round trips agree if they differ by no more than this factor. If they differ by more, a busy host
is the cause and not the link: with 88 hosts on two processors, round trips take milliseconds where
the wire takes 0.1."""

AGREEMENT_OF_BOTH = AGREEMENT**2
"""Largest factor between two numbers each of which may be off by `AGREEMENT`."""

_OPENING_TRAIN = (1 << 14, 8)  # bytes of a message, and messages


def measure_pairs(
    comm: MPI.Intracomm,
    grid: Grid,
    pairs: Iterable[tuple[int, int]],
    progress: Progress = silent,
    budget_bytes: int = BUDGET_BYTES,
) -> dict[tuple[int, int], PLogP]:
    """Measure pLogP between ``pairs`` of clusters, and inside a cluster paired with itself.

    Collective; equal on all ranks. Pairs that share no cluster are measured at once.
    """
    return measure_between(
        comm, grid, pairs, partial(quick_plogp, budget_bytes=budget_bytes), progress
    )


def measure_between(
    comm: MPI.Intracomm,
    grid: Grid,
    pairs: Iterable[tuple[int, int]],
    measure: Callable[[Channel], T | None],
    progress: Progress = silent,
    what: str = "pLogP of links",
) -> dict[tuple[int, int], T]:
    """Return what ``measure`` finds between ``pairs``, as `measure_pairs` does. Collective.

    Both ends of a pair call ``measure``; the result that is not None counts. Two clusters begin as
    soon as both are free: they need not wait for a slow link between two others.
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
                channel.round_trip_s(0)  # the other end may still be busy with another pair
                measured = measure(channel)
                if measured is not None:
                    mine.append((a, b, measured))
        done += len(each)
        if any(a == b for a, b in each) or done == n_links:
            # Coordinators do not measure inside clusters: without this they would begin with other
            # clusters before the hosts inside are done. At the end, all ranks wait politely.
            wait_for_all(comm)
    progress(what, n_links, n_links)
    return {(a, b): found for each in tell_all(comm, mine) for a, b, found in each}


def representatives(grid: Grid, a: int, b: int) -> tuple[int, int]:
    """Return the ranks that measure a cluster pair: the coordinators of both clusters.

    Inside a cluster they are two ranks on different nodes, if possible the last two, so that the
    coordinator is free for other pairs.
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
    """Return ``rounds`` with the first two merged if that puts no node into two pairs.

    Only a first round of pairs inside clusters is merged.
    """
    if len(rounds) < 2 or any(a != b for a, b in rounds[0]):
        return list(rounds)
    together = [*rounds[0], *rounds[1]]
    nodes = [grid.host_of[rank] for pair in together for rank in set(representatives(grid, *pair))]
    return [together, *rounds[2:]] if len(set(nodes)) == len(nodes) else list(rounds)


def disjoint_rounds(pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Return ``pairs`` in rounds in which no cluster is in two pairs; those inside clusters first.

    The order is that of the circle method, which gives the fewest rounds possible for all pairs.
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
    """Whether neither number is more than ``factor`` times the other."""
    return max(one, other) <= factor * min(one, other)


class End(Protocol):
    """One end of a link: a `Channel`, or a substitute for one."""

    @property
    def active(self) -> bool: ...
    def round_trip_s(self, n_bytes: int) -> float: ...
    def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]: ...
    def exchange(self, n_bytes: int) -> tuple[float, float, float]: ...
    def agree(self, value: int) -> int: ...


def are_enough_trips(trips_s: Sequence[float]) -> bool:
    """Whether these round trips show the shortest one, or have been repeated often enough."""
    if len(trips_s) >= MOST_TRIPS or sum(trips_s) > MOST_TRIPS_S:
        return True
    shortest_s, *longer_s = sorted(trips_s)
    is_settled = not longer_s or longer_s[0] <= AGREEMENT * shortest_s
    return is_settled and sum(trips_s) > ENOUGH_TRIPS_S


class _Link:
    """A link under measurement, and the number of bytes that may still be sent over it.

    That number is equal on both ends, as they count the same messages.
    """

    def __init__(self, channel: End, budget_bytes: int) -> None:
        self.channel = channel
        # Trains that are repeated on a busy day must leave enough for a message of the longest
        # size: otherwise a rate that handshakes limit is taken for that of all longer messages.
        self._reserve_bytes = min(BASE_SIZES[-1], budget_bytes // 4)
        self.budget_left_bytes = budget_bytes - self._reserve_bytes
        self.gaps_s: dict[int, float] = {}
        self.lone_s: dict[int, float] = {}
        self.opened_bytes = 0  # most bytes that were in flight at once
        self._exchanged: dict[int, tuple[float, float, float]] = {}  # before their turn
        # Open TCP's window before anything is timed.
        n_bytes, n = _OPENING_TRAIN
        self.train(n_bytes, min(n, budget_bytes // (2 * n_bytes)))
        self.empty_s = self._empty_s()

    def _empty_s(self) -> float:
        trips_s: list[float] = []
        going = 1
        while going:
            trips_s.append(self.channel.round_trip_s(0))
            going = self.channel.agree(int(not are_enough_trips(trips_s)))
        return min(trips_s)

    def spend_reserve(self) -> None:
        """Allow to send what was held back for the longest of `BASE_SIZES`."""
        self.budget_left_bytes += self._reserve_bytes
        self._reserve_bytes = 0

    def is_far(self) -> bool:
        """Whether a round trip is so long that handshakes and windows show in a lone message."""
        return self.empty_s > ENOUGH_TRIPS_S

    def affords(self, n_bytes: int) -> bool:
        return n_bytes <= self.budget_left_bytes

    def exchange(self, n_bytes: int) -> tuple[float, float, float]:
        """Send a message and its answer; return the round trip, ``os`` and ``or``.

        Zeros on the passive end.
        """
        self.budget_left_bytes -= n_bytes
        return self.channel.exchange(n_bytes)

    def train(self, n_bytes: int, n_messages: int) -> tuple[float, float]:
        """Return the time of the first half of a train, and of all; zeros on the passive end."""
        self.budget_left_bytes -= n_bytes * n_messages
        self.opened_bytes = max(self.opened_bytes, n_bytes * n_messages)
        return self.channel.train(n_bytes, n_messages)

    def sample(self, n_bytes: int) -> Sample:
        """Measure the gap by trains, the one-way time by a lone message, and the overheads."""
        exchanged = self._exchanged.pop(n_bytes, None)
        lone_s, send_s, recv_s = exchanged or self.exchange(n_bytes)
        for _ in range(EXTRA_EXCHANGES):
            if not self.channel.agree(int(lone_s < SHORT_TRIP_S)) or not self.affords(8 * n_bytes):
                break
            again = self.exchange(n_bytes)
            lone_s, send_s, recv_s = map(min, (lone_s, send_s, recv_s), again)
        if not n_bytes:
            self.empty_s = min(self.empty_s, lone_s)  # of a far end, there was a single trip so far
        each_s = max(self._wire_s(n_bytes, lone_s), self._lower_bound_s(n_bytes), 5e-6)
        is_long = lone_s >= max(LONG_MESSAGE_S, 4 * self.empty_s)
        extrapolated_s = self._extrapolated_gap_s(n_bytes, lone_s)
        self.lone_s[n_bytes] = lone_s
        # To a far end, a train of one message shows no more than a lone one.
        fewest_bytes = (8 if self.channel.agree(int(self.is_far())) else 4) * n_bytes
        if self.channel.agree(int(is_long)):
            gap_s = each_s  # the gap of a long message is its time less the empty round trip
        elif self.channel.agree(int(extrapolated_s > 0)):
            gap_s = extrapolated_s
        elif not self.affords(fewest_bytes):
            gap_s = each_s
        else:
            fewest, most, lasts_s = 2, MOST_MESSAGES, max(self.empty_s, LEAST_TRAIN_S)
            if not n_bytes:
                most = MOST_EMPTY_MESSAGES if self.empty_s < SHORT_TRIP_S else MOST_EMPTY_IN_FLIGHT
            elif n_bytes < max(self.gaps_s):
                # Longer messages have shown whether a window limits, which takes a round trip.
                fewest, lasts_s = FEWEST_FOR_HALFWAY, min(lasts_s, LONG_TRAIN_S)
            wanted = math.ceil(1.2 * lasts_s / each_s)
            n = self.channel.agree(min(max(wanted, fewest), most))
            if n_bytes:
                n = max(min(n, self.budget_left_bytes // (4 * n_bytes)), 1)
            gap_s = self._gap_s(n_bytes, n, lone_s)
        self.gaps_s[n_bytes] = gap_s
        return Sample(gap_s, lone_s - self.empty_s / 2, send_s, recv_s)

    def _wire_s(self, n_bytes: int, lone_s: float) -> float:
        """Return about how long a wire takes for a message whose round trip took ``lone_s``.

        Over a long round trip, another one may have been a handshake. A short message tells.
        """
        short, over_s = min(BASE_SIZES[1:]), lone_s - self.empty_s
        is_longer = over_s > (1 - SAME_TRIP) * self.empty_s
        is_doubtful = self.is_far() and is_longer and n_bytes > short
        if not self.channel.agree(int(is_doubtful)) or not self.affords(short):
            return over_s
        if short in self.lone_s:
            short_s = self.lone_s[short]
        else:
            self._exchanged[short] = self.exchange(short)
            short_s = self._exchanged[short][0]
        by_short_s = (short_s - self.empty_s) * n_bytes / short
        return min(over_s, max(over_s - self.empty_s, by_short_s))

    def lone_sample(self, n_bytes: int, samples: Mapping[int, Sample]) -> Sample:
        """Measure a lone message of a size between two ``samples``; its gap is between theirs."""
        lone_s, send_s, recv_s = self.exchange(n_bytes)
        return Sample(_gap_between(n_bytes, samples), lone_s - self.empty_s / 2, send_s, recv_s)

    def sample_again(self, n_bytes: int, samples: dict[int, Sample]) -> None:
        """Repeat one of ``samples``; keep the one whose gap is nearer to those of other sizes.

        A disturbance may make a gap seem longer or shorter, as gaps are differences of two times.
        """
        before, again = samples[n_bytes], self.sample(n_bytes)
        expected_s = _gap_between(n_bytes, samples)
        samples[n_bytes] = min(before, again, key=lambda each: abs(each.gap_s - expected_s))

    def _agreed_gap_s(self, lone_s: float, train_s: float, n: int) -> float:
        """Return the gap on which a lone message and a train of ``n`` agree, 0 if they do not.

        Both times include an empty round trip at the end, and another one if there was a handshake.
        """
        for once_s in (self.empty_s, 2 * self.empty_s):
            alone_s, average_s = lone_s - once_s, (train_s - once_s) / n
            if alone_s > 0 and is_near(alone_s, average_s, AGREEMENT):
                return (alone_s + average_s) / 2
        return 0.0

    def _extrapolated_gap_s(self, n_bytes: int, lone_s: float) -> float:
        """Return the gap extrapolated from the largest size so far; 0 if it is not confirmed.

        A lone message confirms it if it takes longer than one of that size by as much as the gap or
        the time of that size predicts, or by no round trip more if that is long. Then there is no
        new window limit and no handshake, and trains, which take most of the time of a measurement,
        are not needed.
        """
        below = max(self.gaps_s, default=0)
        if not 0 < below < n_bytes or 0 not in self.gaps_s:
            return 0.0
        added_s, times = lone_s - self.lone_s[below], (n_bytes - below) / below
        by_gap_s = times * (self.gaps_s[below] - self.gaps_s[0])
        is_same_trip = abs(added_s - by_gap_s) < SAME_TRIP * self.empty_s
        if self.is_far() and is_same_trip and self._is_steady(below):
            return self.gaps_s[below] + by_gap_s
        alone_s = times * (self.lone_s[below] - self.empty_s)
        are_near = is_near(by_gap_s, alone_s, AGREEMENT_OF_BOTH)
        if is_near(added_s, by_gap_s, AGREEMENT) or (
            are_near and is_near(added_s, alone_s, AGREEMENT)
        ):
            return self.gaps_s[below] + (added_s + by_gap_s) / 2
        return 0.0

    def _is_steady(self, n_bytes: int) -> bool:
        """Whether messages of ``n_bytes`` have the rate of the next shorter ones.

        If they do not, the handshake of each may limit them, and longer ones are faster.
        """
        shorter = max(size for size in self.gaps_s if size < n_bytes)
        if not shorter:
            return False
        expected_s = self.gaps_s[shorter] * n_bytes / shorter
        return is_near(expected_s, self.gaps_s[n_bytes], AGREEMENT_OF_BOTH)

    def _lower_bound_s(self, n_bytes: int) -> float:
        """Return a lower bound of the gap, from longer messages; 0 if there are none.

        A single message does not show how a window slows a train.
        """
        longer = [size for size in self.gaps_s if size > n_bytes]
        return self.gaps_s[min(longer)] * n_bytes / min(longer) if longer else 0.0

    def _gap_s(self, n_bytes: int, n: int, lone_s: float) -> float:
        """Return the gap from trains of ``n`` and of 2n messages.

        If one of these trains agrees with a lone message, that is enough: the difference of two
        short trains is noisy, and windows open while the first one is under way.
        """
        if n >= FEWEST_FOR_HALFWAY:
            took_s, longer_s = self.train(n_bytes, 2 * n)
        else:
            took_s = longer_s = 0.0
            # The shorter train comes first if it opens the window further than earlier messages.
            for is_longer in (False, True) if n * n_bytes > self.opened_bytes else (True, False):
                n_messages = n + n * is_longer
                train_s = self.train(n_bytes, n_messages)[1]
                agreed_s = self._agreed_gap_s(lone_s, train_s, n_messages) if n_bytes else 0.0
                if self.channel.agree(int(agreed_s > 0)):
                    return agreed_s
                took_s, longer_s = (took_s, train_s) if is_longer else (train_s, longer_s)
        gap_s, is_plausible = gap_of_trains(took_s, longer_s, n, self.empty_s)
        if not n_bytes:
            return gap_s  # a few microseconds are less than the noise of a round trip
        if not self.channel.agree(int(is_plausible)) and self.affords(4 * n * n_bytes):
            # Handshakes and windows are a smaller part of a longer train.
            took_s, longer_s, n = longer_s, self.train(n_bytes, 4 * n)[1], 2 * n
            gap_s, is_plausible = gap_of_trains(took_s, longer_s, n, self.empty_s)
        if not self.channel.agree(int(is_plausible)) and self.affords(n * n_bytes):
            took_s = min(took_s, self.train(n_bytes, n)[1])
            gap_s, _ = gap_of_trains(took_s, longer_s, n, self.empty_s)
        return gap_s


def quick_plogp(channel: End, budget_bytes: int = BUDGET_BYTES) -> PLogP | None:
    """Return the link's pLogP on the active end, None on the other.

    Sizes are added where interpolation errs by more than `INTERPOLATION_TOLERANCE`: one between two
    sizes whose rates differ, some where a handshake begins, and larger ones while the rate still
    grows.
    """
    link = _Link(channel, budget_bytes)
    samples: dict[int, Sample] = {}
    *short, longest = BASE_SIZES
    for n_bytes in short:
        if len(samples) < 2 or link.affords(4 * n_bytes):
            samples[n_bytes] = link.sample(n_bytes)
    low, high = sorted(short)[1:]
    # The train that opened the window may have been slower than the link is.
    is_known = not {low, high} <= samples.keys() or not link.affords(8 * high)
    if not is_known and not channel.agree(int(_is_on_line(samples, low, high))):
        link.sample_again(high, samples)
        if not channel.agree(int(_is_on_line(samples, low, high))):
            middle = high // 2
            samples[middle] = link.sample(middle)
    link.spend_reserve()
    if link.affords(longest):
        samples[longest] = link.sample(longest)
    while middle := channel.agree(middle_of_step(samples, link.empty_s)):
        if not link.affords(middle):
            break
        samples[middle] = link.lone_sample(middle, samples)
    largest = max(samples)
    while low < largest < LARGEST_BYTES and link.affords(8 * largest):
        below = max(size for size in samples if size < largest)
        if channel.agree(int(_is_on_line(samples, below, largest))):
            break
        largest *= 2
        samples[largest] = link.sample(largest)
    for n_bytes in sorted(samples)[1:-1]:
        # If a size seems faster than longer ones, one of them may have been disturbed.
        doubtful = (
            samples[n_bytes].gap_s * largest
            < (1 - INTERPOLATION_TOLERANCE) * samples[largest].gap_s * n_bytes
        )
        if channel.agree(int(doubtful)) and link.affords(8 * n_bytes):
            link.sample_again(n_bytes, samples)
    return fit_samples(samples, link.empty_s) if channel.active else None


def _gap_between(n_bytes: int, samples: Mapping[int, Sample]) -> float:
    """Return the gap of a size by those of other ``samples``; beyond the largest, by its rate."""
    sizes = [size for size in sorted(samples) if size != n_bytes]
    gaps_s = [samples[size].gap_s for size in sizes]
    beyond = max(n_bytes / sizes[-1], 1.0)
    return float(np.interp(n_bytes, sizes, gaps_s) * beyond)


def _is_on_line(samples: Mapping[int, Sample], low: int, high: int) -> bool:
    """Whether the line through the gaps at 0 and ``low`` bytes gives the gap at ``high`` bytes.

    Then the gap is linear between them, and beyond, until something else limits.
    """
    start_s = samples[0].gap_s
    slope = max(samples[low].gap_s - start_s, 0.0) / low
    return (
        abs(start_s + slope * high - samples[high].gap_s)
        <= INTERPOLATION_TOLERANCE * samples[high].gap_s
    )
