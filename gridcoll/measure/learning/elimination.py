"""Calls of one kind: which arm leads, which are eliminated, which one to try next.

Sequential elimination: an arm is out once the leader is faster with the given confidence. A trial
costs regret, the time that it takes longer than the leader. An arm is not tried if its expected
regret exceeds the rest of the budget, or what it may gain in as many calls as there were: nothing
else is known of how many will come. No arm takes less than the network allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gridcoll.measure.learning.beliefs import (
    N_KEPT,
    Arm,
    Belief,
    Shift,
    expected_gain,
    noise_of,
    probability_faster,
)

CONFIDENCE = 0.95
"""Probability that the arm which is left is the fastest one, up to `INDIFFERENT`."""

INDIFFERENT = 0.02
"""A log ratio of times that is worth neither a trial nor a change."""

CHANGE_PROBABILITY = 0.75
"""An arm leads when it is faster than the leader with this probability."""

BELOW_LIMIT = 0.05
"""A leader that takes less than the limit by more than this log ratio shows that the limit is
wrong: the network is not as the model says. More than the noise of a call. On 12 random grids with
a link that was taken for three times as fast or slow (`benchmarks/learning_simulated.py`), 0.02 to
0.1 differ by a hundredth; from 0.2 on the worst grid stays at 1.9 times the best way, not 1.7."""

COLD = 0.1
"""A trial takes so much longer than later calls by the same arm, as a part of the leader's time:
windows of its connections have closed, and its plan may have to be written. On three sites first
calls took 5 to 25 % longer than later ones, up to 0.12 of each of two trials. Nothing hangs on it:
on those 12 grids 0 to 0.4 differ by a hundredth in calls 1 to 200, by two in the next 200."""

MOST_SKEWED = 4
"""Calls with a late rank decide where there are more than so many times the others. What they take
depends on how late it was, and on the call before: on three sites, broadcasts of 8 KiB took 1 to 26
ms by the same plan, and in an application of many kinds of calls half of them were such ones."""

TRIAL_CALLS = 2
"""Trials in a row; by the next agreed point more is known."""


@dataclass
class Trial:
    """Trials to come: calls by an arm that does not lead."""

    arm: int
    n_left: int


class Race:
    """The arms of calls of one kind. The first arm leads at the start.

    Durations of calls with a late rank (see `Observation`) are kept apart, as they cannot be
    compared with others. They decide where nearly all calls are such ones.

    ``limit_s``: no arm takes less time; 0 where that is not known.
    """

    def __init__(self, arms: Sequence[Arm], limit_s: float = 0.0) -> None:
        self.leader = 0
        self.limit_s = limit_s
        self.alive = set(range(len(arms)))
        self.trial: Trial | None = None
        self._by_skew = [[Belief(arm) for arm in arms] for _ in range(2)]
        self._n_by_skew = [0, 0]
        self._noise: float | None = None

    @property
    def is_skewed(self) -> bool:
        """Whether a rank was late in nearly all calls. Such calls take less than predicted."""
        clean, skewed = self._n_by_skew
        return skewed > MOST_SKEWED * clean

    @property
    def beliefs(self) -> list[Belief]:
        """Beliefs of all arms, from comparable calls."""
        return self._by_skew[self.is_skewed]

    @property
    def clean(self) -> list[Belief]:
        """Beliefs of all arms, from calls without a late rank."""
        return self._by_skew[False]

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of one duration."""
        if self._noise is None:
            self._noise = noise_of(self.beliefs)
        return self._noise

    def observe(self, arm: int, seconds: float, skewed: bool) -> None:
        """Enter one duration."""
        self._by_skew[skewed][arm].observe(seconds)
        self._n_by_skew[skewed] += 1
        self._noise = None

    def n_calls(self, arm: int) -> int:
        """Number of observed calls."""
        return sum(beliefs[arm].n_calls for beliefs in self._by_skew)

    def forget(self) -> None:
        """Start again with all arms: the network changed."""
        for beliefs in self._by_skew:
            for belief in beliefs:
                belief.forget()
        self._n_by_skew, self._noise = [0, 0], None
        self.alive = set(range(len(self._by_skew[0])))
        self.trial = None

    def next_arm(self) -> int:
        """The arm for the next call; counts the call. Same calls on all ranks."""
        if self.trial is None:
            return self.leader
        arm = self.trial.arm
        self.trial.n_left -= 1
        if not self.trial.n_left:
            self.trial = None
        return arm

    def expected_s(self, arm: int) -> float:
        """Expected time of a call by ``arm``."""
        mean, deviation = self.beliefs[arm].posterior(self.noise)
        return math.exp(mean + deviation**2 / 2)

    def settle(self) -> bool:
        """Eliminate arms that cannot win, and let the fastest lead; returns whether the leader
        changed.
        """
        noise, former = self.noise, self.leader
        if self.is_skewed and self.beliefs[former].n_observed:
            # Skewed calls take another time than predicted: predictions only rank arms.
            shift = Shift(self.beliefs[former].log_ratio())
            for belief in self.beliefs:
                belief.shift = shift
        known = [belief.posterior(noise) for belief in self.beliefs]
        told = [arm for arm in sorted(self.alive) if self.beliefs[arm].is_told]
        for arm in sorted(told, key=lambda arm: (known[arm][0], arm)):
            mine, leader = known[arm], known[self.leader]
            ahead = mine[0] < leader[0] - INDIFFERENT / 2
            if ahead and probability_faster(mine, leader) >= CHANGE_PROBABILITY:
                self.leader = arm
                break
        mean, deviation = known[self.leader]
        most = self._most_gain()
        if most < -BELOW_LIMIT:
            self.limit_s = 0.0
        # An arm is out even if it may be faster by this little.
        goal = (mean - INDIFFERENT, deviation)
        least = (1 - CONFIDENCE) / max(len(known) - 1, 1)
        out = {arm for arm in self.alive if probability_faster(known[arm], goal) < least}
        if -BELOW_LIMIT <= most <= INDIFFERENT:
            out = self.alive
        self.alive = (self.alive - out) | {self.leader}
        if self.trial is not None and self.trial.arm not in self.alive:
            self.trial = None
        return self.leader != former

    def _most_gain(self) -> float:
        """Logarithm of the leader's time over the limit; infinite where one is not known."""
        leader = self.beliefs[self.leader]
        if not self.limit_s or self.is_skewed or not leader.n_observed:
            return math.inf
        return leader.median_log - math.log(self.limit_s)

    def plan_trial(self, budget_s: float, n_to_come: float | None = None) -> float:
        """Choose what is tried next for at most ``budget_s`` of expected regret; returns that.

        ``n_to_come``: how many calls profit; by default as many as there were.
        """
        if self.trial is not None or len(self.alive) == 1:
            return 0.0
        beliefs, noise = self.beliefs, self.noise
        if not beliefs[self.leader].n_observed:
            return 0.0  # its calls come first, at no regret
        open_arms = [
            arm
            for arm in sorted(self.alive)
            if arm != self.leader and beliefs[arm].n_observed < N_KEPT
        ]
        leader_s = self.expected_s(self.leader)
        leader = beliefs[self.leader].posterior(noise)
        if n_to_come is None:
            n_to_come = sum(map(self.n_calls, range(len(beliefs))))
        most = max(self._most_gain(), 0.0)

        def least(arm: int) -> tuple[float, int]:
            mean, deviation = beliefs[arm].posterior(noise)
            return mean - deviation, arm

        for arm in sorted(open_arms, key=least):
            more_s = max(0.0, self.expected_s(arm) - leader_s) + COLD * leader_s
            regret_s = TRIAL_CALLS * more_s
            gain = expected_gain(beliefs[arm].posterior(noise), leader, most)
            worth_s = n_to_come * leader_s * max(gain, 1e-12)
            if regret_s <= min(budget_s, worth_s):
                self.trial = Trial(arm, TRIAL_CALLS)
                return regret_s
        return 0.0
