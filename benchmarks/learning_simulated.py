"""Simulate learning on random grids, without MPI, with a wrong model, late ranks, or both.

    python benchmarks/learning_simulated.py [--grids 30] [--calls 400] [--wrong 3] [--late 0]
        [--set elimination.COLD_START=0,0.1,0.2]

The calls are those of `apps/calls.py mix`, on grids of `unlike_grids.py`. Learning starts with the
declared grid in which the rate of one link is wrong by a factor. A call takes the price of its plan
on the true grid, times an error of the plan (15 %) and noise (4 %), and longer when it follows a
call of the same kind by another candidate. With ``--late``, each rank enters late by up to this
fraction of the call's own time, differently for each call. Natives take 0.9 to 4 times the best
plan.

Prints, for both halves of the calls, the time over that of the best candidate of each kind (median
and worst of all grids), and the regret that the learner counts. With ``--set``, does so for each
value of a constant.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Sequence
from importlib import import_module

from apps.calls import mix
from msgspec import Struct
from unlike_grids import random_grid

from gridcoll.measure.learning.arms import arms_of, competitors, limit_of_calls
from gridcoll.measure.learning.beliefs import Arm
from gridcoll.measure.learning.learner import Kind, Learner, Observation
from gridcoll.model.gridmodel import declared_model
from gridcoll.plan.choose import choose
from gridcoll.plan.cost import _Costs, _Simulation
from gridcoll.plan.plan import Plan

CALLS_PER_EXCHANGE, RESULT_LAG_CALLS = 3, 2
"""Calls between two exchanges of observations, and until a result arrives, as on three sites."""

PLAN_ERROR, NOISE = 0.15, 0.04
SWITCHING_COST = (0.05, 0.25)
"""Extra time of a first call by another candidate, over later ones, as measured on three sites."""

NATIVE_RATIOS = (0.9, 4.0)

N_PROFILES = 4
"""Number of sets of entry times per kind of call. Each call uses a random one."""


class Way(Struct):
    """A candidate for a call: its arm, and its seconds by set of entry times."""

    arm: Arm
    took_s: list[float]

    @property
    def seconds(self) -> float:
        return sum(self.took_s) / len(self.took_s)


class Calls(Struct):
    """Calls of one kind: the competing candidates, and the skew of ranks by set of entry times.

    ``behind_s`` is how long before the last rank's entry the call could begin. A broadcast begins
    when its root, rank 0, enters; other calls do not begin before the last entry.
    """

    ways: list[Way]
    skew_s: list[float]
    behind_s: list[float]

    @property
    def best(self) -> int:
        return min(range(len(self.ways)), key=lambda k: self.ways[k].seconds)


class LateSimulation(_Simulation):
    """A simulation in which each rank enters at its own time."""

    def __init__(self, plan: Plan, costs: _Costs, entry_s: Sequence[float]) -> None:
        self._entry_s = entry_s
        super().__init__(plan, costs)

    def _schedule(self, time: float, kind: str, rank: int, index: int) -> None:
        came_s = self._entry_s[rank] if kind == "ready" else 0.0
        super()._schedule(max(time, came_s), kind, rank, index)


class Played(Struct):
    """Seconds of the calls by half: with learning, by the best candidate, and without learning."""

    took_s: list[float]
    best_s: list[float]
    frozen_s: list[float]
    regret: float
    n_changes: int


class Place:
    """One grid. ``wrong`` is the error factor of one link's rate in the initial model."""

    def __init__(self, seed: int, wrong: float, late: float) -> None:
        self._rng, self._late, self._seed = random.Random(seed), late, seed
        spec, guess = (random_grid(seed, 4) for _ in range(2))
        a, b = self._rng.sample(range(len(spec.clusters)), 2)
        factor = self._rng.choice((wrong, 1 / wrong))
        guess.rate_bytes_per_s[a, b] *= factor
        guess.rate_bytes_per_s[b, a] *= factor
        self.true = declared_model(spec, spec.rank_hosts())
        self.start = declared_model(guess, guess.rank_hosts())
        self._calls: dict[Kind, Calls] = {}

    def calls(self, kind: Kind) -> Calls:
        if kind not in self._calls:
            self._calls[kind] = self._make(kind)
        return self._calls[kind]

    def _make(self, kind: Kind) -> Calls:
        name, n_bytes, rng = kind.collective, kind.n_bytes, self._rng
        candidates = competitors(choose(name, self.start, n_bytes, 0), natives=name != "allreduce")
        unit_bytes = 8 if name == "allreduce" else 1
        plans = [
            each.build(max(n_bytes // unit_bytes, 1)) if each.build else None for each in candidates
        ]
        costs = [None if plan is None else _Costs(plan, self.true, unit_bytes) for plan in plans]
        n_ranks = self.true.grid.n_ranks
        at_once = [0.0] * n_ranks
        alone_s = min(
            LateSimulation(plan, cost, at_once).run().makespan_s
            for plan, cost in zip(plans, costs, strict=True)
            if plan is not None and cost is not None
        )
        entries = [
            [rng.uniform(0, self._late * alone_s) for _ in at_once] for _ in range(N_PROFILES)
        ]
        entries = entries if self._late else [at_once]
        ways = []
        for arm, plan, cost in zip(
            arms_of(name, candidates, self.start, n_bytes), plans, costs, strict=True
        ):
            took_s: list[float] = []
            if plan is not None and cost is not None:
                error = math.exp(rng.gauss(0, PLAN_ERROR))
                for entry_s in entries:
                    ends_s = LateSimulation(plan, cost, entry_s).run().makespan_s
                    took_s.append(max(ends_s - max(entry_s), 1e-6) * error)
            ways.append(Way(arm, took_s))
        first = next(way for way in ways if way.took_s)
        best_s = min(way.seconds for way in ways if way.took_s)
        for way in ways:
            if not way.took_s:
                times = (
                    math.exp(rng.uniform(*map(math.log, NATIVE_RATIOS))) * best_s / first.seconds
                )
                way.took_s = [times * each for each in first.took_s]
        last_s = [max(entry_s) for entry_s in entries]
        if name == "bcast":
            behind_s = [last - entry_s[0] for last, entry_s in zip(last_s, entries, strict=True)]
            return Calls(ways, behind_s, behind_s)
        skew_s = [last - min(entry_s) for last, entry_s in zip(last_s, entries, strict=True)]
        return Calls(ways, skew_s, [0.0] * len(entries))

    def play(self, n_calls: int) -> Played:
        learner, rng = Learner(), random.Random(self._seed)
        waiting: list[tuple[Observation, float]] = []
        last: dict[Kind, int] = {}
        sums = [[0.0, 0.0] for _ in range(3)]
        n_changes = 0
        for number, (call, n) in enumerate(mix(n_calls)):
            kind = Kind(call.lower(), n)
            calls = self.calls(kind)
            arm = learner.next_arm(
                kind,
                lambda calls=calls: [way.arm for way in calls.ways],  # type: ignore[misc]
                lambda kind=kind: limit_of_calls(  # type: ignore[misc]
                    kind.collective, self.start, kind.n_bytes, 0
                ),
            )
            profile, noise = rng.randrange(len(calls.skew_s)), math.exp(rng.gauss(0, NOISE))
            took, best, frozen = (
                calls.ways[each].took_s[profile] * noise for each in (arm, calls.best, 0)
            )
            if last.get(kind, arm) != arm:
                took += calls.ways[arm].seconds * rng.uniform(*SWITCHING_COST)
            last[kind] = arm
            half = 2 * number // n_calls
            for part, seconds in zip(sums, (took, best, frozen), strict=True):
                part[half] += seconds
            skew_s, whole_s = calls.skew_s[profile], took + calls.behind_s[profile]
            waiting.append((Observation(kind, arm, took, skew_s, whole_s), took + skew_s))
            if number % CALLS_PER_EXCHANGE == 0 and len(waiting) > RESULT_LAG_CALLS:
                known, waiting = waiting[:-RESULT_LAG_CALLS], waiting[-RESULT_LAG_CALLS:]
                total_s = sum(seconds for _, seconds in known)
                n_changes += len(learner.learn([each for each, _ in known], total_s))
        return Played(*sums, learner.regret_s / learner.total_s, n_changes)


def report(played: Sequence[Played]) -> None:
    def shown(ratios: Sequence[float]) -> str:
        return f"{statistics.median(ratios):.3f} (worst {max(ratios):.2f})"

    for way in ("frozen", "took"):
        halves = [
            [getattr(each, f"{way}_s")[half] / each.best_s[half] for each in played]
            for half in range(2)
        ]
        print(f"{'learning' if way == 'took' else way:>9}  {'  '.join(map(shown, halves))}")
    print(f"   regret  {shown([each.regret for each in played])}")
    print(f"  changes  {statistics.median(each.n_changes for each in played)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--grids", type=int, default=30)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--wrong", type=float, default=3.0)
    parser.add_argument("--late", type=float, default=0.0)
    parser.add_argument("--set", action="append", default=[], metavar="MODULE.NAME=VALUE,…")
    options = parser.parse_args()
    places = [Place(seed, options.wrong, options.late) for seed in range(options.grids)]
    print("over the best way of each kind, first and second half:")
    report([place.play(options.calls) for place in places])
    for each in options.set:
        where, _, values = each.partition("=")
        name, _, constant = where.partition(".")
        module = import_module(f"gridcoll.measure.learning.{name}")
        before = getattr(module, constant)
        for value in values.split(","):
            setattr(module, constant, float(value))
            print(f"{constant} = {value}:")
            report([place.play(options.calls) for place in places])
        setattr(module, constant, before)


if __name__ == "__main__":
    main()
