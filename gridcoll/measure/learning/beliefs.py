"""Beliefs about the time of each candidate for a call, from predictions and observed calls.

Times are kept as logarithms, because errors of predictions and noise are factors. The belief about
an arm is a normal distribution of the logarithm of its time. Its mean starts at the prediction and
moves to the observations. Its standard deviation starts at the error of such predictions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

N_RECENT = 24
"""Number of last observations of an arm that count: the network may have changed since older
ones."""

LEAST_NOISE = 0.03
"""Two runs of the same call differ by some 3 % (standard deviation) on an idle network."""

FIRST_NOISE = 0.10
"""Assumed noise until enough calls of the kind have been observed."""

FIRST_NOISE_WEIGHT = 4
"""`FIRST_NOISE` weighs as much as this number of observations."""


ENOUGH_WEIGHT = 0.5
"""With this weight of neighbours, an arm may lead without a trial."""


class Arm(Struct, frozen=True):
    """One candidate for a kind of calls, as predicted.

    Attributes
    ----------
    name : str
        Name of the algorithm, or of a native.
    family : str
        Arms of a family share what is learned.
    predicted_s : float
        Predicted seconds of a call.
    spread : float
        Standard deviation of the logarithm of measured over predicted, of such predictions.
    label : str
        Distinguishes candidates of the same name.
    """

    name: str
    family: str
    predicted_s: float
    spread: float
    label: str = ""


class Shift(Struct, frozen=True):
    """Correction of an arm by other calls: log of measured over predicted time, and its weight."""

    mean: float = 0.0
    weight: float = 0.0


NO_SHIFT = Shift()


class Belief(Struct):
    """The belief about one arm.

    Attributes
    ----------
    arm : Arm
    shift : Shift
        Correction by neighbouring sizes and roots.
    trust : float
        Factor for the arm's spread, from the errors of predictions so far.
    n_calls : int
        Number of all observations so far, also of those that no longer count.
    """

    arm: Arm
    shift: Shift = NO_SHIFT
    trust: float = 1.0
    n_calls: int = 0
    logs: deque[float] = field(default_factory=lambda: deque(maxlen=N_RECENT))
    _median: float | None = None

    def observe(self, seconds: float) -> None:
        """Enter one duration."""
        self.logs.append(math.log(max(seconds, 1e-9)))
        self.n_calls += 1
        self._median = None

    def forget(self) -> None:
        """Drop the observations, because the network changed."""
        self.logs.clear()
        self._median = None

    def retract(self) -> None:
        """Drop the last observation."""
        if self.logs:
            self.logs.pop()
            self._median = None

    @property
    def n_observed(self) -> int:
        """Number of observations that count."""
        return len(self.logs)

    @property
    def has_evidence(self) -> bool:
        """Whether there are observations of this arm, or enough of neighbours."""
        return bool(self.logs) or self.shift.weight >= ENOUGH_WEIGHT

    @property
    def median_log(self) -> float:
        """Median of the logarithms. Lost segments in a few calls do not move it."""
        if self._median is None:
            self._median = median(self.logs)
        return self._median

    @property
    def observed_s(self) -> float | None:
        """Median seconds; None if nothing was observed."""
        return math.exp(self.median_log) if self.logs else None

    def posterior(self, noise: float) -> tuple[float, float]:
        """Return mean and standard deviation of the log of its time, given the noise of a call."""
        mean = math.log(max(self.arm.predicted_s, 1e-9)) + self.shift.mean
        precision = (1 + self.shift.weight) / (self.trust * self.arm.spread) ** 2
        if self.logs:
            # A median of n values is as precise as a mean of 2n/pi values, for n of three or more.
            equivalent_n = max(1.0, len(self.logs) * 2 / math.pi)
            observation_precision = equivalent_n / noise**2
            mean = (mean * precision + self.median_log * observation_precision) / (
                precision + observation_precision
            )
            precision += observation_precision
        return mean, precision**-0.5

    def log_ratio(self) -> float:
        """Return the log of observed over predicted time. Needs an observation."""
        return self.median_log - math.log(max(self.arm.predicted_s, 1e-9))


def median(values: Iterable[float]) -> float:
    """Return the median of one or more values."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def noise_of(beliefs: Sequence[Belief]) -> float:
    """Return the standard deviation of the logarithm of one duration, from all arms of a kind.

    It comes from median deviations, so that a few disturbed calls do not count.
    """
    deviations = [
        abs(log - belief.median_log)
        for belief in beliefs
        if belief.n_observed > 2
        for log in belief.logs
    ]
    if not deviations:
        return FIRST_NOISE
    own = 1.4826 * median(deviations)
    n = len(deviations)
    both = (FIRST_NOISE_WEIGHT * FIRST_NOISE**2 + n * own**2) / (FIRST_NOISE_WEIGHT + n)
    return max(LEAST_NOISE, math.sqrt(both))


def expected_gain(
    mine: tuple[float, float], other: tuple[float, float], most: float = math.inf
) -> float:
    """Return the expected value of how much less time the first of two beliefs takes, as a log.

    Beliefs are (mean, deviation). The gain is 0 where the first one takes more time, and it is
    limited to ``most``.
    """
    gap, deviation = other[0] - mine[0], math.hypot(mine[1], other[1])

    def above(least: float) -> float:
        off = (gap - least) / deviation
        density = math.exp(-(off**2) / 2) / math.sqrt(2 * math.pi)
        return deviation * (off * 0.5 * (1 + math.erf(off / math.sqrt(2))) + density)

    return above(0.0) - (above(most) if most < math.inf else 0.0)


def probability_faster(mine: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the probability that the first of two beliefs (mean, deviation) is the faster one."""
    gap, deviation = other[0] - mine[0], math.hypot(mine[1], other[1])
    return 0.5 * (1 + math.erf(gap / (deviation * math.sqrt(2))))
