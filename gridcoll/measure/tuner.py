"""Autotuning at discovery: runs plans, then the fastest plans and natives alternately.

Predictions have errors of some 10 %. So at each size the plan with the shortest prediction is run
and its prediction corrected, until a plan that ran stays the fastest. Then all plans and natives
within noise of the fastest run again, alternately: measured one after the other, noise between the
measurements could decide for every later call of that size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from mpi4py import MPI

from gridcoll.engine.natives import native_call
from gridcoll.measure.clock import FIRST_COUNTS_S, CommonClock, Series, find_clock
from gridcoll.measure.natives import CALLS
from gridcoll.measure.trials import (
    ENOUGH_S,
    FEWEST_RUNS,
    MOST_RUNS,
    RUNS,
    TRIAL_SIZES,
    Step,
    worth_trying,
)
from gridcoll.model import Correction, GridModel
from gridcoll.plan import Choice, choose
from gridcoll.plan.natives import NATIVE
from gridcoll.plan.registry import REGISTRIES, Candidate, family_of

MOST_TRIALS = 4
"""Families tried at one size."""

BEHIND = 1.5
"""A plan that takes so many times as long as the fastest, twice, is not run again."""

_FACTORS = (0.25, 16.0)  # factors beyond these come from a disturbance


def measure_corrections(
    comm: MPI.Intracomm,
    model: GridModel,
    collective: str,
    progress: Callable[[str, int, int], None],
) -> dict[str, Correction]:
    """Correct predictions by family of algorithms. Collective; equal on all ranks.

    At each size, run the plan with the shortest prediction and correct it, until one that ran stays
    the fastest. A family that did not run at a size gets the correction of the best one that did.
    """
    sizes = worth_trying(comm, model, collective, TRIAL_SIZES[collective])
    found: dict[int, dict[str, float]] = {}
    clock = find_clock(comm, model.grid)  # clocks drift noticeably within minutes
    for done, n_bytes in enumerate(sizes):
        progress(f"plans for {collective}", done, len(sizes))
        found[n_bytes] = _try_size(comm, model, clock, collective, n_bytes)
    progress(f"plans for {collective}", len(sizes), len(sizes))
    families = dict.fromkeys(family for tried in found.values() for family in tried)
    return {
        family: Correction(sizes, tuple(_factor(found[n_bytes], family) for n_bytes in sizes))
        for family in families
    }


def _factor(tried: dict[str, float], family: str) -> float:
    return tried.get(family, max(1.0, min(tried.values(), default=1.0)))


def _try_size(
    comm: MPI.Intracomm, model: GridModel, clock: CommonClock, collective: str, n_bytes: int
) -> dict[str, float]:
    """Measured over predicted of each family that ran, in the order of trials."""
    tried: dict[str, float] = {}
    fastest_s = math.inf
    plain = choose(collective, model, n_bytes, 0, grid_only=True)
    families = {family_of(collective, name) for name in REGISTRIES[collective]}
    for _ in range(MOST_TRIALS):
        learned = {name: Correction((n_bytes,), (tried.get(name, 1.0),)) for name in families}
        corrected = replace(model, corrections={collective: learned})
        winner = choose(collective, corrected, n_bytes, 0, grid_only=True).winner
        if winner.build is None or (family := family_of(collective, winner.name)) in tried:
            break
        step = RUNS[collective](comm, winner.build, n_bytes)
        took_s = _median_s(clock, step, fastest_s)
        fastest_s = min(fastest_s, took_s)
        tried[family] = float(np.clip(took_s / _predicted_s(plain, winner), *_FACTORS))
    return tried


def _median_s(clock: CommonClock, step: Step, fastest_s: float) -> float:
    """Median of several runs, more of them where they are short; of two where ``fastest_s`` is much
    shorter.

    Equal on all ranks.
    """
    took_s: list[float] = []
    series = Series(clock)
    while len(took_s) < FEWEST_RUNS or (len(took_s) < MOST_RUNS and sum(took_s) < ENOUGH_S):
        took_s.append(series.run(step))
        if len(took_s) == 2 and min(took_s) > BEHIND * fastest_s:
            break
    return float(np.median(took_s))


def _predicted_s(choice: Choice, wanted: Candidate) -> float:
    """Predicted time of the same candidate in ``choice``, made by a model without corrections."""
    same = (c for c in choice.candidates if (c.name, c.label) == (wanted.name, wanted.label))
    return max(next(same).predicted_s or 0.0, 1e-9)


def try_plans(
    comm: MPI.Intracomm,
    model: GridModel,
    progress: Callable[[str, int, int], None],
    collectives: Sequence[str] = tuple(RUNS),
) -> GridModel:
    """``model`` with corrections of every collective, from running plans. Collective."""
    return replace(
        model,
        corrections={
            **model.corrections,
            **{name: measure_corrections(comm, model, name, progress) for name in collectives},
        },
    )


CLOSE = 1.12
"""Candidates whose predicted or measured time is at most so many times the fastest one compete."""

CLOSE_S = 1e-3
"""Or at most so much longer: where ranks share cores, noise adds a millisecond to a call."""

UNSURE = 1.6
"""The same for natives with fewer than `ENOUGH_RUNS` counted runs."""

ENOUGH_RUNS = 3

MOST_PLANS = 3
RUNS_PER_TURN = 2
"""Runs per turn, after one that does not count."""

FEWEST_ROUNDS, MOST_ROUNDS = 2, 15
LONG_TURN_S = 1.2
"""After so long for one collective at one size, no candidate gets another turn."""

UNDECIDED = 1.1
"""Except those whose only run took at most so many times as long as the fastest: a run that loses
segments takes 10 % longer than the next."""

NativeRuns = Mapping[str, Mapping[str, Mapping[int, int]]]
"""Number of counted runs of natives: by collective, native, size."""


def autotune(
    comm: MPI.Intracomm,
    model: GridModel,
    progress: Callable[[str, int, int], None],
    collectives: Sequence[str] = tuple(RUNS),
    n_runs: NativeRuns | None = None,
) -> GridModel:
    """``model`` after runs, in turns, of all candidates that may be the fastest. Collective.

    Equal on all ranks. Needs corrections and natives of ``collectives``. ``n_runs`` says how often
    natives ran; those that it lacks ran often enough.
    """
    sizes = [
        (name, n_bytes)
        for name in collectives
        for n_bytes in worth_trying(comm, model, name, TRIAL_SIZES[name])
    ]
    clocks: dict[str, CommonClock] = {}  # clocks drift noticeably within minutes
    for done, (name, n_bytes) in enumerate(sizes):
        progress("plans and natives in turns", done, len(sizes))
        plans, natives = _contenders(model, name, n_bytes, (n_runs or {}).get(name, {}))
        if len(plans) + len(natives) < 2:
            continue
        if name not in clocks:
            clocks[name] = find_clock(comm, model.grid)
        steps = [
            *(RUNS[name](comm, plan.build, n_bytes) for plan in plans if plan.build),
            *(_native_step(comm, name, native, n_bytes) for native in natives),
        ]
        medians = _take_turns(clocks[name], steps)
        model = _learn_plans(model, name, n_bytes, list(zip(plans, medians, strict=False)))
        took = dict(zip(natives, medians[len(plans) :], strict=True))
        model = _learn_natives(model, name, n_bytes, took)
    progress("plans and natives in turns", len(sizes), len(sizes))
    return model


def _contenders(
    model: GridModel, name: str, n_bytes: int, n_runs: Mapping[str, Mapping[int, int]]
) -> tuple[list[Candidate], list[str]]:
    """The best plan of each family, and natives, if their times are close to the fastest.

    Or may be close, as they ran too seldom to know.
    """
    candidates = choose(name, model, n_bytes, 0).candidates
    fastest_s = min(each.expected_s for each in candidates)
    limit_s = max(CLOSE * fastest_s, fastest_s + CLOSE_S)
    plans: dict[str, Candidate] = {}
    natives: list[str] = []
    for candidate in candidates:
        if candidate.build is None:
            unsure = _fewest(n_runs.get(candidate.name, {}), n_bytes) < ENOUGH_RUNS
            close_s = max(limit_s, UNSURE * fastest_s) if unsure else limit_s
            natives += [candidate.name] * (candidate.expected_s <= close_s)
        elif not plans or candidate.expected_s <= limit_s:
            plans.setdefault(family_of(name, candidate.name), candidate)
    return list(plans.values())[:MOST_PLANS], natives


def _fewest(n_runs: Mapping[int, int], n_bytes: int) -> int:
    """Number of runs behind the time at ``n_bytes``: the smaller one of the two sizes around it."""
    if not n_runs:
        return ENOUGH_RUNS
    below = max((n for n in n_runs if n <= n_bytes), default=min(n_runs))
    above = min((n for n in n_runs if n >= n_bytes), default=max(n_runs))
    return min(n_runs[below], n_runs[above])


def _native_step(comm: MPI.Intracomm, name: str, native: str, n_bytes: int) -> Step:
    method, args = CALLS[name](comm.Get_size(), n_bytes)
    return partial(native_call(native, method), comm, *args)


def _take_turns(clock: CommonClock, steps: Sequence[Step]) -> list[float]:
    """Median seconds of each. They run alternately, so that each comes after different others.

    A step whose fastest run is slower than the leader's slowest is eliminated.
    """
    took: list[list[float]] = [[] for _ in steps]
    left, series = list(range(len(steps))), Series(clock)
    for turn in range(MOST_ROUNDS):
        if turn == 1 and _is_late(series):
            for k in _undecided(took):
                took[k] += _run_turn(series, steps[k])
            break
        for k in left if turn % 2 else reversed(left):
            if not (turn and _is_late(series)):
                took[k] += _run_turn(series, steps[k])
        if turn + 1 >= FEWEST_ROUNDS:
            left = _still_in(took, left)
        if len(left) == 1 or (turn and _is_late(series)):
            break
    return [float(np.median(each)) for each in took]


def _is_late(series: Series) -> bool:
    """Whether time is up, by rank 0's clock: equal on all ranks."""
    return series.ended_s - series.began_s > LONG_TURN_S


def _run_turn(series: Series, step: Step) -> list[float]:
    """Seconds of `RUNS_PER_TURN` runs, after one that does not count; of one when time is up.

    If the first one takes long, it counts and is the only one: what ran before it matters little.
    """
    first_s = series.run(step)
    if first_s >= FIRST_COUNTS_S:
        return [first_s]
    took_s = [series.run(step)]
    while len(took_s) < RUNS_PER_TURN and not _is_late(series):
        took_s.append(series.run(step))
    return took_s


def _undecided(took: Sequence[Sequence[float]]) -> list[int]:
    """Candidates between which the first turn did not decide; none if it did."""
    fastest_s = min(min(each) for each in took)
    close = [k for k, each in enumerate(took) if min(each) <= UNDECIDED * fastest_s]
    return close if len(close) > 1 else []


def _still_in(took: Sequence[Sequence[float]], left: Sequence[int]) -> list[int]:
    """Those of ``left`` whose fastest run was no slower than the leader's slowest."""
    leader = min(left, key=lambda k: float(np.median(took[k])))
    return [k for k in left if min(took[k]) <= max(took[leader])]


def _learn_plans(
    model: GridModel, name: str, n_bytes: int, took: Sequence[tuple[Candidate, float]]
) -> GridModel:
    """Corrections that make predictions equal to the measured times."""
    learned = dict(model.corrections.get(name, {}))
    for plan, seconds in took:
        family = family_of(name, plan.name)
        old = learned.get(family) or _believed(model, name)
        factor = old.at(n_bytes) * seconds / max(plan.expected_s, 1e-9)
        learned[family] = old.updated(n_bytes, factor)
    return replace(model, corrections={**model.corrections, name: learned})


def _believed(model: GridModel, name: str) -> Correction:
    """The factor that `choose` uses for families that were not run."""
    tried, sizes = model.corrections.get(name, {}).values(), TRIAL_SIZES[name]
    best = (min((each.at(n) for each in tried), default=1.0) for n in sizes)
    return Correction(sizes, tuple(max(1.0, factor) for factor in best))


def _learn_natives(
    model: GridModel, name: str, n_bytes: int, took_s: Mapping[str, float]
) -> GridModel:
    plain, variants = dict(model.native), dict(model.native_variants.get(name, {}))
    for native, seconds in took_s.items():
        times = plain[name] if native == NATIVE else variants[native]
        times = times.updated(n_bytes, seconds)
        if native == NATIVE:
            plain[name] = times
        else:
            variants[native] = times
    return replace(model, native=plain, native_variants={**model.native_variants, name: variants})
