"""Learn from the calls of one communicator, and decide what the next ones do. Needs no MPI.

All ranks have equal learners: each gets the same calls in the same order, with exchanged durations.
So all ranks take the same decisions.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from msgspec import Struct

from gridcoll.measure.learning.beliefs import Arm, Belief, Shift, noise_of
from gridcoll.measure.learning.drift import FEWEST_BEFORE, Drift
from gridcoll.measure.learning.elimination import Race

REGRET_BUDGET = 0.05
"""Trials may cost this fraction of the time in collectives so far."""

LATE_FRACTION = 0.3
"""A rank is late if it enters later than the first one by this fraction of the call's duration."""

UNINFORMATIVE_BELOW = 0.05
"""Fraction of its prediction below which a call with a late rank shows nothing about its arm:
nobody waited for a wire, as in a broadcast that has arrived before its last receiver comes. Reading
data that is there takes a processor microseconds, a call between clusters milliseconds. On three
sites, with all ranks late by 0 to 50 ms, this leaves out 53 % of broadcasts of 8 B (0.03: 48 %;
0.1: 58 %), 19 % of those of 8 KiB and none from 64 KiB on. On three random grids with late ranks,
values from 0 to 0.2 give the same result (`benchmarks/learning_simulated.py --late 1`)."""

PRIOR_WEIGHT = 4
"""The assumed error of predictions weighs as much as this number of observed plans."""

MOST_KINDS = 512
"""Kinds of calls that are kept. A program may use hundreds of roots."""

MOST_LOG_ERROR = 0.5
"""Largest error of a prediction that counts, as a logarithm. On some grids predictions are off by a
half; larger errors come from disturbed calls. On six random grids, with one link taken for three
times as fast or slow, learning takes 1.05 times the time of the best choice in calls 201 to 400
(1.06 if the error that all plans have in common counts, too; worst grid 1.07, 1.12)."""

SIZE_REACH = 2.0
"""Observations at another size lose a factor e of their weight per this number of doublings."""

OTHER_CLUSTER_WEIGHT = 0.5
"""Weight of observations with a root in another cluster."""

OTHER_FAMILY_WEIGHT = 0.5
"""Weight of other plans of the same call, for a plan without trials."""

MOST_WEIGHT = 4.0
"""Largest weight of all neighbours together; that of the prediction is 1."""

SURPRISE_FACTOR = 2.0
"""A plan is a surprise if it takes more than this many times its prediction: predictions are wrong
by a half on some grids."""

FORMER_WEIGHT = 0.5
"""Weight of observations from before the network changed."""


class Kind(NamedTuple):
    """A kind of calls: those that share a decision.

    ``place`` is the root's cluster, ``rest`` all else that the decision depends on.
    """

    collective: str
    n_bytes: int
    root: int = 0
    place: int = 0
    rest: Hashable = None


class Observation(NamedTuple):
    """One call, equal on all ranks: ``seconds`` from its last entry to its last exit.

    ``skew_s`` is the time from the first entry to the last one, or from the root's entry if the
    call begins when its root comes. For such a call, ``whole_s`` is the time from when it could
    begin, as other ranks may come late, but still before their data. If it is 0, ``seconds``
    counts.
    """

    kind: Kind
    arm: int
    seconds: float
    skew_s: float
    whole_s: float = 0.0

    @property
    def skewed(self) -> bool:
        """Whether a rank was late."""
        return self.skew_s > LATE_FRACTION * self.seconds


class Change(NamedTuple):
    """A decision that changed."""

    kind: Kind
    before: Arm
    after: Arm
    before_s: float
    after_s: float
    n_calls: int


class Ratio(NamedTuple):
    """Log of measured over predicted time of one family, for one kind of calls."""

    kind: Kind
    family: str
    log: float
    weight: float


class Observed(NamedTuple):
    """Calls of one kind by one family; ``log`` is the logarithm of observed over predicted time."""

    kind: Kind
    family: str
    n_calls: int
    log: float
    observed_s: float


class Row(Struct, frozen=True):
    """What is known about an arm, for `explain`."""

    arm: Arm
    observed_s: float | None
    n_calls: int
    leads: bool


Races = OrderedDict[Kind, tuple[Race, tuple[Arm, ...]]]
"""Races of all kinds of calls, the last called kind last."""


class Learner:
    """The arms of all kinds of calls, the budget of trials, and the watch for a changed network."""

    def __init__(self) -> None:
        self._races: Races = OrderedDict()
        self._former: list[Ratio] = []
        self.drift = Drift()
        self.total_s = 0.0
        self.regret_s = 0.0
        self._built_s, self._n_built = 0.0, 0
        self.is_restless = False
        """Whether earlier decisions may change, so that the fast path has to be emptied."""
        self.n_starts = 1
        """Number of starts. Arm numbers from before the last start are no longer valid."""

    def next_arm(
        self,
        kind: Kind,
        arms: Callable[[], Sequence[Arm]],
        limit_s: Callable[[], float] = lambda: 0.0,
    ) -> int:
        """Return the arm for the next call of ``kind``; the first one until more is known.

        This counts the call, so all ranks must make the same calls. ``arms`` and ``limit_s``, a
        lower bound of the time of every arm, are called at the first call of a kind.
        """
        entry = self._races.get(kind)
        if entry is None:
            all_arms = tuple(arms())
            entry = Race(all_arms, limit_s()), all_arms
            _update_beliefs(kind, entry[0].beliefs, (), _Evidence(self.ratios()))
            entry[0].settle()
            self._races[kind] = entry
        return entry[0].next_arm()

    def is_settled(self, kind: Kind) -> bool:
        """Whether calls of ``kind`` keep their arm until the next agreed point."""
        entry = self._races.get(kind)
        return entry is not None and entry[0].trial is None

    @property
    def surprise_s(self) -> float:
        """Time that plans took beyond `SURPRISE_FACTOR` times their predictions, in all.

        In each kind, calls that took less are deducted: a few late ones prove nothing.
        """
        return sum(race.surprise_s for race, _ in self._races.values())

    def allowed_s(self, kind: Kind, arm: int) -> float:
        """Return the seconds that a call may take before it is a surprise; infinite for natives."""
        entry = self._races.get(kind)
        if entry is None or _is_native(entry[1][arm].family):
            return math.inf
        return SURPRISE_FACTOR * entry[1][arm].predicted_s

    def usual_s(self, kind: Kind, arm: int) -> float | None:
        """Return the median seconds of such calls; None if too few were observed."""
        entry = self._races.get(kind)
        if entry is None or entry[0].beliefs[arm].n_observed < FEWEST_BEFORE:
            return None
        return entry[0].beliefs[arm].observed_s

    def leader(self, kind: Kind) -> int:
        """Return the leading arm; the first one until more is known."""
        entry = self._races.get(kind)
        return entry[0].leader if entry else 0

    def learn(
        self, observations: Sequence[Observation], total_s: float, built_s: float = 0.0
    ) -> list[Change]:
        """Enter the observations of an agreed point, and return the changed decisions.

        ``total_s`` is the time of all calls since the last point, observed or not. Before some of
        them, building the plans of trials took ``built_s``.
        """
        self.total_s += total_s
        self._built_s += built_s
        self.invest(built_s)
        for each in observations:
            self._observe(each)
        # Kinds without calls are skipped: they may never be called again.
        called = dict.fromkeys(each.kind for each in observations)
        seen = [kind for kind in called if kind in self._races]
        changes = [change for kind in seen if (change := self._settle(kind))]
        self._plan_trials(seen)
        self.is_restless = bool(changes) or any(self._races[kind][0].trial for kind in seen)
        for kind in seen:
            self._races.move_to_end(kind)
        # Forget kinds only here, where all ranks forget the same ones: calls on the fast path do
        # not come through here.
        while len(self._races) > MOST_KINDS:
            self._races.popitem(last=False)
            self.is_restless = True
        return changes

    def invest(self, seconds: float) -> None:
        """Count the cost of something that learning needs as regret. Equal on all ranks."""
        self.regret_s += seconds

    def _mean_build_s(self) -> float:
        """Return the mean time to build the plan of a trial; 0 if none was built."""
        return self._built_s / self._n_built if self._n_built else 0.0

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
        entry = self._races.get(each.kind)
        if entry is None:
            return
        race, _ = entry
        belief = race.beliefs[each.arm]
        if belief.n_observed and not _is_native(belief.arm.family):  # first ones open connections
            more_s = each.seconds - SURPRISE_FACTOR * belief.arm.predicted_s
            race.surprise_s = max(0.0, race.surprise_s + more_s)
        if each.skewed:
            self.drift.look_late((each.kind, each.arm), each.skew_s + each.seconds)
            # A late rank makes the rest of a call no longer. But if a slow host or link made the
            # rank late in the call before, it also makes this call longer.
            clean = race.clean[each.arm]
            if clean.n_observed and each.seconds > (clean.observed_s or 0.0):
                self.drift.look(each.kind, clean, each.seconds, noise_of(race.clean), enters=False)
            if each.seconds < UNINFORMATIVE_BELOW * belief.arm.predicted_s:
                return
        else:
            self.drift.look(each.kind, belief, each.seconds, race.noise)
        took_s = each.whole_s or each.seconds
        if each.arm != race.leader and race.beliefs[race.leader].n_observed:
            self.regret_s += max(0.0, took_s - race.expected_s(race.leader))
            self._n_built += not (race.n_calls(each.arm) or _is_native(belief.arm.family))
        race.observe(each.arm, took_s, each.skewed)

    def _plan_trials(self, seen: Sequence[Kind]) -> None:
        left_s = REGRET_BUDGET * self.total_s - self.regret_s
        evidence: _Evidence | None = None
        for kind in seen:
            race, _ = self._races[kind]
            if len(race.alive) == 1:
                continue
            evidence = evidence or _Evidence(self.ratios())
            others = None if race.is_skewed else race.beliefs
            _update_beliefs(
                kind, [race.beliefs[arm] for arm in sorted(race.alive)], others, evidence
            )
            left_s -= race.plan_trial(left_s, build_s=self._mean_build_s())

    def ratios(self) -> list[Ratio]:
        """Return the observed ratios of families, for all kinds of calls."""
        current = [
            Ratio(kind, belief.arm.family, belief.log_ratio(), _trust(belief))
            for kind, (race, _) in self._races.items()
            if not race.is_skewed
            for belief in race.beliefs
            if belief.n_observed
        ]
        return current + self._former

    def observed(self) -> list[Observed]:
        """Return the observed times of arms, for kinds of calls in which ranks are rarely late."""
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
        """Take over what another communicator learned."""
        self._former += [
            each._replace(weight=FORMER_WEIGHT * each.weight) for each in ratios[:MOST_KINDS]
        ]

    def restart(self, *, keep: bool = True) -> Races:
        """Start again with a new model, and return the old races, for `resume`.

        Predictions, and so the arms, may differ. ``keep``: whether ratios of families are kept.
        """
        self.n_starts += 1
        self.drift.retract()
        former = self.ratios()[:MOST_KINDS] if keep else []
        self._former = [ratio._replace(weight=FORMER_WEIGHT * ratio.weight) for ratio in former]
        races, self._races = self._races, OrderedDict()
        self.drift = Drift(self.drift.worth_s)
        return races

    def resume(self, races: Races) -> None:
        """Continue with ``races``, which `restart` returned, because the old model is back."""
        for race, _ in races.values():
            race.trial = None
        self.n_starts += 1
        self._races = races

    def forget(self) -> None:
        """Let all arms compete again, because something changed that the model does not show."""
        for race, _ in self._races.values():
            race.forget()
        self.drift = Drift(self.drift.worth_s)

    def rows(self, kind: Kind) -> list[Row]:
        """Return what is known about each arm of ``kind``; empty if it was never called."""
        entry = self._races.get(kind)
        if entry is None:
            return []
        race, arms = entry
        return [
            Row(each, race.beliefs[arm].observed_s, race.n_calls(arm), arm == race.leader)
            for arm, each in enumerate(arms)
        ]

    def kinds(self) -> list[Kind]:
        """Return all kinds that were called."""
        return list(self._races)


def _trust(belief: Belief) -> float:
    return belief.n_observed / (belief.n_observed + 2)


class _Evidence:
    """Ratios by collective and family, and the squared error of predictions of plans.

    Only differences between plans of the same calls count: if all of them take longer than
    predicted, as on busy hosts, no decision changes.
    """

    def __init__(self, ratios: Sequence[Ratio]) -> None:
        self.by_family: dict[tuple[str, str], list[Ratio]] = {}
        self.weight = self.squared_error = 0.0
        by_kind: dict[Kind, list[Ratio]] = {}
        for each in ratios:
            self.by_family.setdefault((each.kind.collective, each.family), []).append(each)
            if not _is_native(each.family):
                by_kind.setdefault(each.kind, []).append(each)
        for plans in by_kind.values():
            weight = sum(each.weight for each in plans)
            mean = sum(each.weight * each.log for each in plans) / max(weight, 1e-9)
            self.weight += weight * (1 - 1 / len(plans))
            self.squared_error += sum(
                each.weight * min(abs(each.log - mean), MOST_LOG_ERROR) ** 2 for each in plans
            )

    def trust_in(self, arm: Arm) -> float:
        """Return a factor for the spread of ``arm``, from the errors of predictions so far."""
        if _is_native(arm.family):
            return 1.0
        return math.sqrt(
            (PRIOR_WEIGHT + self.squared_error / arm.spread**2) / (PRIOR_WEIGHT + self.weight)
        )


def _update_beliefs(
    kind: Kind, beliefs: Sequence[Belief], others: Sequence[Belief] | None, evidence: _Evidence
) -> None:
    """Update the trust of ``beliefs`` about calls of ``kind`` from ``evidence``.

    Their shifts are updated only if ``others``, the beliefs about all arms, are given.
    """
    for belief in beliefs:
        belief.trust = evidence.trust_in(belief.arm)
        if others is not None:
            ratios = evidence.by_family.get((kind.collective, belief.arm.family), ())
            belief.shift = shift_of(kind, belief, others, ratios)


def shift_of(
    kind: Kind, belief: Belief, others: Sequence[Belief], ratios: Sequence[Ratio]
) -> Shift:
    """Return the correction of an arm by other plans of the same calls, and by ``ratios``.

    ``ratios`` are those of its family at other sizes and roots.
    """
    family = belief.arm.family
    logs: list[tuple[float, float]] = []
    for ratio in ratios:
        if ratio.kind != kind:
            distance = abs(math.log2(max(ratio.kind.n_bytes, 1) / max(kind.n_bytes, 1)))
            place_weight = 1.0 if ratio.kind.place == kind.place else OTHER_CLUSTER_WEIGHT
            logs.append((ratio.log, ratio.weight * place_weight * math.exp(-distance / SIZE_REACH)))
    if not _is_native(family) and not belief.n_observed:
        logs += [
            (other.log_ratio(), OTHER_FAMILY_WEIGHT * _trust(other))
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
