"""Calls of one kind: which arm leads, which are out, and which one to try next.

Sequential elimination: an arm is out once it is faster than the leader with a probability of less
than what the confidence leaves. Trying an arm costs regret, time that the leader would not have
taken; so nothing is tried whose expected regret is more than what is left of the budget.
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
    noise_of,
    probability_faster,
)

CONFIDENCE = 0.95
"""That the arm which is left is the fastest one, but for `INDIFFERENT`."""

INDIFFERENT = 0.02
"""Log of a ratio of times that is not worth a trial, nor a change."""

CHANGE_PROBABILITY = 0.75
"""An arm leads when it is faster than the leader with this probability."""

TRIAL_CALLS = 2
"""In a row: more is known of both by the next agreed point."""


@dataclass
class Trial:
    """Calls that go to an arm that does not lead."""

    arm: int
    n_left: int


class Race:
    """The arms of calls of one kind. The first arm leads at the start.

    Durations of calls that a rank entered late are kept apart (see `Observation`): what such calls
    take cannot be compared with others. Whichever there are more of decide.
    """

    def __init__(self, arms: Sequence[Arm]) -> None:
        self.leader = 0
        self.alive = set(range(len(arms)))
        self.trial: Trial | None = None
        self._by_skew = [[Belief(arm) for arm in arms] for _ in range(2)]
        self._n_by_skew = [0, 0]
        self._noise: float | None = None

    @property
    def is_skewed(self) -> bool:
        """Whether in most calls a rank was late. They take less than was predicted."""
        clean, skewed = self._n_by_skew
        return skewed > clean

    @property
    def beliefs(self) -> list[Belief]:
        """Of all arms, from calls that can be compared."""
        return self._by_skew[self.is_skewed]

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
        """All that were observed."""
        return sum(beliefs[arm].n_calls for beliefs in self._by_skew)

    def forget(self) -> None:
        """The network changed: every arm may be the fastest again."""
        for beliefs in self._by_skew:
            for belief in beliefs:
                belief.forget()
        self._n_by_skew, self._noise = [0, 0], None
        self.alive = set(range(len(self._by_skew[0])))
        self.trial = None

    def next_arm(self) -> int:
        """Which arm does the next call; counts it. To be called alike on all ranks."""
        if self.trial is None:
            return self.leader
        arm = self.trial.arm
        self.trial.n_left -= 1
        if not self.trial.n_left:
            self.trial = None
        return arm

    def expected_s(self, arm: int) -> float:
        """The time that a call by ``arm`` should take."""
        mean, deviation = self.beliefs[arm].posterior(self.noise)
        return math.exp(mean + deviation**2 / 2)

    def settle(self) -> bool:
        """Take out arms that cannot win, and let the fastest lead; whether the leader changed."""
        noise, former = self.noise, self.leader
        if self.is_skewed and self.beliefs[former].n_observed:
            # Predictions only tell arms apart.
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
        # By so little an arm may be faster and yet be out.
        goal = (mean - INDIFFERENT, deviation)
        least = (1 - CONFIDENCE) / max(len(known) - 1, 1)
        out = {arm for arm in self.alive if probability_faster(known[arm], goal) < least}
        self.alive = (self.alive - out) | {self.leader}
        return self.leader != former

    def plan_trial(self, budget_s: float) -> float:
        """Choose what is tried next for at most ``budget_s`` of expected regret; returns that."""
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

        def least(arm: int) -> tuple[float, int]:
            mean, deviation = beliefs[arm].posterior(noise)
            return mean - deviation, arm

        for arm in sorted(open_arms, key=least):
            regret_s = TRIAL_CALLS * max(0.0, self.expected_s(arm) - leader_s)
            if regret_s <= budget_s:
                self.trial = Trial(arm, TRIAL_CALLS)
                return regret_s
        return 0.0
