"""Decide for one kind of calls which arm leads, which are eliminated, and which one to try next.

Sequential elimination: an arm is eliminated once the leader is faster with the given confidence. A
trial costs regret, the time that it takes longer than the leader. An arm is not tried if its
expected regret exceeds the rest of the budget, or its expected gain in as many calls as there were
so far, which is the best guess of how many will come. No arm takes less time than the network
allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from gridcoll.measure.learning.beliefs import (
    N_RECENT,
    Arm,
    Belief,
    Shift,
    expected_gain,
    noise_of,
    probability_faster,
)

CONFIDENCE = 0.95
"""Probability that the remaining arm is the fastest one, up to `INDIFFERENCE`."""

INDIFFERENCE = 0.02
"""Log ratio of times that is worth neither a trial nor a change."""

CHANGE_PROBABILITY = 0.75
"""An arm becomes the leader if it is faster than the leader with this probability."""

LIMIT_TOLERANCE = 0.05
"""If the leader takes less than the limit by more than this log ratio, the limit is wrong: the
network is not as the model says. This is more than the noise of a call. On 12 random grids, with
one link taken for three times as fast or slow (`benchmarks/learning_simulated.py`), results for
0.02 to 0.1 differ by a hundredth. From 0.2 on, the worst grid stays at 1.9 times the best choice,
instead of 1.7."""

COLD_START = 0.1
"""Extra time of a trial over later calls by the same arm, as a fraction of the leader's time: the
windows of its connections have closed. On three sites, first calls took 5 to 25 % longer than later
ones, up to 0.12 of each of two trials. The value matters little: on those 12 grids, results for 0
to 0.4 differ by a hundredth in calls 1 to 200, and by two in the next 200."""

SKEWED_RATIO = 4
"""Calls with a late rank decide if there are more than this many times as many as others. Their
time depends on how late the rank was, and on the call before. On three sites, broadcasts of 8 KiB
took 1 to 26 ms by the same plan, and in an application with many kinds of calls, half of them had
a late rank."""

TRIAL_CALLS = 2
"""Trials in a row. By the next agreed point more is known."""


class Trial(Struct):
    """Planned trials: the next ``n_left`` calls are made by an ``arm`` that does not lead."""

    arm: int
    n_left: int


class Race:
    """The arms of calls of one kind. The first arm leads at the start.

    Durations of calls with a late rank (see `Observation`) are kept apart, because they cannot be
    compared with others. They decide if nearly all calls have a late rank.

    ``limit_s`` is a lower bound of the time of every arm; 0 if it is not known.
    """

    def __init__(self, arms: Sequence[Arm], limit_s: float = 0.0) -> None:
        self.leader = 0
        self.limit_s = limit_s
        self.alive = set(range(len(arms)))
        self.trial: Trial | None = None
        self.surprise_s = 0.0
        """Time that plans took beyond what is no surprise; calls that took less are deducted."""
        self._by_skew = [[Belief(arm) for arm in arms] for _ in range(2)]
        self._n_by_skew = [0, 0]
        self._noise: float | None = None

    @property
    def is_skewed(self) -> bool:
        """Whether a rank was late in nearly all calls. Such calls take less than predicted."""
        clean, skewed = self._n_by_skew
        return skewed > SKEWED_RATIO * clean

    @property
    def beliefs(self) -> list[Belief]:
        """Beliefs about all arms, from comparable calls."""
        return self._by_skew[self.is_skewed]

    @property
    def clean(self) -> list[Belief]:
        """Beliefs about all arms, from calls without a late rank."""
        return self._by_skew[False]

    @property
    def noise(self) -> float:
        """Standard deviation of the logarithm of one duration."""
        if self._noise is None:
            self._noise = noise_of(self.beliefs)
        return self._noise

    def observe(self, arm: int, seconds: float, skewed: bool) -> None:
        """Enter the duration of one call by ``arm``."""
        self._by_skew[skewed][arm].observe(seconds)
        self._n_by_skew[skewed] += 1
        self._noise = None

    def n_calls(self, arm: int) -> int:
        """Return the number of observed calls by ``arm``."""
        return sum(beliefs[arm].n_calls for beliefs in self._by_skew)

    def forget(self) -> None:
        """Start again with all arms, because the network changed."""
        for beliefs in self._by_skew:
            for belief in beliefs:
                belief.forget()
        self._n_by_skew, self._noise = [0, 0], None
        self.alive = set(range(len(self._by_skew[0])))
        self.trial = None

    def next_arm(self) -> int:
        """Return the arm for the next call, and count the call. All ranks make the same calls."""
        if self.trial is None:
            return self.leader
        arm = self.trial.arm
        self.trial.n_left -= 1
        if not self.trial.n_left:
            self.trial = None
        return arm

    def expected_s(self, arm: int) -> float:
        """Return the expected seconds of a call by ``arm``."""
        mean, deviation = self.beliefs[arm].posterior(self.noise)
        return math.exp(mean + deviation**2 / 2)

    def settle(self) -> bool:
        """Eliminate arms that cannot win, and let the fastest lead.

        Returns whether the leader changed.
        """
        noise, former = self.noise, self.leader
        if self.is_skewed and self.beliefs[former].n_observed:
            # Skewed calls do not take the predicted time: predictions are only used to rank arms.
            shift = Shift(self.beliefs[former].log_ratio())
            for belief in self.beliefs:
                belief.shift = shift
        posteriors = [belief.posterior(noise) for belief in self.beliefs]
        arms_with_evidence = [arm for arm in sorted(self.alive) if self.beliefs[arm].has_evidence]
        for arm in sorted(arms_with_evidence, key=lambda arm: (posteriors[arm][0], arm)):
            mine, leader = posteriors[arm], posteriors[self.leader]
            is_ahead = mine[0] < leader[0] - INDIFFERENCE / 2
            if is_ahead and probability_faster(mine, leader) >= CHANGE_PROBABILITY:
                self.leader = arm
                break
        mean, deviation = posteriors[self.leader]
        most_gain = self._most_gain()
        if most_gain < -LIMIT_TOLERANCE:
            self.limit_s = 0.0
        # An arm that is faster by less than `INDIFFERENCE` is eliminated, too.
        goal = (mean - INDIFFERENCE, deviation)
        least_probability = (1 - CONFIDENCE) / max(len(posteriors) - 1, 1)
        eliminated = {
            arm
            for arm in self.alive
            if probability_faster(posteriors[arm], goal) < least_probability
        }
        if -LIMIT_TOLERANCE <= most_gain <= INDIFFERENCE:
            eliminated = self.alive
        self.alive = (self.alive - eliminated) | {self.leader}
        if self.trial is not None and self.trial.arm not in self.alive:
            self.trial = None
        return self.leader != former

    def _most_gain(self) -> float:
        """Return the logarithm of the leader's time over the limit; infinite if one is unknown."""
        leader = self.beliefs[self.leader]
        if not self.limit_s or self.is_skewed or not leader.n_observed:
            return math.inf
        return leader.median_log - math.log(self.limit_s)

    def plan_trial(
        self, budget_s: float, n_to_come: float | None = None, build_s: float = 0.0
    ) -> float:
        """Choose the next trial and return its expected regret, at most ``budget_s``.

        ``n_to_come`` is the number of calls that profit, by default as many as there were.
        ``build_s`` is the time to build a plan that never ran.
        """
        if self.trial is not None or len(self.alive) == 1:
            return 0.0
        beliefs, noise = self.beliefs, self.noise
        if not beliefs[self.leader].n_observed:
            return 0.0  # calls by the leader come first, and cost no regret
        open_arms = [
            arm
            for arm in sorted(self.alive)
            if arm != self.leader and beliefs[arm].n_observed < N_RECENT
        ]
        leader_s = self.expected_s(self.leader)
        leader = beliefs[self.leader].posterior(noise)
        if n_to_come is None:
            n_to_come = sum(map(self.n_calls, range(len(beliefs))))
        most_gain = max(self._most_gain(), 0.0)

        def optimistic_log(arm: int) -> tuple[float, int]:
            mean, deviation = beliefs[arm].posterior(noise)
            return mean - deviation, arm

        for arm in sorted(open_arms, key=optimistic_log):
            extra_s = max(0.0, self.expected_s(arm) - leader_s) + COLD_START * leader_s
            regret_s = TRIAL_CALLS * extra_s + (0.0 if self.n_calls(arm) else build_s)
            gain = expected_gain(beliefs[arm].posterior(noise), leader, most_gain)
            worth_s = n_to_come * leader_s * max(gain, 1e-12)
            if regret_s <= min(budget_s, worth_s):
                self.trial = Trial(arm, TRIAL_CALLS)
                return regret_s
        return 0.0
