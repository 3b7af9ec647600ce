"""What calls of one communicator taught, and what they do next. Needs no MPI.

All ranks hold the same learner: it is told the same calls in the same order, and durations that
were exchanged. So no rank ever decides anything else than the others.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gridcoll.measure.learning.beliefs import Arm, Belief, Shift
from gridcoll.measure.learning.drift import Drift
from gridcoll.measure.learning.elimination import Race

REGRET_BUDGET = 0.05
"""Of the time spent in collectives so far: what trials may have cost altogether."""

SKEW_PART = 0.3
"""A rank that enters by more than this part of a call's duration after the first one is late."""

N_KINDS = 512
"""Kinds of calls that are kept: roots may go round hundreds of ranks."""

SIZE_REACH = 2.0
"""Doublings of the size over which what was learned loses a factor e of its weight."""

OTHER_CLUSTER = 0.5
"""Weight of what was learned with a root in another cluster."""

OTHER_FAMILY = 0.5
"""Weight for a plan that was not tried of what other plans of the same call showed of the model."""

MOST_WEIGHT = 4.0
"""Neighbours count for at most so many times what the prediction does."""

FORMER = 0.5
"""Weight of what was learned before the network changed."""


class Kind(NamedTuple):
    """What calls that share their decision have in common.

    ``place`` is the root's cluster; ``rest`` whatever else decides.
    """

    collective: str
    n_bytes: int
    root: int = 0
    place: int = 0
    rest: Hashable = None


class Observation(NamedTuple):
    """One call as all ranks know it: ``skew_s`` is from the first entry to the last one."""

    kind: Kind
    arm: int
    seconds: float
    skew_s: float

    @property
    def skewed(self) -> bool:
        """Whether a rank was late."""
        return self.skew_s > SKEW_PART * self.seconds


class Change(NamedTuple):
    """A decision that changed."""

    kind: Kind
    before: Arm
    after: Arm
    before_s: float
    after_s: float
    n_calls: int


class Ratio(NamedTuple):
    """Log of measured over predicted of one family at one kind of calls."""

    kind: Kind
    family: str
    log: float
    weight: float


class Observed(NamedTuple):
    """Calls of one kind that one family did; ``log`` is of observed over predicted."""

    kind: Kind
    family: str
    n_calls: int
    log: float
    observed_s: float


@dataclass(frozen=True)
class Row:
    """What is known of an arm, for people."""

    arm: Arm
    observed_s: float | None
    n_calls: int
    leads: bool


Races = OrderedDict[Kind, tuple[Race, tuple[Arm, ...]]]
"""Of all kinds of calls, the last called last."""


class Learner:
    """Arms of all kinds of calls, the budget, and the watch for a network that changes."""

    def __init__(self) -> None:
        self._races: Races = OrderedDict()
        self._former: list[Ratio] = []
        self.drift = Drift()
        self.total_s = 0.0
        self.regret_s = 0.0
        self.is_restless = False
        """Whether calls that were decided before are to be decided anew."""
        self.n_starts = 1
        """Arms that `next_arm` gave before the last start are of another list."""

    def next_arm(self, kind: Kind, arms: Callable[[], Sequence[Arm]]) -> int:
        """Which of ``arms`` does the next call of ``kind``; the first one until more is known.

        Counts the call: to be called alike on all ranks.
        """
        found = self._races.get(kind)
        if found is None:
            given = tuple(arms())
            found = Race(given), given
            ratios = self.ratios()
            for belief in found[0].beliefs:
                belief.shift = _shift(kind, belief, (), ratios)
            found[0].settle()
            self._races[kind] = found
        return found[0].next_arm()

    def is_settled(self, kind: Kind) -> bool:
        """Whether the next call does what the last one did, until the next agreed point."""
        found = self._races.get(kind)
        return found is not None and found[0].trial is None

    def leader(self, kind: Kind) -> int:
        """Which arm leads; the first one until more is known."""
        found = self._races.get(kind)
        return found[0].leader if found else 0

    def learn(self, observations: Sequence[Observation], total_s: float) -> list[Change]:
        """Enter what was exchanged at an agreed point; what changes by that.

        ``total_s`` is what all calls took since the last time, also those that were not observed.
        """
        self.total_s += total_s
        for each in observations:
            self._observe(each)
        # Kinds that were not called may never be again.
        called = dict.fromkeys(each.kind for each in observations)
        seen = [kind for kind in called if kind in self._races]
        changes = [change for kind in seen if (change := self._settle(kind))]
        self._plan_trials(seen)
        self.is_restless = bool(changes) or any(self._races[kind][0].trial for kind in seen)
        for kind in seen:
            self._races.move_to_end(kind)
        # Here alone, where all ranks do: whoever repeats a call does not ask.
        while len(self._races) > N_KINDS:
            self._races.popitem(last=False)
            self.is_restless = True
        return changes

    def _settle(self, kind: Kind) -> Change | None:
        race, arms = self._races[kind]
        former = race.leader
        if not race.settle():
            return None
        return Change(
            *(kind, arms[former], arms[race.leader]),
            *(race.expected_s(former), race.expected_s(race.leader)),
            race.n_calls(race.leader),
        )

    def _observe(self, each: Observation) -> None:
        found = self._races.get(each.kind)
        if found is None:
            return
        race, _ = found
        belief = race.beliefs[each.arm]
        if each.skewed:
            self.drift.look_late((each.kind, each.arm), each.skew_s + each.seconds)
        else:
            self.drift.look(each.kind, belief, each.seconds, race.noise)
        if each.arm != race.leader and race.beliefs[race.leader].n_observed:
            self.regret_s += max(0.0, each.seconds - race.expected_s(race.leader))
        race.observe(each.arm, each.seconds, each.skewed)

    def _plan_trials(self, seen: Sequence[Kind]) -> None:
        left_s = REGRET_BUDGET * self.total_s - self.regret_s
        ratios: list[Ratio] | None = None
        for kind in seen:
            race, _ = self._races[kind]
            if len(race.alive) == 1:
                continue
            if not race.is_skewed:
                ratios = self.ratios() if ratios is None else ratios
                for belief in race.beliefs:
                    belief.shift = _shift(kind, belief, race.beliefs, ratios)
            left_s -= race.plan_trial(left_s)

    def ratios(self) -> list[Ratio]:
        """What was observed of families, at all kinds of calls."""
        current = [
            Ratio(kind, belief.arm.family, belief.log_ratio(), _trust(belief))
            for kind, (race, _) in self._races.items()
            if not race.is_skewed
            for belief in race.beliefs
            if belief.n_observed
        ]
        return current + self._former

    def observed(self) -> list[Observed]:
        """What arms took, at kinds of calls for which no rank was late as a rule."""
        return [
            Observed(
                *(kind, belief.arm.family, belief.n_observed),
                *(belief.log_ratio(), belief.observed_s or 0.0),
            )
            for kind, (race, _) in self._races.items()
            if not race.is_skewed
            for belief in race.beliefs
            if belief.n_observed
        ]

    def bring(self, ratios: Sequence[Ratio]) -> None:
        """Take what was learned elsewhere of calls like these."""
        self._former += [each._replace(weight=FORMER * each.weight) for each in ratios[:N_KINDS]]

    def restart(self) -> Races:
        """The model changed: kinds begin anew, with what was learned of families before.

        Predictions are other ones now, and so may be the arms. Gives what was known by the old
        ones, for `resume`.
        """
        self.n_starts += 1
        self.drift.retract()
        self._former = [
            ratio._replace(weight=FORMER * ratio.weight) for ratio in self.ratios()[:N_KINDS]
        ]
        races, self._races = self._races, OrderedDict()
        self.drift = Drift(self.drift.worth_s)
        return races

    def resume(self, races: Races) -> None:
        """The model is again what it was when `restart` gave ``races``."""
        for race, _ in races.values():
            race.trial = None
        self.n_starts += 1
        self._races = races

    def forget(self) -> None:
        """Something changed that the model does not show: arms compete anew."""
        for race, _ in self._races.values():
            race.forget()
        self.drift = Drift(self.drift.worth_s)

    def rows(self, kind: Kind) -> list[Row]:
        """What is known of each arm of ``kind``; empty if it was never called."""
        found = self._races.get(kind)
        if found is None:
            return []
        race, arms = found
        return [
            Row(each, race.beliefs[arm].observed_s, race.n_calls(arm), arm == race.leader)
            for arm, each in enumerate(arms)
        ]

    def kinds(self) -> list[Kind]:
        """All that were called."""
        return list(self._races)


def _trust(belief: Belief) -> float:
    return belief.n_observed / (belief.n_observed + 2)


def _shift(kind: Kind, belief: Belief, others: Sequence[Belief], ratios: Sequence[Ratio]) -> Shift:
    """What neighbouring sizes and roots say of the family, and other plans of the model."""
    family = belief.arm.family
    logs: list[tuple[float, float]] = []
    for ratio in ratios:
        same = ratio.family == family and ratio.kind.collective == kind.collective
        if same and ratio.kind != kind:
            away = abs(math.log2(max(ratio.kind.n_bytes, 1) / max(kind.n_bytes, 1)))
            near = 1.0 if ratio.kind.place == kind.place else OTHER_CLUSTER
            logs.append((ratio.log, ratio.weight * near * math.exp(-away / SIZE_REACH)))
    if not _is_native(family) and not belief.n_observed:
        logs += [
            (other.log_ratio(), OTHER_FAMILY * _trust(other))
            for other in others
            if other.n_observed and not _is_native(other.arm.family)
        ]
    weight = sum(each for _, each in logs)
    if not weight:
        return Shift()
    mean = sum(log * each for log, each in logs) / (weight + 0.5)
    return Shift(mean, min(weight, MOST_WEIGHT))


def _is_native(family: str) -> bool:
    return family.startswith("native")
