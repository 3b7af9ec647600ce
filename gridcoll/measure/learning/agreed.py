"""Agreed points: calls at which all ranks learn how long the last calls took on all ranks.

Ranks stamp entry and exit of each call. At a call number that all ranks know, a non-blocking
maximum over ranks starts. It ends some calls later, at a number known to all, too: the network did
it beside the calls between, so that it costs little. All decisions are taken there, by exchanged
values only.
"""

from __future__ import annotations

import atexit
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_politely
from gridcoll.measure.learning.beliefs import median
from gridcoll.measure.learning.offsets import N_SAMPLES, Offset

OVERHEAD_PART = 0.01
"""Exchanges may cost this part of the time in collectives."""

FIRST_CALLS = 4
"""Calls before the first agreed point."""

FEWEST_CALLS = 1
"""Calls from the end of an exchange to the next one, at least; with long calls, every call is
exchanged."""

MOST_CALLS, MOST_WAIT_S = 1024, 0.05
"""Calls from one exchange to the next, at most; more where so many take less than this: programs in
C make a thousand in a few milliseconds, of which learning would be no small part."""

MOST_STAMPED = 256
"""So many calls are exchanged, the last ones, so that the message stays short; and at most as many
trials that came before. Trials come right after an agreed point: hundreds of calls may follow."""

FIRST_LAG, FEWEST_LAG, MOST_LAG = 2, 1, 64
"""Calls between the start of an exchange and its end."""

N_LAST = 8
"""How long calls are is known by those of so many exchanges: of a single one, two or three calls,
all may be short ones among long ones, and the next exchange, so many calls later, far away."""

LATENCIES = 5.0
"""An exchange takes about so many latencies, as libraries reduce along trees of ranks. Each step of
such a tree may wait for a rank that is late."""

COMPARE_EVERY_S = 60.0
"""Clocks are compared again after so long: by then they have drifted by up to 3 ms. With the drift
known, what is left is less than the error of a comparison on busy hosts, some 0.2 ms."""

EXIT_PATIENCE_S = 1.0
"""How long the end of a job waits for an exchange, in case another rank is no more."""

_N_HEAD = 11


class Stamp(NamedTuple):
    """A call as this rank saw it, in seconds of its own clock; ``tag`` and ``is_trial`` are the
    same on all ranks.
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

    def take_all(self) -> list[Stamp]:
        """All of them, the oldest first."""
        stamps = [*self._trials, *self._call_before(), *self._last]
        self._trials.clear()
        self._last.clear()
        return stamps

    def _call_before(self) -> list[Stamp]:
        """The call dropped last, without its tag: only when it ended says something, of the next
        one.
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
        From the last entry of those without whom it cannot begin to the last one of all.
    whole_s : float
        From when it could begin to its last exit: they had come, and the call before had ended.
    """

    tag: object
    seconds: float
    skew_s: float
    ended_s: float
    behind_s: float
    whole_s: float


@dataclass(frozen=True)
class Point:
    """What all ranks know now.

    Attributes
    ----------
    seen : list of Seen
        Empty as long as there is no common clock.
    total_s : float
        Time of all calls since the last point, on the rank that spent most.
    overhead_s : float
        Cost of exchanges so far.
    on_clock : bool
        Whether all ranks have a common clock.
    same_knowledge : bool
        Whether all ranks have the same knowledge from earlier communicators.
    offer : Offer or None
        What ranks offered, if all offered the same.
    doubt, better : bool
        Whether any rank said so.
    lost_s : float
        What calls took longer than allowed, on the rank that lost least: where ranks wait for a
        late one, the late one loses least. 0 once there is a common clock, which tells more.
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


class Offer(NamedTuple):
    """What another communicator of this rank found, and its digest."""

    digest: float
    what: object


class Said(NamedTuple):
    """What one rank says at the start of an exchange, besides its stamps.

    ``doubt``: the network is not what the model says; ``better``: a link is faster than that.
    """

    offer: Offer | None = None
    doubt: bool = False
    better: bool = False


class Agreed:
    """Stamps and exchanges of one communicator.

    Parameters
    ----------
    comm : MPI.Intracomm
        Its collectives are called in the same order by all ranks; ours are among them.
    latency_s : float
        The longest one way between its ranks.
    offset : Offset or None
        Common clock minus this rank's clock; None without a common clock.
    knowledge : float
        Digest of this rank's knowledge from earlier communicators.
    say : callable
        Gives what this rank says at the start of an exchange.
    begins : callable
        Whether a call cannot begin without this rank, by its tag.
    allowed_s : callable
        What a call may take before it counts as lost time, by its tag; infinite if it never does.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        latency_s: float,
        offset: Offset | None = None,
        knowledge: float = 0.0,
        say: Callable[[], Said] = Said,
        begins: Callable[[object], bool] = lambda _: True,
        allowed_s: Callable[[object], float] = lambda _: math.inf,
    ) -> None:
        self._say, self._begins, self._allowed_s = say, begins, allowed_s
        self._comm, self._latency_s, self._knowledge = comm, latency_s, knowledge
        self._offset = offset
        self._compared_s: float | None = None
        self._ended_s = 0.0
        self.n_calls = self.n_points = 0
        self.total_s = self.overhead_s = 0.0
        self._since_s = self._own_waits_s = self._own_work_s = 0.0
        self._n_since = 0
        self._stamps = _Stamps()
        self._next = FIRST_CALLS
        self._mean_call_s = 0.0
        self._last: deque[tuple[float, int]] = deque(maxlen=N_LAST)
        self._late_s = deque([0.0, 0.0], maxlen=2)
        self._under_way: _Exchange | None = None

    def end(
        self, tag: object, entry_s: float, exit_s: float, *, is_trial: bool = False
    ) -> Point | None:
        """Enter a finished call, times by `time.monotonic`; the `Point`, if this call is an agreed
        point.

        Collective: to be called alike on all ranks.
        """
        self._stamps.add(Stamp(tag, entry_s, exit_s, is_trial))
        self._since_s += exit_s - entry_s
        self.n_calls += 1
        if self.n_calls < self._next:
            return None
        began_s = time.monotonic()
        if self._under_way is None:
            self._start()
            point = None
        else:
            point = self._finish(self._under_way)
        self._own_waits_s += time.monotonic() - began_s
        return point

    @property
    def n_left(self) -> int:
        """Calls until the next agreed point, which must be entered by `end`."""
        return self._next - self.n_calls

    def take(self, stamps: Iterable[Stamp], n_calls: int, took_s: float) -> None:
        """Enter calls that ended before, none of them an agreed point.

        ``stamps`` are the last of ``n_calls``, at most `MOST_STAMPED`; all of them took ``took_s``.
        """
        for stamp in stamps:
            self._stamps.add(stamp)
        self._since_s += took_s
        self.n_calls += n_calls

    def spend(self, seconds: float, *, waiting: bool = False) -> None:
        """Add other costs of learning on this rank; ``waiting``: most of it, for other ranks."""
        if waiting:
            self._own_waits_s += seconds
        else:
            self._own_work_s += seconds

    def _start(self) -> None:
        n_all = self.n_calls - self._n_since
        self._n_since = self.n_calls
        stamps = self._stamps.take_all()
        mine = np.empty(_N_HEAD + 4 * len(stamps))
        # Of waits, the smallest of all ranks: a longer one is for a late rank. Of work, the
        # largest: the next call waits for the last one, and ranks that share cores take turns.
        on_clock = self._offset is not None
        said = self._say()
        digest = said.offer.digest if said.offer else 0.0
        mine[:_N_HEAD] = (
            *(self._since_s, -self._own_waits_s, self._own_work_s, 0.0 if on_clock else 1.0),
            *(self._knowledge, -self._knowledge, digest, -digest),
            *(float(said.doubt), float(said.better), 0.0 if on_clock else -self._lost_s(stamps)),
        )
        times = (self._offset or Offset()).common(
            np.array([(each.entry_s, each.exit_s) for each in stamps]).reshape(-1, 2)
        )
        mine[_N_HEAD::4], mine[_N_HEAD + 1 :: 4] = times[:, 0], times[:, 1]
        mine[_N_HEAD + 2 :: 4] = -times[:, 0]
        begins = [self._begins(each.tag) for each in stamps]
        mine[_N_HEAD + 3 :: 4] = np.where(begins, times[:, 0], -np.inf)
        self._since_s = 0.0
        tags = [each.tag for each in stamps]
        self._under_way = _Exchange(self._comm, mine, tags, n_all, said.offer)
        self._next = self.n_calls + self._lag()

    def _lost_s(self, stamps: Iterable[Stamp]) -> float:
        """What this rank's calls took longer than allowed; negative if less."""
        allowed = [(each, self._allowed_s(each.tag)) for each in stamps]
        return sum(
            each.exit_s - each.entry_s - most_s for each, most_s in allowed if most_s < math.inf
        )

    def _lag(self) -> int:
        """Calls until the exchange should have ended by itself."""
        if not self._mean_call_s:
            return FIRST_LAG
        step_s = self._latency_s + min(self._late_s)
        n_calls = math.ceil(LATENCIES * step_s / self._mean_call_s)
        return min(max(n_calls, FEWEST_LAG), MOST_LAG)

    def _finish(self, exchange: _Exchange) -> Point:
        all_s = exchange.wait()
        self._under_way = None
        head = all_s[:_N_HEAD].tolist()
        total_s, waits_s, work_s, off_clock, most, least, newest, oldest, *rest = head
        doubt, better, spared_s = rest
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
            # One call with a rank that is late by seconds says nothing of those to come.
            self._late_s.append(median(each.skew_s for each in seen))
        self._next = self.n_calls + self._interval()
        return Point(
            *(seen, total_s, self.overhead_s, on_clock, most == -least),
            exchange.offer if newest == -oldest else None,
            *(bool(doubt), bool(better), max(-spared_s, 0.0)),
        )

    def _see(self, tags: Sequence[object], all_s: np.ndarray) -> list[Seen]:
        """Calls as all ranks saw them; ``all_s`` as `_start` has it, largest values."""
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
        """Whether there is no common clock, or it is old."""
        since_s = self._ended_s if self._compared_s is None else self._compared_s
        return self._offset is None or self._ended_s - since_s >= COMPARE_EVERY_S

    @property
    def clock_cost_s(self) -> float:
        """What a common clock costs."""
        return 2 * N_SAMPLES * self._latency_s

    @property
    def may_compare_clocks(self) -> bool:
        """Whether that is within the part that exchanges may cost."""
        return self.overhead_s + self.clock_cost_s <= OVERHEAD_PART * self.total_s

    def _interval(self) -> int:
        """Calls until the next exchange starts, so that all of them stay within their part."""
        one_s = self.overhead_s / self.n_points
        most = max(MOST_CALLS, MOST_WAIT_S / max(self._mean_call_s, 1e-9))
        if self._needs_clock:
            # Save for it, and look soon whether that will do: without one nothing is learned.
            one_s += self.clock_cost_s
            most = min(most, self.n_calls)
        enough_s = (self.overhead_s + one_s) / OVERHEAD_PART - self.total_s
        n_calls = enough_s / max(self._mean_call_s, 1e-9)
        return int(min(max(n_calls, FEWEST_CALLS), most))

    def close(self) -> None:
        """Wait for the exchange under way. Collective."""
        if self._under_way is not None:
            self._under_way.wait()
            self._under_way = None


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
        """Whether it is over."""
        return bool(self._request.Test())

    def wait(self) -> np.ndarray:
        """The largest values of all ranks."""
        wait_politely(self._request.Test)
        _under_way.pop(id(self), None)
        return self._all


_under_way: dict[int, Callable[[], bool]] = {}
_ending: list[int] = []


def _open_ending() -> None:
    """Register, once per process, that exchanges under way end before MPI does.

    If MPI ends at exit, it does so after Python; after an explicit Finalize it calls back.
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
