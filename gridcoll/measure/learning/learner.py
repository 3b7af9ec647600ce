"""Learns from the calls of one communicator, and decides what they do next. Needs no MPI.

All ranks have equal learners: each gets the same calls in the same order, with exchanged durations.
So all ranks decide alike.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gridcoll.measure.learning.beliefs import Arm, Belief, Shift, noise_of
from gridcoll.measure.learning.drift import Drift
from gridcoll.measure.learning.elimination import Race

REGRET_BUDGET = 0.05
"""Trials may cost this part of the time in collectives so far."""

SKEW_PART = 0.3
"""A rank is late if it enters later than the first one by this part of the call's duration."""

SHOWS_NOTHING = 0.05
"""Part of its prediction below which a call with a late rank shows nothing of its arm: nobody
waited for a wire, as in a broadcast that has arrived before its last receiver comes. To read what
is there takes a processor microseconds, a call between clusters milliseconds. On three sites, with
all ranks late by 0 to 50 ms, it leaves out 53 % of broadcasts of 8 B (0.03: 48 %; 0.1: 58 %), 19 %
of those of 8 KiB and none from 64 KiB on. On three random grids with late ranks, 0 to 0.2 give the
same (`benchmarks/learning_simulated.py --late 1`)."""

N_TRUST = 4
"""Observed plans that the assumed error of predictions counts as."""

N_KINDS = 512
"""Kinds of calls that are kept; a program may use hundreds of roots."""

MOST_OFF = 0.5
"""A prediction that was off by more, as a logarithm, counts as off by so much: a half is what they
are off by on some grids, and more was a disturbed call. On six random grids a link of which was
taken for three times as fast or slow, learning takes 1.05 times the best way in calls 201 to 400
(1.06 where what all plans are off by counts, too; worst grid 1.07, 1.12)."""

SIZE_REACH = 2.0
"""Observations at another size lose a factor e of their weight per so many doublings."""

OTHER_CLUSTER = 0.5
"""Weight of observations with a root in another cluster."""

OTHER_FAMILY = 0.5
"""For a plan without trials: weight of what other plans of the same call showed."""

MOST_WEIGHT = 4.0
"""Neighbours weigh at most so many times as much as the prediction."""

SURPRISING = 2.0
"""A plan is a surprise where it takes more than so many times what the model says: predictions are
wrong by a half on some grids."""

FORMER = 0.5
"""Weight of observations from before the network changed."""


class Kind(NamedTuple):
    """A kind of calls: those that share a decision.

    ``place`` is the root's cluster; ``rest`` all else that the decision depends on.
    """

    collective: str
    n_bytes: int
    root: int = 0
    place: int = 0
    rest: Hashable = None


class Observation(NamedTuple):
    """One call, equal on all ranks: ``seconds`` from its last entry to its last exit.

    ``skew_s`` is the time from the first entry to the last one; of a call that begins when its root
    comes, from the root's entry. ``whole_s``, where it differs from ``seconds``, is what such a
    call took from when it could begin: others may come late, but before their data.
    """

    kind: Kind
    arm: int
    seconds: float
    skew_s: float
    whole_s: float = 0.0

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
    """Log of measured over predicted time of one family, for one kind of calls."""

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
    """What is known of an arm, for `explain`."""

    arm: Arm
    observed_s: float | None
    n_calls: int
    leads: bool


Races = OrderedDict[Kind, tuple[Race, tuple[Arm, ...]]]
"""Races of all kinds of calls, the last called kind last."""


class Learner:
    """Arms of all kinds of calls, the budget, and the watch for a network that changes."""

    def __init__(self) -> None:
        self._races: Races = OrderedDict()
        self._former: list[Ratio] = []
        self.drift = Drift()
        self.total_s = 0.0
        self.regret_s = 0.0
        self.surprise_s = 0.0
        """What plans took beyond `SURPRISING` times their predictions, in all."""
        self.is_restless = False
        """Whether earlier decisions must be taken again, so that the fast path has to be
        emptied."""
        self.n_starts = 1
        """Number of starts: arm numbers from before the last start are no longer valid."""

    def next_arm(
        self,
        kind: Kind,
        arms: Callable[[], Sequence[Arm]],
        limit_s: Callable[[], float] = lambda: 0.0,
    ) -> int:
        """The arm for the next call of ``kind``; the first one until more is known.

        Counts the call: all ranks must call it alike. ``arms`` and ``limit_s``, which no arm is
        faster than, are asked for at the first call.
        """
        found = self._races.get(kind)
        if found is None:
            given = tuple(arms())
            found = Race(given, limit_s()), given
            _tell(kind, found[0].beliefs, (), _Shown(self.ratios()))
            found[0].settle()
            self._races[kind] = found
        return found[0].next_arm()

    def is_settled(self, kind: Kind) -> bool:
        """Whether calls keep their arm until the next agreed point."""
        found = self._races.get(kind)
        return found is not None and found[0].trial is None

    def allowed_s(self, kind: Kind, arm: int) -> float:
        """What a call may take before it is a surprise; infinite for natives."""
        found = self._races.get(kind)
        if found is None or _is_native(found[1][arm].family):
            return math.inf
        return SURPRISING * found[1][arm].predicted_s

    def leader(self, kind: Kind) -> int:
        """The leading arm; the first one until more is known."""
        found = self._races.get(kind)
        return found[0].leader if found else 0

    def learn(self, observations: Sequence[Observation], total_s: float) -> list[Change]:
        """Enter the observations of an agreed point; returns the changed decisions.

        ``total_s`` is the time of all calls since the last point, observed or not.
        """
        self.total_s += total_s
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
        # Forget kinds only here, where all ranks do so alike: the fast path does not pass here.
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
        if belief.n_observed and not _is_native(belief.arm.family):  # first ones open connections
            self.surprise_s += max(0.0, each.seconds - SURPRISING * belief.arm.predicted_s)
        if each.skewed:
            self.drift.look_late((each.kind, each.arm), each.skew_s + each.seconds)
            # A late rank makes the rest of a call shorter, if anything. One that a slow host or
            # link made late in the call before makes it longer.
            clean = race.clean[each.arm]
            if clean.n_observed and each.seconds > (clean.observed_s or 0.0):
                self.drift.look(each.kind, clean, each.seconds, noise_of(race.clean), enters=False)
            if each.seconds < SHOWS_NOTHING * belief.arm.predicted_s:
                return
        else:
            self.drift.look(each.kind, belief, each.seconds, race.noise)
        took_s = each.whole_s or each.seconds
        if each.arm != race.leader and race.beliefs[race.leader].n_observed:
            self.regret_s += max(0.0, took_s - race.expected_s(race.leader))
        race.observe(each.arm, took_s, each.skewed)

    def _plan_trials(self, seen: Sequence[Kind]) -> None:
        left_s = REGRET_BUDGET * self.total_s - self.regret_s
        shown: _Shown | None = None
        for kind in seen:
            race, _ = self._races[kind]
            if len(race.alive) == 1:
                continue
            shown = shown or _Shown(self.ratios())
            others = None if race.is_skewed else race.beliefs
            _tell(kind, [race.beliefs[arm] for arm in sorted(race.alive)], others, shown)
            left_s -= race.plan_trial(left_s)

    def ratios(self) -> list[Ratio]:
        """Observed ratios of families, for all kinds of calls."""
        current = [
            Ratio(kind, belief.arm.family, belief.log_ratio(), _trust(belief))
            for kind, (race, _) in self._races.items()
            if not race.is_skewed
            for belief in race.beliefs
            if belief.n_observed
        ]
        return current + self._former

    def observed(self) -> list[Observed]:
        """Observed times of arms, for kinds of calls in which ranks are rarely late."""
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
        self._former += [each._replace(weight=FORMER * each.weight) for each in ratios[:N_KINDS]]

    def restart(self, *, keep: bool = True) -> Races:
        """Start again with a new model; ``keep`` ratios of families.

        Predictions, and so the arms, may differ. Returns the old races, for `resume`.
        """
        self.n_starts += 1
        self.surprise_s = 0.0
        self.drift.retract()
        former = self.ratios()[:N_KINDS] if keep else []
        self._former = [ratio._replace(weight=FORMER * ratio.weight) for ratio in former]
        races, self._races = self._races, OrderedDict()
        self.drift = Drift(self.drift.worth_s)
        return races

    def resume(self, races: Races) -> None:
        """Go on with ``races``, which `restart` returned: the old model is back."""
        for race, _ in races.values():
            race.trial = None
        self.n_starts += 1
        self._races = races

    def forget(self) -> None:
        """Let all arms compete again: something changed that the model does not show."""
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
        """All kinds that were called."""
        return list(self._races)


def _trust(belief: Belief) -> float:
    return belief.n_observed / (belief.n_observed + 2)


class _Shown:
    """Ratios by collective and family, and how far predictions of plans were off in all.

    Only differences between plans of the same calls count: what all of them take longer than
    predicted, as on busy hosts, changes no decision.
    """

    def __init__(self, ratios: Sequence[Ratio]) -> None:
        self.by_family: dict[tuple[str, str], list[Ratio]] = {}
        self.weight = self.off = 0.0
        by_kind: dict[Kind, list[Ratio]] = {}
        for each in ratios:
            self.by_family.setdefault((each.kind.collective, each.family), []).append(each)
            if not _is_native(each.family):
                by_kind.setdefault(each.kind, []).append(each)
        for plans in by_kind.values():
            weight = sum(each.weight for each in plans)
            mean = sum(each.weight * each.log for each in plans) / max(weight, 1e-9)
            self.weight += weight * (1 - 1 / len(plans))
            self.off += sum(
                each.weight * min(abs(each.log - mean), MOST_OFF) ** 2 for each in plans
            )

    def trust_in(self, arm: Arm) -> float:
        """Factor of the spread of ``arm``, by errors of predictions of plans so far."""
        if _is_native(arm.family):
            return 1.0
        return math.sqrt((N_TRUST + self.off / arm.spread**2) / (N_TRUST + self.weight))


def _tell(
    kind: Kind, beliefs: Sequence[Belief], others: Sequence[Belief] | None, shown: _Shown
) -> None:
    """Let ``beliefs`` about calls of ``kind`` follow what was ``shown``; shifts only with
    ``others``, the beliefs about all arms.
    """
    for belief in beliefs:
        belief.trust = shown.trust_in(belief.arm)
        if others is not None:
            ratios = shown.by_family.get((kind.collective, belief.arm.family), ())
            belief.shift = shift_of(kind, belief, others, ratios)


def shift_of(
    kind: Kind, belief: Belief, others: Sequence[Belief], ratios: Sequence[Ratio]
) -> Shift:
    """Correction of an arm by other plans, and by ``ratios`` of its family at other sizes and
    roots.
    """
    family = belief.arm.family
    logs: list[tuple[float, float]] = []
    for ratio in ratios:
        if ratio.kind != kind:
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
