"""Detects a changed network by calls that take longer or shorter than ever before.

A call is off when its time differs from that of earlier calls of its kind by the same arm by more
than their spread. One such call means nothing: a lost segment can cause it. Several in a row in one
direction mean that the network changed; two are enough if they lost more time than a look at the
links takes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable

from gridcoll.measure.learning.beliefs import Belief, median

FEWEST_BEFORE = 3
"""An arm needs so many observations before a call can be off."""

SPREADS = 4.0
"""A call is off by at least so many standard deviations,"""

LEAST_OFF = math.log(1.25)
"""and by at least this log ratio: a smaller change changes no plan."""

N_IN_A_ROW = 3
"""A change needs so many calls of one kind in a row that are off,"""

N_TOGETHER, N_LAST = 4, 6
"""or so many of the last few calls of all kinds,"""


N_COSTLY = 2
"""or so many in a row, of any kind, that lost `Drift.worth_s` in all."""

MUCH_OFF = math.log(2.0)
"""Each of these is off by at least this log ratio: the noise of long calls alone loses much
time."""

N_USUAL = 12
"""So many calls of one kind with a late rank show what is usual."""

LATE_OFF = math.log(1.5)
"""`N_TOGETHER` late calls of a kind in a row, off by at least this, are a doubt: lateness varies by
itself."""

FIRST_WORTH_S = 1.0
"""Assumed cost of a look at the links, until one was measured."""


class Drift:
    """Watches durations; ``worth_s`` is what a look at the links costs."""

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
        """Whether calls with a late rank take much longer: the network may be the cause."""

    def look(
        self, kind: Hashable, belief: Belief, seconds: float, noise: float, *, enters: bool = True
    ) -> None:
        """Compare one duration with ``belief``, before it is entered there, or is not."""
        if belief.n_observed < FEWEST_BEFORE:
            return
        off = math.log(max(seconds, 1e-9)) - belief.median_log
        sign = 0
        # The median of few observations has an error itself.
        spread = noise * math.sqrt(1 + math.pi / 2 / belief.n_observed)
        if abs(off) > max(SPREADS * spread, LEAST_OFF):
            sign = 1 if off > 0 else -1
        before = self._in_a_row.get(kind, 0)
        self._in_a_row[kind] = before + sign if before * sign > 0 else sign
        self._last.append(sign)
        if sign > 0 and enters:
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
        """Whether there was doubt; after a doubt, what is usual is learned again."""
        doubt, self.doubt = self.doubt, False
        if doubt:
            self._usual.clear()
            self._unusual.clear()
        return doubt

    def retract(self) -> None:
        """Remove the suspicious durations from beliefs: they belong to the changed network.

        To be called once all of them were entered.
        """
        for belief in self._slow:
            belief.retract()
        self._slow.clear()
