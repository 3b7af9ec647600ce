"""Agreed points: calls at which all ranks learn how long the last calls took on all ranks.

Ranks stamp entry and exit of each call. At a call number that all ranks know, a non-blocking
maximum over ranks starts. It ends some calls later, also at a number that all know. It costs little
because it runs beside the calls in between. All decisions are taken there, from exchanged values
only.

Exchanges are rare if they are expensive, or if some were. So that a changed network does not go
unnoticed in between, ranks *watch*: after a few calls each, they exchange whether calls became much
longer. If so, the next exchange starts at once.
"""

from __future__ import annotations

import atexit
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI
from msgspec import Struct

from gridcoll.engine.waiting import EXIT_PATIENCE_S, wait_politely
from gridcoll.measure.learning.beliefs import median
from gridcoll.measure.learning.learner import REGRET_BUDGET
from gridcoll.measure.learning.offsets import N_SAMPLES, Offset

OVERHEAD_PART = 0.01
"""Exchanges may cost this fraction of the time in collectives."""

FIRST_CALLS = 4
"""Calls before the first agreed point."""

FEWEST_CALLS = 1
"""Fewest calls from the end of an exchange to the start of the next one. With long calls, every
call is exchanged."""

MOST_CALLS, MOST_WAIT_S = 1024, 0.05
"""Most calls from one exchange to the next; more if they take less than this time. Programs in C
make a thousand calls in a few milliseconds, and learning would take a large part of that."""

MOST_STAMPED = 256
"""Number of last calls that are exchanged, so that the message stays short. At most as many earlier
trials are added: trials come right after an agreed point, and hundreds of calls may follow."""

FIRST_LAG, FEWEST_LAG, MOST_LAG = 2, 1, 64
"""Calls between the start of an exchange and its end."""

N_LAST_EXCHANGES = 8
"""Number of exchanges over which the mean duration of calls is taken. The two or three calls of a
single exchange may all be short ones among long ones. The next exchange would then be set too many
calls ahead."""

N_LAST_CALLS = 64
"""Number of last calls whose median duration tells after how many calls an exchange has ended. With
a mean, one long call among short ones would make this number too small, and ranks would wait."""

LATENCIES_PER_EXCHANGE = 5.0
"""An exchange takes about this many latencies, because libraries reduce along trees of ranks. Each
step of such a tree may wait for a late rank."""

COMPARE_EVERY_S = 60.0
"""Clocks are compared again after this time, in which they drift by up to 3 ms. Once the drift is
known, the remaining error is less than that of a comparison on busy hosts, some 0.2 ms."""

WATCH_CALLS, WATCH_EVERY_S = 8, 0.25
"""Calls from one watch to the next; more if they take less than this time. A watch costs each rank
some 0.1 ms, and ends beside the next calls."""

FIRST_DEAF_CALLS = 16
"""After an alarm that came to nothing, alarms are ignored for this many calls; twice as many after
each further one."""

_N_HEAD = 12


class Stamp(NamedTuple):
    """A call as this rank saw it, in seconds of its own clock.

    ``tag`` and ``is_trial`` are the same on all ranks.
    """

    tag: object
    entry_s: float
    exit_s: float
    is_trial: bool = False


class _Stamps:
    """Stamps since the last exchange: of the last calls, and of trials before them."""

    def __init__(self) -> None:
        self._last: deque[Stamp] = deque()
        self._trials: list[Stamp] = []
        self._dropped: Stamp | None = None

    def add(self, stamp: Stamp) -> None:
        if len(self._last) == MOST_STAMPED:
            first = self._last.popleft()
            if first.is_trial and len(self._trials) < 2 * MOST_STAMPED:  # with the calls before
                self._trials += self._call_before()
                self._trials.append(first)
            else:
                self._dropped = first
        self._last.append(stamp)

    def last(self, n_calls: int) -> list[Stamp]:
        """Return the stamps of the last ``n_calls`` calls, at most; they stay."""
        return list(self._last)[-n_calls:]

    def take_all(self) -> list[Stamp]:
        """Remove and return all stamps, the oldest first."""
        stamps = [*self._trials, *self._call_before(), *self._last]
        self._trials.clear()
        self._last.clear()
        return stamps

    def _call_before(self) -> list[Stamp]:
        """Return the call that was dropped last, without its tag.

        Only the time when it ended is used, for the call after it.
        """
        dropped, self._dropped = self._dropped, None
        return [dropped._replace(tag=None)] if dropped else []


class Seen(NamedTuple):
    """A call on all ranks: time from last entry to last exit, and from first to last entry.

    Attributes
    ----------
    ended_s : float
        Its last exit on the common clock.
    behind_s : float
        Time from the last entry of the ranks that it needs to begin, to the last entry of all.
    whole_s : float
        Time from when it could begin to its last exit. It could begin when the ranks that it needs
        had entered and the call before had ended.
    """

    tag: object
    seconds: float
    skew_s: float
    ended_s: float
    behind_s: float
    whole_s: float


class Point(Struct, frozen=True):
    """An agreed point: what all ranks know now.

    Attributes
    ----------
    seen : list of Seen
        The calls since the last point; empty as long as there is no common clock.
    total_s : float
        Time of all calls since the last point, on the rank that spent most.
    overhead_s : float
        Cost of exchanges so far.
    on_clock : bool
        Whether all ranks have a common clock.
    same_knowledge : bool
        Whether all ranks have the same knowledge from earlier communicators.
    offer : Offer or None
        The offer of the ranks, if all made the same one.
    doubt, better : bool
        Whether any rank said so; see `RankMessage`.
    lost_s : float
        Time that calls took longer than allowed, on the rank that lost least. If ranks wait for a
        late one, that is the late one. 0 once there is a common clock, which shows more.
    built_s : float
        Time to build the plans of trials since the last point, on the rank that spent most.
    """

    seen: list[Seen]
    total_s: float
    overhead_s: float
    on_clock: bool
    same_knowledge: bool
    offer: Offer | None = None
    doubt: bool = False
    better: bool = False
    lost_s: float = 0.0
    built_s: float = 0.0


class Offer(NamedTuple):
    """What another communicator of this rank found (``what``), and its digest."""

    digest: float
    what: object


class RankMessage(NamedTuple):
    """What one rank sends in an exchange, besides its stamps.

    ``doubt``: the network may differ from the model. ``better``: a link is faster than in the
    model.
    """

    offer: Offer | None = None
    doubt: bool = False
    better: bool = False


class Alarm(NamedTuple):
    """What one rank says in a watch.

    ``slow``: calls take much longer, which one rank may be the only one to feel. ``fast``: calls
    take much less, which counts only if all ranks say so.
    """

    slow: bool = False
    fast: bool = False


class Agreed:
    """Stamps and exchanges of one communicator.

    Parameters
    ----------
    comm : MPI.Intracomm
        Its collectives are called in the same order by all ranks; ours are among them.
    latency_s : float
        The longest latency between its ranks.
    offset : Offset or None
        Common clock minus this rank's clock; None without a common clock.
    knowledge : float
        Digest of this rank's knowledge from earlier communicators.
    say : callable
        Returns what this rank sends in an exchange; called at its start.
    begins : callable
        Returns, for the tag of a call, whether the call cannot begin without this rank.
    allowed_s : callable
        Returns, for the tag of a call, the seconds it may take before its time counts as lost;
        infinite if it never does.
    watch : callable
        Returns what this rank says in a watch, from the stamps of the last `WATCH_CALLS` calls.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        latency_s: float,
        offset: Offset | None = None,
        knowledge: float = 0.0,
        say: Callable[[], RankMessage] = RankMessage,
        begins: Callable[[object], bool] = lambda _: True,
        allowed_s: Callable[[object], float] = lambda _: math.inf,
        watch: Callable[[Sequence[Stamp]], Alarm] = lambda _: Alarm(),
    ) -> None:
        self._say, self._begins, self._allowed_s = say, begins, allowed_s
        self._watch = watch
        self._comm, self._latency_s, self._knowledge = comm, latency_s, knowledge
        self._offset = offset
        self._compared_s: float | None = None
        self._ended_s = 0.0
        self.n_calls = self.n_points = 0
        self.total_s = self.overhead_s = 0.0
        self._since_s = self._own_waits_s = self._own_work_s = 0.0
        self._n_since, self._built_s = 0, 0.0
        self._stamps = _Stamps()
        self._due = self._next = FIRST_CALLS
        """The calls at which the next exchange is to start, and at which anything is to be done."""
        self._deaf_until, self._deaf_calls = 0, FIRST_DEAF_CALLS
        """The call up to which alarms are ignored, and for how many calls after the next one."""
        self._mean_call_s = 0.0
        self._lasted_s: deque[float] = deque(maxlen=N_LAST_CALLS)
        self._last: deque[tuple[float, int]] = deque(maxlen=N_LAST_EXCHANGES)
        self._late_s = deque([0.0, 0.0], maxlen=2)
        self._under_way: _Exchange | None = None
        self._watching: _Exchange | None = None

    def end(
        self, tag: object, entry_s: float, exit_s: float, *, is_trial: bool = False
    ) -> Point | None:
        """Enter a finished call; return the `Point` if this call is an agreed point, else None.

        Times are those of `time.monotonic`. Collective: all ranks make the same calls.
        """
        self._stamps.add(Stamp(tag, entry_s, exit_s, is_trial))
        self._since_s += exit_s - entry_s
        self.n_calls += 1
        if self.n_calls < self._next:
            return None
        began_s, point = time.monotonic(), None
        if self._under_way is not None:
            point = self._finish(self._under_way)
        elif self._watching is not None:
            self._end_watch(self._watching)
        elif self.n_calls < self._due:
            self._start_watch()
        else:
            self._start()
        self._own_waits_s += time.monotonic() - began_s
        return point

    def heed(self) -> None:
        """Do not ignore alarms: the last one was right. Equal on all ranks at an agreed point."""
        self._deaf_until, self._deaf_calls = 0, FIRST_DEAF_CALLS

    def _start_watch(self) -> None:
        alarm = self._watch(self._stamps.last(WATCH_CALLS))
        mine = np.array([float(alarm.slow), -float(alarm.fast)])
        self._watching = _Exchange(self._comm, mine, (), 0, None)
        self._next = self.n_calls + self._lag()

    def _end_watch(self, watch: _Exchange) -> None:
        any_slow, least_fast = watch.wait() * (1.0, -1.0)
        self._watching = None
        if (any_slow or least_fast) and self.n_calls >= self._deaf_until:
            self._deaf_until = self.n_calls + self._deaf_calls
            self._deaf_calls *= 2
            self._due = self.n_calls
        if self.n_calls >= self._due:
            self._start()
        else:
            self._await_watch()

    def _await_watch(self) -> None:
        n_calls = max(WATCH_CALLS, WATCH_EVERY_S / max(self._mean_call_s, 1e-9))
        self._next = min(self._due, self.n_calls + int(n_calls))

    @property
    def n_left(self) -> int:
        """Number of calls until the next agreed point, which must be entered by `end`."""
        return self._next - self.n_calls

    def take(self, stamps: Iterable[Stamp], n_calls: int, took_s: float) -> None:
        """Enter ``n_calls`` calls that ended before, none of them an agreed point.

        ``stamps`` are the last of them, at most `MOST_STAMPED`. ``took_s`` is the time of all.
        """
        for stamp in stamps:
            self._stamps.add(stamp)
        self._since_s += took_s
        self.n_calls += n_calls

    def spend(self, seconds: float, *, waiting: bool = False) -> None:
        """Add other costs of learning on this rank.

        ``waiting``: the time was mostly spent waiting for other ranks.
        """
        if waiting:
            self._own_waits_s += seconds
        else:
            self._own_work_s += seconds

    def spend_building(self, seconds: float) -> None:
        """Add the time that this rank took to build the plan of a trial."""
        self._built_s += seconds

    def _start(self) -> None:
        n_all = self.n_calls - self._n_since
        self._n_since = self.n_calls
        stamps = self._stamps.take_all()
        mine = np.empty(_N_HEAD + 4 * len(stamps))
        # The smallest wait of all ranks counts: longer ones are for a late rank. The largest work
        # counts: the next call waits for the last rank, and ranks that share cores take turns.
        on_clock = self._offset is not None
        said = self._say()
        digest = said.offer.digest if said.offer else 0.0
        mine[:_N_HEAD] = (
            *(self._since_s, -self._own_waits_s, self._own_work_s, 0.0 if on_clock else 1.0),
            *(self._knowledge, -self._knowledge, digest, -digest),
            *(float(said.doubt), float(said.better), 0.0 if on_clock else -self._lost_s(stamps)),
            self._built_s,
        )
        times = (self._offset or Offset()).common(
            np.array([(each.entry_s, each.exit_s) for each in stamps]).reshape(-1, 2)
        )
        mine[_N_HEAD::4], mine[_N_HEAD + 1 :: 4] = times[:, 0], times[:, 1]
        mine[_N_HEAD + 2 :: 4] = -times[:, 0]
        begins = [self._begins(each.tag) for each in stamps]
        mine[_N_HEAD + 3 :: 4] = np.where(begins, times[:, 0], -np.inf)
        self._since_s = self._built_s = 0.0
        tags = [each.tag for each in stamps]
        self._under_way = _Exchange(self._comm, mine, tags, n_all, said.offer)
        self._next = self.n_calls + self._lag()

    def _lost_s(self, stamps: Iterable[Stamp]) -> float:
        """Return the seconds that this rank's calls took longer than allowed; negative if less."""
        allowed = [(each, self._allowed_s(each.tag)) for each in stamps]
        return sum(
            each.exit_s - each.entry_s - most_s for each, most_s in allowed if most_s < math.inf
        )

    def _lag(self) -> int:
        """Return the number of calls until the exchange should have ended by itself."""
        if not self._mean_call_s:
            return FIRST_LAG
        step_s = self._latency_s + min(self._late_s)
        call_s = median(self._lasted_s) if self._lasted_s else self._mean_call_s
        n_calls = math.ceil(LATENCIES_PER_EXCHANGE * step_s / max(call_s, 1e-9))
        return min(max(n_calls, FEWEST_LAG), MOST_LAG)

    def _finish(self, exchange: _Exchange) -> Point:
        all_s = exchange.wait()
        self._under_way = None
        head = all_s[:_N_HEAD].tolist()
        total_s, waits_s, work_s, off_clock, most, least, newest, oldest, *rest = head
        doubt, better, negative_lost_s, built_s = rest
        self.n_points += 1
        self.total_s += total_s
        self.overhead_s = work_s - waits_s
        self._last.append((total_s, exchange.n_calls))
        self._mean_call_s = sum(s for s, _ in self._last) / sum(n for _, n in self._last)
        on_clock = not off_clock
        if not on_clock:
            self._offset = None  # no rank may use values that another rank does not have
        seen = self._see(exchange.tags, all_s[_N_HEAD:]) if on_clock else []
        if seen:
            if self._compared_s is None:
                self._compared_s = self._ended_s
            # The median: one call with a rank late by seconds says nothing about later calls.
            self._late_s.append(median(each.skew_s for each in seen))
            ends_s = [each.ended_s for each in seen]
            self._lasted_s += [max(b - a, 0.0) for a, b in itertools.pairwise(ends_s)]
        self._due = self.n_calls + self._interval()
        self._await_watch()
        return Point(
            *(seen, total_s, self.overhead_s, on_clock, most == -least),
            exchange.offer if newest == -oldest else None,
            *(bool(doubt), bool(better), max(-negative_lost_s, 0.0), built_s),
        )

    def _see(self, tags: Sequence[object], all_s: np.ndarray) -> list[Seen]:
        """Return the calls as all ranks saw them.

        ``all_s`` has the columns of `_start`, with the largest values of all ranks.
        """
        seen = []
        columns = [all_s[k::4].tolist() for k in range(4)]
        for tag, entry_s, exit_s, first_s, begun_s in zip(tags, *columns, strict=True):
            since_s = max(begun_s, min(self._ended_s, entry_s))
            seen.append(
                Seen(
                    *(tag, max(exit_s - entry_s, 1e-9), entry_s + first_s, exit_s),
                    *(entry_s - begun_s, max(exit_s - since_s, 1e-9)),
                )
            )
            self._ended_s = max(self._ended_s, exit_s)
        return seen

    @property
    def offset(self) -> Offset | None:
        """Common clock minus this rank's clock; None without a common clock."""
        return self._offset

    @offset.setter
    def offset(self, offset: Offset) -> None:
        self._offset, self._compared_s = offset, None

    @property
    def is_clock_due(self) -> bool:
        """Whether clocks are to be compared now; equal on all ranks at an agreed point."""
        return self._needs_clock and self.may_compare_clocks

    @property
    def _needs_clock(self) -> bool:
        """Whether there is no common clock, or it is too old."""
        since_s = self._ended_s if self._compared_s is None else self._compared_s
        return self._offset is None or self._ended_s - since_s >= COMPARE_EVERY_S

    @property
    def clock_cost_s(self) -> float:
        """Seconds that a comparison of clocks costs."""
        return 2 * N_SAMPLES * self._latency_s

    @property
    def may_compare_clocks(self) -> bool:
        """Whether that cost is within the fraction of time that exchanges may take.

        Without a common clock, nothing is learned. So the first comparison may cost as much as
        trials may, and counts as one of them.
        """
        if self._offset is None:
            return self.clock_cost_s <= REGRET_BUDGET * self.total_s
        return self.overhead_s + self.clock_cost_s <= OVERHEAD_PART * self.total_s

    def _interval(self) -> int:
        """Return the calls until the next exchange, so that all stay within `OVERHEAD_PART`."""
        one_s = self.overhead_s / self.n_points
        most = max(MOST_CALLS, MOST_WAIT_S / max(self._mean_call_s, 1e-9))
        if self._needs_clock:
            most = min(most, self.n_calls)  # check soon whether clocks may be compared
        needed_s = (self.overhead_s + one_s) / OVERHEAD_PART
        if self._offset is None:
            needed_s = max(needed_s, self.clock_cost_s / REGRET_BUDGET)
        elif self._needs_clock:
            needed_s += self.clock_cost_s / OVERHEAD_PART
        n_calls = (needed_s - self.total_s) / max(self._mean_call_s, 1e-9)
        return int(min(max(n_calls, FEWEST_CALLS), most))

    def close(self) -> None:
        """Wait for what is under way. Collective."""
        for each in (self._under_way, self._watching):
            if each is not None:
                each.wait()
        self._under_way = self._watching = None


class _Exchange:
    """One reduction under way."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        mine: np.ndarray,
        tags: Sequence[object],
        n_calls: int,
        offer: Offer | None,
    ) -> None:
        self.tags, self.n_calls, self.offer = tags, n_calls, offer
        self._all = np.empty_like(mine)
        self._mine = mine
        self._request = comm.Iallreduce(mine, self._all, MPI.MAX)
        _open_ending()
        _under_way[id(self)] = self.poll

    def poll(self) -> bool:
        """Return whether it has ended."""
        return bool(self._request.Test())

    def wait(self) -> np.ndarray:
        """Wait for its end, and return the largest values of all ranks."""
        wait_politely(self._request.Test)
        _under_way.pop(id(self), None)
        return self._all


_under_way: dict[int, Callable[[], bool]] = {}
_ending: list[int] = []


def _open_ending() -> None:
    """Ensure, once per process, that exchanges under way end before MPI does.

    If MPI ends at exit, `atexit` comes first. At an explicit Finalize, MPI calls back.
    """
    if not _ending:
        _ending.append(MPI.Comm.Create_keyval(delete_fn=_finish_all))
        MPI.COMM_SELF.Set_attr(_ending[0], True)
        atexit.register(_finish_all)


def _finish_all(*_: object) -> None:
    limit_s = time.monotonic() + EXIT_PATIENCE_S
    if not MPI.Is_finalized():
        wait_politely(
            lambda: all(poll() for poll in list(_under_way.values())) or time.monotonic() > limit_s
        )
