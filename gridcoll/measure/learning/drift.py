"""Detect a changed network by calls that take longer or shorter than before.

A call is off if its time differs from that of earlier calls of its kind by the same arm by more
than their spread. One such call means nothing: a lost segment can cause it. Several in a row in one
direction mean that the network changed. Two are enough if they lost more time than a look at the
links takes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from gridcoll.measure.learning.beliefs import Belief, median

FEWEST_BEFORE = 3
"""Observations of an arm that are needed before a call can be off."""

LEAST_SPREADS = 4.0
"""A call that is off differs by at least this many standard deviations,"""

LEAST_DEVIATION = math.log(1.25)
"""and by at least this log ratio: a smaller change changes no plan."""

N_IN_A_ROW = 3
"""The network has changed if this many calls of one kind in a row are off,"""

N_OF_LAST, N_LAST = 4, 6
"""or if `N_OF_LAST` of the last `N_LAST` calls of all kinds are off in one direction,"""


N_COSTLY = 2
"""or if this many calls in a row, of any kind, lost `Drift.worth_s` in all."""

LARGE_DEVIATION = math.log(2.0)
"""Each of these costly calls is off by at least this log ratio: the mere noise of long calls also
loses much time."""

N_USUAL = 12
"""Calls of one kind with a late rank that are needed to know what is usual."""

LEAST_LOST = 0.25
"""Calls that are off have lost or gained at least this part of `Drift.worth_s` in all: a look that
finds nothing costs no more than four times what was lost."""

N_SURE = 5
"""This many calls of one kind in a row are enough, whatever they lost."""

LATE_DEVIATION = math.log(1.5)
"""`N_OF_LAST` calls of a kind with a late rank in a row are a doubt if they are off by at least
this log ratio. It is large because lateness varies by itself."""

FIRST_WORTH_S = 1.0
"""Assumed cost of a look at the links, until one has been measured."""


class _Row(NamedTuple):
    """Calls that are off in one direction."""

    n_calls: int = 0
    """Negative for calls that take less time."""
    seconds: float = 0.0
    """How much longer they took in all, or how much less time."""


class Drift:
    """Watches durations; ``worth_s`` is what a look at the links costs."""

    def __init__(self, worth_s: float = FIRST_WORTH_S) -> None:
        self.worth_s = worth_s
        self._lost_s: list[float] = []
        self._slow: list[Belief] = []
        self._in_a_row: dict[Hashable, _Row] = {}
        self._last: deque[_Row] = deque(maxlen=N_LAST)
        self._usual: dict[Hashable, deque[float]] = {}
        self._unusual: dict[Hashable, list[float]] = {}
        self.suspicion = 0
        """1 if calls take longer than before, -1 if they take less, 0 while nothing is off."""
        self.doubt = False
        """Whether calls with a late rank take much longer: the network may be the cause."""

    def look(
        self, kind: Hashable, belief: Belief, seconds: float, noise: float, *, enters: bool = True
    ) -> None:
        """Compare one duration with ``belief``, before it is entered there.

        ``enters``: whether it will be.
        """
        if belief.n_observed < FEWEST_BEFORE:
            return
        deviation = math.log(max(seconds, 1e-9)) - belief.median_log
        sign = 0
        # The median of few observations has an error itself.
        spread = noise * math.sqrt(1 + math.pi / 2 / belief.n_observed)
        if abs(deviation) > max(LEAST_SPREADS * spread, LEAST_DEVIATION):
            sign = 1 if deviation > 0 else -1
        more_s = abs(seconds - math.exp(belief.median_log)) if sign else 0.0
        row = self._in_a_row.get(kind, _Row())
        if row.n_calls * sign <= 0:
            row = _Row()
        row = self._in_a_row[kind] = _Row(row.n_calls + sign, row.seconds + more_s)
        self._last.append(_Row(sign, more_s))
        if sign > 0 and enters:
            self._slow.append(belief)
        if sign > 0 and deviation > LARGE_DEVIATION:
            self._lost_s.append(more_s)
        else:
            self._lost_s.clear()
        if not any(each.n_calls for each in self._last):
            self._slow.clear()
        if len(self._lost_s) >= N_COSTLY and sum(self._lost_s) >= self.worth_s:
            self.suspicion = 1
        last = _Row(*map(sum, zip(*self._last, strict=True)))
        enough_s = LEAST_LOST * self.worth_s
        if (
            abs(row.n_calls) >= N_SURE
            or (abs(row.n_calls) >= N_IN_A_ROW and row.seconds >= enough_s)
            or (abs(last.n_calls) >= N_OF_LAST and last.seconds >= enough_s)
        ):
            self.suspicion = sign or self.suspicion

    def look_late(self, kind: Hashable, seconds: float) -> None:
        """Compare the duration of a call with a late rank, from its first entry to its last exit.

        A rank is late because the application worked, or because the call before reached it late.
        So this proves nothing, but justifies a look at the links: in a loop of calls that wait for
        one another, a longer latency shows only here.
        """
        log = math.log(max(seconds, 1e-9))
        usual = self._usual.setdefault(kind, deque(maxlen=N_USUAL))
        unusual = self._unusual.setdefault(kind, [])
        unusual.append(log)
        if len(usual) < N_USUAL or log - median(usual) <= LATE_DEVIATION:
            usual.extend(unusual)
            unusual.clear()
        elif len(unusual) >= N_OF_LAST:
            self.doubt = True

    def take_doubt(self) -> bool:
        """Return whether there was a doubt, and clear it.

        After a doubt, the usual durations are learned again.
        """
        doubt, self.doubt = self.doubt, False
        if doubt:
            self._usual.clear()
            self._unusual.clear()
        return doubt

    def is_alarm(self, differences_s: Sequence[float]) -> bool:
        """Whether calls that differ so much from usual ones are reason to compare all ranks."""
        seconds, n_calls = sum(differences_s), len(differences_s)
        if n_calls >= N_OF_LAST:
            return seconds >= LEAST_LOST * self.worth_s
        return n_calls >= N_COSTLY and seconds >= self.worth_s

    def retract(self) -> None:
        """Remove the suspicious durations from beliefs, because they belong to the changed network.

        To be called after all of them have been entered.
        """
        for belief in self._slow:
            belief.retract()
        self._slow.clear()
