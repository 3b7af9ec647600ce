"""Agreed points: what all ranks saw of the calls since the last one, put together.

Ranks stamp entry and exit of each call. At a call number that all ranks know, a non-blocking
reduction of the largest values starts; some calls later, at a number that they know too, it is
there: the network carried it beside the calls between. So it costs next to no time. Whatever is
decided is decided there, by what was exchanged.
"""

from __future__ import annotations

import atexit
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_politely

OVERHEAD_PART = 0.01
"""Of the time in collectives: what exchanges may cost."""

FIRST_CALLS = 4
"""Until the first point."""

FEWEST_CALLS = 1
"""From the end of an exchange to the next one: calls that take a second are told of one by one."""

MOST_CALLS = 1024
MOST_STAMPED = 256
"""Of the calls between two points the last ones are exchanged, so that a message stays short."""

FIRST_LAG, FEWEST_LAG, MOST_LAG = 2, 1, 64
"""Calls between the start of an exchange and its end."""

LATENCIES = 5.0
"""An exchange takes so many latencies, about: libraries reduce along trees of ranks."""

EXIT_PATIENCE_S = 1.0
"""How long the end of a job waits for an exchange, in case another rank is no more."""

_N_HEAD = 9


class Stamp(NamedTuple):
    """A call as this rank saw it, in seconds of its own clock; ``tag`` is the same on all ranks."""

    tag: object
    entry_s: float
    exit_s: float


class Seen(NamedTuple):
    """A call as all ranks saw it: from its last entry to its last exit, and how late the last was.

    ``ended_s`` is its last exit on the common clock.
    """

    tag: object
    seconds: float
    skew_s: float
    ended_s: float


@dataclass(frozen=True)
class Point:
    """What all ranks know now.

    Attributes
    ----------
    seen : list of Seen
        Empty as long as there is no common clock.
    total_s : float
        Of all calls since the last point, as the rank that spent most saw them.
    overhead_s : float
        What exchanges cost so far.
    on_clock : bool
        Whether all ranks have a common clock.
    same_knowledge : bool
        Whether all ranks brought the same knowledge from before.
    offer : Offer or None
        What every rank had to offer, if it was the same.
    doubt, better : bool
        Whether any rank said so.
    """

    seen: list[Seen]
    total_s: float
    overhead_s: float
    on_clock: bool
    same_knowledge: bool
    offer: Offer | None = None
    doubt: bool = False
    better: bool = False


class Offer(NamedTuple):
    """Something that other calls of this rank found, and a digest of it."""

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
    offset_s : float or None
        What this rank's clock lacks of the common one; None without one.
    knowledge : float
        A digest of what this rank brings from before.
    say : callable
        Gives what this rank says at the start of an exchange.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        latency_s: float,
        offset_s: float | None = None,
        knowledge: float = 0.0,
        say: Callable[[], Said] = Said,
    ) -> None:
        self._say = say
        self._comm, self._latency_s, self._knowledge = comm, latency_s, knowledge
        self.offset_s = offset_s
        self.n_calls = self.n_points = 0
        self.total_s = self.overhead_s = 0.0
        self._since_s = self._own_overhead_s = 0.0
        self._n_since = 0
        self._stamps: list[Stamp] = []
        self._next = FIRST_CALLS
        self._mean_call_s = 0.0
        self._under_way: _Exchange | None = None

    def end(self, tag: object, entry_s: float, exit_s: float) -> Point | None:
        """A call is over, by `time.monotonic`; what all know where this is an agreed point.

        Collective: to be called alike on all ranks.
        """
        self._stamps.append(Stamp(tag, entry_s, exit_s))
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
        self._own_overhead_s += time.monotonic() - began_s
        return point

    def spend(self, seconds: float) -> None:
        """Count what else learning cost this rank."""
        self._own_overhead_s += seconds

    def _start(self) -> None:
        n_all = self.n_calls - self._n_since
        self._n_since = self.n_calls
        stamps, self._stamps = self._stamps[-MOST_STAMPED:], []
        offset_s = self.offset_s or 0.0
        mine = np.empty(_N_HEAD + 3 * len(stamps))
        # The smallest overhead: whoever waits longer waits for a rank that is late.
        on_clock = self.offset_s is not None
        said = self._say()
        digest = said.offer.digest if said.offer else 0.0
        mine[:_N_HEAD] = (
            *(self._since_s, -self._own_overhead_s, 0.0 if on_clock else 1.0),
            *(self._knowledge, -self._knowledge, digest, -digest),
            *(float(said.doubt), float(said.better)),
        )
        times = np.array([each[1:] for each in stamps]).reshape(-1, 2) + offset_s
        mine[_N_HEAD::3], mine[_N_HEAD + 1 :: 3] = times[:, 0], times[:, 1]
        mine[_N_HEAD + 2 :: 3] = -times[:, 0]
        self._since_s = 0.0
        tags = [each.tag for each in stamps]
        self._under_way = _Exchange(self._comm, mine, tags, n_all, said.offer)
        self._next = self.n_calls + self._lag()

    def _lag(self) -> int:
        """Calls until the exchange should have ended by itself."""
        if not self._mean_call_s:
            return FIRST_LAG
        n_calls = math.ceil(LATENCIES * self._latency_s / self._mean_call_s)
        return min(max(n_calls, FEWEST_LAG), MOST_LAG)

    def _finish(self, exchange: _Exchange) -> Point:
        all_s = exchange.wait()
        self._under_way = None
        head = all_s[:_N_HEAD].tolist()
        total_s, overhead_s, off_clock, most, least, newest, oldest, doubt, better = head
        self.n_points += 1
        self.total_s += total_s
        self.overhead_s = -overhead_s
        self._mean_call_s = total_s / exchange.n_calls
        on_clock = not off_clock
        if not on_clock:
            self.offset_s = None  # as no rank may use what another one lacks
        entries, exits, firsts = (all_s[_N_HEAD + k :: 3] for k in range(3))
        seen = [
            Seen(tag, max(exit_s - entry_s, 1e-9), entry_s + first_s, exit_s)
            for tag, entry_s, exit_s, first_s in zip(
                exchange.tags, entries.tolist(), exits.tolist(), firsts.tolist(), strict=True
            )
        ]
        self._next = self.n_calls + self._interval()
        return Point(
            *(seen if on_clock else [], total_s, self.overhead_s, on_clock, most == -least),
            exchange.offer if newest == -oldest else None,
            *(bool(doubt), bool(better)),
        )

    def _interval(self) -> int:
        """Calls until the next exchange starts, so that all of them stay within their part."""
        one_s = self.overhead_s / self.n_points
        enough_s = (self.overhead_s + one_s) / OVERHEAD_PART - self.total_s
        n_calls = enough_s / max(self._mean_call_s, 1e-9)
        return int(min(max(n_calls, FEWEST_CALLS), MOST_CALLS))

    def close(self) -> None:
        """Let what is under way end. Collective."""
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
    """Once per process: whatever ends MPI, exchanges under way end before.

    An MPI that ends by itself does so after Python; one that is told to calls back.
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
