"""Beliefs: how long each way to do a call takes, by prediction and observed calls.

Times are kept as logarithms, as errors of predictions and noise are factors. The belief about an
arm is a normal distribution of the logarithm of its time. Its mean starts at the prediction and
moves to the observations; its standard deviation starts at the error of such predictions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

N_KEPT = 24
"""The last so many observations of an arm count: the network may have changed since older ones."""

LEAST_NOISE = 0.03
"""Two runs of the same call differ by some 3 % on an idle network, as a standard deviation."""

FIRST_NOISE = 0.10
"""Assumed noise until enough calls of the class were observed."""

N_NOISE = 4
"""Observations that `FIRST_NOISE` counts as."""


ENOUGH_WEIGHT = 0.5
"""With so small a standard deviation by neighbours, an arm may lead without a trial."""


@dataclass(frozen=True)
class Arm:
    """One way to do a call, before it was tried.

    Attributes
    ----------
    name : str
        Of the algorithm, or a native.
    family : str
        Arms of a family share what is learned.
    predicted_s : float
    spread : float
        Standard deviation of the logarithm of measured over predicted, of such predictions.
    label : str
        Tells candidates of the same name apart.
    """

    name: str
    family: str
    predicted_s: float
    spread: float
    label: str = ""


@dataclass(frozen=True)
class Shift:
    """Correction of an arm by other calls: log of measured over predicted, and its weight."""

    mean: float = 0.0
    weight: float = 0.0


NO_SHIFT = Shift()


@dataclass
class Belief:
    """The belief about one arm.

    Attributes
    ----------
    arm : Arm
    shift : Shift
        Correction by neighbouring sizes and roots.
    trust : float
        Factor of the arm's spread, by how far predictions were off so far.
    n_calls : int
        All observations so far, also those that no longer count.
    """

    arm: Arm
    shift: Shift = NO_SHIFT
    trust: float = 1.0
    n_calls: int = 0
    logs: deque[float] = field(default_factory=lambda: deque(maxlen=N_KEPT))
    _median: float | None = None

    def observe(self, seconds: float) -> None:
        """Enter one duration."""
        self.logs.append(math.log(max(seconds, 1e-9)))
        self.n_calls += 1
        self._median = None

    def forget(self) -> None:
        """Drop the observations: the network changed."""
        self.logs.clear()
        self._median = None

    def retract(self) -> None:
        """Drop the last observation."""
        if self.logs:
            self.logs.pop()
            self._median = None

    @property
    def n_observed(self) -> int:
        """Observations that count."""
        return len(self.logs)

    @property
    def is_told(self) -> bool:
        """Whether there are observations, of this arm or enough of neighbours."""
        return bool(self.logs) or self.shift.weight >= ENOUGH_WEIGHT

    @property
    def median_log(self) -> float:
        """Median of the logarithms: a lost segment in a few calls does not move it."""
        if self._median is None:
            self._median = median(self.logs)
        return self._median

    @property
    def observed_s(self) -> float | None:
        """Median seconds; None where nothing was observed."""
        return math.exp(self.median_log) if self.logs else None

    def posterior(self, noise: float) -> tuple[float, float]:
        """Mean and standard deviation of the logarithm of its time, given the noise of a call."""
        mean = math.log(max(self.arm.predicted_s, 1e-9)) + self.shift.mean
        precision = (1 + self.shift.weight) / (self.trust * self.arm.spread) ** 2
        if self.logs:
            # A median of n values is as good as a mean of 2n/pi, for n of three or more.
            n_worth = max(1.0, len(self.logs) * 2 / math.pi)
            seen = n_worth / noise**2
            mean = (mean * precision + self.median_log * seen) / (precision + seen)
            precision += seen
        return mean, precision**-0.5

    def log_ratio(self) -> float:
        """Log of observed over predicted; needs an observation."""
        return self.median_log - math.log(max(self.arm.predicted_s, 1e-9))


def median(values: Iterable[float]) -> float:
    """Of at least one value."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def noise_of(beliefs: Sequence[Belief]) -> float:
    """Standard deviation of the logarithm of one duration, from all arms of a class.

    By median deviations, so that a few disturbed calls do not count.
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
    both = (N_NOISE * FIRST_NOISE**2 + n * own**2) / (N_NOISE + n)
    return max(LEAST_NOISE, math.sqrt(both))


def expected_gain(
    mine: tuple[float, float], other: tuple[float, float], most: float = math.inf
) -> float:
    """How much less the first of two beliefs (mean, deviation) takes, where it takes less, times
    the probability of that; no more than ``most`` where it may take much less. Logarithms.
    """
    gap, deviation = other[0] - mine[0], math.hypot(mine[1], other[1])

    def above(least: float) -> float:
        off = (gap - least) / deviation
        density = math.exp(-(off**2) / 2) / math.sqrt(2 * math.pi)
        return deviation * (off * 0.5 * (1 + math.erf(off / math.sqrt(2))) + density)

    return above(0.0) - (above(most) if most < math.inf else 0.0)


def probability_faster(mine: tuple[float, float], other: tuple[float, float]) -> float:
    """Probability that the first of two beliefs (mean, deviation) has the smaller time."""
    gap, deviation = other[0] - mine[0], math.hypot(mine[1], other[1])
    return 0.5 * (1 + math.erf(gap / (deviation * math.sqrt(2))))
