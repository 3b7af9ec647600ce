"""Autotune at discovery: candidates compete as in an application, but in the tuner's own calls.

Predictions of plans have errors of some 10 %, and those of natives that forward through thin links
have far larger ones. At each size, the candidates that `competitors` returns run until one is left,
by the same sequential elimination as in learning (`Race`). A plan that was slower than predicted
corrects the prediction of its family, and whatever is then predicted to be fastest also competes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from mpi4py import MPI
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.engine.natives import native_call
from gridcoll.measure.clock import FIRST_RUN_COUNTS_S, CommonClock, Series, find_clock
from gridcoll.measure.learning.arms import arms_of, competitors
from gridcoll.measure.learning.beliefs import median
from gridcoll.measure.learning.elimination import Race
from gridcoll.measure.learning.learner import Kind, shift_of
from gridcoll.measure.natives import CALLS
from gridcoll.measure.trials import RUNS, TRIAL_SIZES, Step, series_of, worth_trying
from gridcoll.model import Correction, GridModel
from gridcoll.plan import Choice, choose
from gridcoll.plan.natives import NATIVE
from gridcoll.plan.registry import REGISTRIES, Candidate, family_of

MOST_RACES = 4
"""Most races at one size: each plan that is slower than predicted may bring another one into a new
race."""

RUNS_PER_TURN = 2
"""Runs of one candidate in a row that count. The run before them does not count, because it suffers
from after-effects of other candidates. Candidates take turns, so that noise which lasts minutes
does not decide between them."""

FEWEST_RUNS = 2
"""Fewest runs of each candidate that is still in the race, even when time is up."""

LONG_S = 1.2
"""Seconds of a race. After that, only candidates with fewer than `FEWEST_RUNS` run."""

_FACTOR_LIMITS = (0.25, 16.0)  # factors beyond these come from a disturbance

_Durations = dict[tuple[str, str], list[float]]
"""Seconds of the runs of each candidate, by its name and label."""


class _SizeResult(Struct):
    """Results at one size."""

    factors: dict[str, float]
    """Measured over predicted time of each family, in the order of their first runs."""
    natives: dict[str, float]
    """Seconds of each native."""


def tune(
    comm: MPI.Intracomm,
    model: GridModel,
    progress: Callable[[str, int, int], None],
    collective: str,
) -> GridModel:
    """Return ``model`` with predictions of ``collective``, plans and natives, corrected by runs.

    Collective; equal on all ranks. Natives compete only if ``model`` has times of them. A family
    that did not run at a size gets the correction of the best one that did.
    """
    sizes = worth_trying(comm, model, collective, TRIAL_SIZES[collective])
    found: dict[int, _SizeResult] = {}
    clock = find_clock(comm, model.grid)  # clocks drift noticeably within minutes
    uncorrected_model = replace(model, corrections={**model.corrections, collective: {}})
    for done, n_bytes in enumerate(sizes):
        progress(f"tuning of {collective}", done, len(sizes))
        found[n_bytes] = _tune_size(comm, uncorrected_model, clock, collective, n_bytes)
    progress(f"tuning of {collective}", len(sizes), len(sizes))
    return _with_results(uncorrected_model, collective, found)


def _tune_size(
    comm: MPI.Intracomm,
    uncorrected_model: GridModel,
    clock: CommonClock,
    collective: str,
    n_bytes: int,
) -> _SizeResult:
    """Run races until the candidate with the fastest corrected prediction has run."""
    uncorrected = choose(collective, uncorrected_model, n_bytes, 0, grid_only=True)
    natives = collective in uncorrected_model.native
    families = {family_of(collective, name) for name in REGISTRIES[collective]}
    series = series_of(comm, clock, collective, n_bytes)
    took_s: _Durations = {}
    found = _SizeResult({}, {})
    for _ in range(MOST_RACES):
        # `choose` corrects families that did not run by the factor of the best one. Here they may
        # still run, so their predictions are left as they are.
        all_factors = {**dict.fromkeys(families, 1.0), **found.factors}
        model = _with_results(
            uncorrected_model, collective, {n_bytes: _SizeResult(all_factors, found.natives)}
        )
        choice = choose(collective, model, n_bytes, 0, grid_only=not natives)
        if _key(choice.winner) in took_s:
            break
        rivals = competitors(choice, natives)
        if len(rivals) == 1 and rivals[0].build is None:
            break
        race = Race(arms_of(collective, rivals, model if found.factors else uncorrected_model))
        steps = [_step(comm, collective, each, n_bytes) for each in rivals]
        _run_race(series, race, Kind(collective, n_bytes), steps, took_s)
        for each in rivals:
            if seconds := took_s.get(_key(each)):
                _record(found, uncorrected, each, median(seconds))
    return found


def _record(found: _SizeResult, uncorrected: Choice, candidate: Candidate, seconds: float) -> None:
    if candidate.build is None:
        found.natives[candidate.name] = seconds
        return
    factor = seconds / _predicted_s(uncorrected, candidate)
    family = family_of(uncorrected.collective, candidate.name)
    found.factors[family] = float(np.clip(factor, *_FACTOR_LIMITS))


def _key(candidate: Candidate) -> tuple[str, str]:
    return candidate.name, candidate.label


def _predicted_s(choice: Choice, wanted: Candidate) -> float:
    """Return the predicted time of the same candidate in ``choice``, which has no corrections."""
    same = (c for c in choice.candidates if _key(c) == _key(wanted))
    return max(next(same).predicted_s or 0.0, 1e-9)


def _step(comm: MPI.Intracomm, collective: str, candidate: Candidate, n_bytes: int) -> Step:
    if candidate.build is not None:
        return RUNS[collective](comm, candidate.build, n_bytes)
    method, args = CALLS[collective](comm.Get_size(), n_bytes)
    return partial(native_call(candidate.name, method), comm, *args)


def _run_race(
    series: Series, race: Race, kind: Kind, steps: Sequence[Step], took_s: _Durations
) -> None:
    """Let the arms of ``race`` compete by running ``steps``, and add durations to ``took_s``.

    Collective; equal on all ranks. Runs of earlier races count.
    """
    keys = [(belief.arm.name, belief.arm.label) for belief in race.beliefs]
    for arm, key in enumerate(keys):
        for seconds in took_s.get(key, ()):
            race.observe(arm, seconds, skewed=False)
    began_s, last = math.nan, -1
    while True:
        for belief in race.beliefs:
            belief.shift = shift_of(kind, belief, race.beliefs, ())
        race.settle()
        runner = _next_arm(race, last, series.ended_s - began_s > LONG_S)
        if runner is None:
            return
        for seconds in _run_turn(series, steps[runner]):
            took_s.setdefault(keys[runner], []).append(seconds)
            race.observe(runner, seconds, skewed=False)
        began_s = series.began_s if math.isnan(began_s) else began_s
        last = runner


def _next_arm(race: Race, last: int, time_is_up: bool) -> int | None:
    """Return the next arm: the leader and others in turns; None if no further run is needed."""
    too_few_runs = [arm for arm in sorted(race.alive) if race.beliefs[arm].n_observed < FEWEST_RUNS]
    if time_is_up or len(race.alive) == 1:
        return too_few_runs[0] if too_few_runs else None
    if last != race.leader:
        return race.leader
    race.plan_trial(math.inf, math.inf)  # no limits: all later jobs profit from the result
    rival, race.trial = race.next_arm(), None
    return None if rival == race.leader else rival


def _run_turn(series: Series, step: Step) -> list[float]:
    """Return the seconds of `RUNS_PER_TURN` runs, after one that does not count.

    If the first run takes long, it counts and is the only one: the runs before it matter little.
    """
    first_s = series.run(step)
    if first_s >= FIRST_RUN_COUNTS_S:
        return [first_s]
    return [series.run(step) for _ in range(RUNS_PER_TURN)]


def _with_results(model: GridModel, collective: str, found: Mapping[int, _SizeResult]) -> GridModel:
    return _with_native_times(_with_corrections(model, collective, found), collective, found)


def _with_corrections(
    model: GridModel, collective: str, found: Mapping[int, _SizeResult]
) -> GridModel:
    families = dict.fromkeys(family for each in found.values() for family in each.factors)
    learned = {
        family: Correction(
            tuple(found),
            tuple(
                each.factors.get(family, max(1.0, min(each.factors.values(), default=1.0)))
                for each in found.values()
            ),
        )
        for family in families
    }
    return replace(model, corrections={**model.corrections, collective: learned})


def _with_native_times(
    model: GridModel, collective: str, found: Mapping[int, _SizeResult]
) -> GridModel:
    native, variants = dict(model.native), dict(model.native_variants.get(collective, {}))
    for n_bytes, each in found.items():
        for name, seconds in each.natives.items():
            if name == NATIVE:
                native[collective] = native[collective].updated(n_bytes, seconds)
            else:
                variants[name] = variants[name].updated(n_bytes, seconds)
    if not variants:
        return replace(model, native=native)
    return replace(
        model, native=native, native_variants={**model.native_variants, collective: variants}
    )
