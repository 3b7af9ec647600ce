"""Whether the network is another one than before, seen from calls that take what they never took.

A call is off when it takes longer or shorter than calls of its kind by the same arm did, by more
than their spread. One is nothing: a lost segment does that. Several in a row, in one direction, are
a network that changed. Two are enough where they lost more time than finding out would take.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable

from gridcoll.measure.learning.beliefs import Belief, median

FEWEST_BEFORE = 3
"""Observations of an arm before its calls can be off."""

SPREADS = 4.0
"""Off by so many standard deviations."""

LEAST_OFF = math.log(1.25)
"""And by at least this: a change of less changes no plan."""

N_IN_A_ROW = 3
"""Calls of one kind."""

N_TOGETHER, N_LAST = 4, 6
"""Or so many of the last few calls of all kinds."""


N_COSTLY = 2
"""Or so many in a row, of any kind, that lost `Drift.worth_s`: a link cut for a while is in one."""

MUCH_OFF = math.log(2.0)
"""Each of them by at least this: long calls lose much by their noise."""

N_USUAL = 12
"""Calls that a rank entered late, of one kind, that say what is usual."""

LATE_OFF = math.log(1.5)
"""Off by at least this, `N_TOGETHER` of a kind in a row: how late ranks come varies by itself."""

FIRST_WORTH_S = 1.0
"""Until a look at the links showed what it takes."""


class Drift:
    """Watches durations.

    Parameters
    ----------
    worth_s : float
        What it takes to find out what is wrong.
    """

    def __init__(self, worth_s: float = FIRST_WORTH_S) -> None:
        self.worth_s = worth_s
        self._lost_s: list[float] = []
        self._slow: list[Belief] = []
        self._in_a_row: dict[Hashable, int] = {}
        self._last: deque[int] = deque(maxlen=N_LAST)
        self._usual: dict[Hashable, deque[float]] = {}
        self._unusual: dict[Hashable, list[float]] = {}
        self.suspicion = 0
        """1 where calls take longer than they did, -1 where less; 0 while nothing is off."""
        self.doubt = False
        """Whether calls that ranks entered late take much longer: the network may be why."""

    def look(self, kind: Hashable, belief: Belief, seconds: float, noise: float) -> None:
        """Compare one duration with ``belief``, which does not have it yet."""
        if belief.n_observed < FEWEST_BEFORE:
            return
        off = math.log(max(seconds, 1e-9)) - belief.median_log
        sign = 0
        # The median of few observations is off itself.
        spread = noise * math.sqrt(1 + math.pi / 2 / belief.n_observed)
        if abs(off) > max(SPREADS * spread, LEAST_OFF):
            sign = 1 if off > 0 else -1
        before = self._in_a_row.get(kind, 0)
        self._in_a_row[kind] = before + sign if before * sign > 0 else sign
        self._last.append(sign)
        if sign > 0:
            self._slow.append(belief)
        if sign > 0 and off > MUCH_OFF:
            self._lost_s.append(seconds - math.exp(belief.median_log))
        else:
            self._lost_s.clear()
        if not any(self._last):
            self._slow.clear()
        if len(self._lost_s) >= N_COSTLY and sum(self._lost_s) >= self.worth_s:
            self.suspicion = 1
        if abs(self._in_a_row[kind]) >= N_IN_A_ROW or abs(sum(self._last)) >= N_TOGETHER:
            self.suspicion = sign or self.suspicion

    def look_late(self, kind: Hashable, seconds: float) -> None:
        """Compare a call that a rank entered late, from its first entry to its last exit.

        Ranks come late because the application worked, or because the call before reached them
        late. So this proves nothing, but is worth a look: in a loop of calls that wait for one
        another, a longer link is seen here and nowhere else.
        """
        log = math.log(max(seconds, 1e-9))
        usual = self._usual.setdefault(kind, deque(maxlen=N_USUAL))
        unusual = self._unusual.setdefault(kind, [])
        unusual.append(log)
        if len(usual) < N_USUAL or log - median(usual) <= LATE_OFF:
            usual.extend(unusual)
            unusual.clear()
        elif len(unusual) >= N_TOGETHER:
            self.doubt = True

    def take_doubt(self) -> bool:
        """Whether there was doubt; what is usual is learned anew then."""
        doubt, self.doubt = self.doubt, False
        if doubt:
            self._usual.clear()
            self._unusual.clear()
        return doubt

    def retract(self) -> None:
        """Beliefs lose the durations that made suspicious: they are of another network.

        To be called once all of them were entered.
        """
        for belief in self._slow:
            if belief.logs:
                belief.logs.pop()
        self._slow.clear()
