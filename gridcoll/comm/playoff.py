"""What is about as fast as the fastest is run again, in turns with it, natives and plans together.

Discovery measures one thing after the other, a few times each: between two that differ by less than
the machine did meanwhile, noise would decide, for every later call of that size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from mpi4py import MPI

from gridcoll.comm.clock import CommonClock, Series, run_again
from gridcoll.comm.corrections import RUNS, TRIAL_SIZES, Step
from gridcoll.comm.natives import CALLS
from gridcoll.comm.sizes import affordable
from gridcoll.comm.variants import native_call
from gridcoll.model import Correction, GridModel
from gridcoll.plan import choose
from gridcoll.plan.choose import Candidate, family_of
from gridcoll.plan.natives import NATIVE

CLOSE = 1.12
"""Who is predicted, or was measured, to take at most so many times as long as the fastest plays."""

CLOSE_S = 1e-3
"""Or so much longer: to a call of a millisecond, ranks that share cores add another by noise."""

MOST_PLANS = 3
RUNS_PER_TURN = 2
"""After one that does not count."""

FEWEST_ROUNDS, MOST_ROUNDS = 2, 15
LONG_S = 1.2
"""Of one collective at one size: then no further round begins."""


def play_off(
    comm: MPI.Intracomm,
    model: GridModel,
    clock: CommonClock,
    progress: Callable[[str, int, int], None],
    collectives: Sequence[str] = tuple(RUNS),
) -> GridModel:
    """``model`` with what turns show of everything that may be fastest. Collective.

    Equal on all ranks. Needs corrections and natives of ``collectives``.
    """
    sizes = [
        (name, n_bytes)
        for name in collectives
        for n_bytes in affordable(name, comm.Get_size(), TRIAL_SIZES[name])
    ]
    for done, (name, n_bytes) in enumerate(sizes):
        progress("plans and natives in turns", done, len(sizes))
        plans, natives = _contenders(model, name, n_bytes)
        if len(plans) + len(natives) < 2:
            continue
        steps = [
            *(RUNS[name](comm, plan.build, n_bytes) for plan in plans if plan.build),
            *(_native_step(comm, name, native, n_bytes) for native in natives),
        ]
        medians = _take_turns(clock, steps)
        model = _learn_plans(model, name, n_bytes, list(zip(plans, medians, strict=False)))
        took = dict(zip(natives, medians[len(plans) :], strict=True))
        model = _learn_natives(model, name, n_bytes, took)
    progress("plans and natives in turns", len(sizes), len(sizes))
    return model


def _contenders(model: GridModel, name: str, n_bytes: int) -> tuple[list[Candidate], list[str]]:
    """The first plan of each family, and the natives, that are close to the fastest."""
    candidates = choose(name, model, n_bytes, 0).candidates
    fastest_s = min(_predicted(each) for each in candidates)
    limit_s = max(CLOSE * fastest_s, fastest_s + CLOSE_S)
    plans: dict[str, Candidate] = {}
    natives: list[str] = []
    for candidate in candidates:
        if candidate.build is None:
            natives += [candidate.name] * (_predicted(candidate) <= limit_s)
        elif not plans or _predicted(candidate) <= limit_s:
            plans.setdefault(family_of(name, candidate.name), candidate)
    return list(plans.values())[:MOST_PLANS], natives


def _predicted(candidate: Candidate) -> float:
    return float("inf") if candidate.predicted_s is None else candidate.predicted_s


def _native_step(comm: MPI.Intracomm, name: str, native: str, n_bytes: int) -> Step:
    method, args = CALLS[name](comm.Get_size(), n_bytes)
    return partial(native_call(native, method), comm, *args)


def _take_turns(clock: CommonClock, steps: Sequence[Step]) -> list[float]:
    """Median seconds of each; they take turns, to and fro, so that each comes after others.

    Who never was as fast as the fastest always is has lost, and plays no more.
    """
    took: list[list[float]] = [[] for _ in steps]
    left, series = list(range(len(steps))), Series(clock)
    for turn in range(MOST_ROUNDS):
        for k in left if turn % 2 else reversed(left):
            took[k] += run_again(partial(series.run, steps[k]), RUNS_PER_TURN)
        if turn + 1 >= FEWEST_ROUNDS:
            left = _still_in(took, left)
        if len(left) == 1 or series.ended_s - series.began_s > LONG_S:
            break
    return [float(np.median(each)) for each in took]


def _still_in(took: Sequence[Sequence[float]], left: Sequence[int]) -> list[int]:
    """Those of ``left`` whose fastest run was no slower than the leader's slowest."""
    leader = min(left, key=lambda k: float(np.median(took[k])))
    return [k for k in left if min(took[k]) <= max(took[leader])]


def _learn_plans(
    model: GridModel, name: str, n_bytes: int, took: Sequence[tuple[Candidate, float]]
) -> GridModel:
    """Corrections by which predictions are what was measured."""
    learned = dict(model.corrections.get(name, {}))
    for plan, seconds in took:
        family = family_of(name, plan.name)
        old = learned.get(family) or _believed(model, name)
        factor = old.at(n_bytes) * seconds / max(_predicted(plan), 1e-9)
        learned[family] = old.updated(n_bytes, factor)
    return replace(model, corrections={**model.corrections, name: learned})


def _believed(model: GridModel, name: str) -> Correction:
    """What `choose` makes of families that nobody tried."""
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
