from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from gridcoll.schedule import HEURISTICS, Accounting, Batch, Instance
from gridcoll.schedule.accelerate import Runner
from gridcoll.schedule.anytime import optimal
from gridcoll.schedule.batch import price_batch
from gridcoll.schedule.relaxation import earliest_arrivals, relax


@cache
def all_schedules(n: int) -> list[list[tuple[int, int]]]:
    """Every sequence of transfers that is a broadcast from 0: 576 for five clusters."""
    found: list[list[tuple[int, int]]] = [[]]
    for _ in range(n - 1):
        longer = []
        for transfers in found:
            reached = [0, *(receiver for _, receiver in transfers)]
            longer += [[*transfers, (i, j)] for i in reached for j in range(n) if j not in reached]
        found = longer
    return found


def brute_force(batch: Batch) -> np.ndarray:
    """The least makespan of each instance, by trying everything."""
    least = np.full(batch.n_instances, np.inf)
    for transfers in all_schedules(batch.n_clusters):
        pairs = np.array(transfers, dtype=np.intp).reshape(-1, 2)
        rows = np.broadcast_to(pairs.T[:, None, :], (2, batch.n_instances, len(pairs)))
        np.minimum(least, price_batch(batch, *rows).makespan_s, out=least)
    return least


def draw(n: int, b: int, accounting: Accounting, scale: float, seed: int = 5) -> Batch:
    rng = np.random.default_rng([seed, n])
    latency, gap = rng.uniform(1, 15, (b, n, n)), rng.uniform(100, 600, (b, n, n))
    for matrix in (latency, gap):
        matrix[:, np.arange(n), np.arange(n)] = 0
    return Batch(latency, gap, scale * rng.uniform(20, 3000, (b, n)), 0, accounting)


@pytest.mark.parametrize("internal", ["after-last-send", "from-arrival"])
@pytest.mark.parametrize("busy", ["gap", "gap+latency"])
@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_optimal_is_what_trying_everything_finds(n, scale, busy, internal) -> None:
    """Thousands of instances: 48 parameter sets of 100."""
    batch = draw(n, 100, Accounting(busy, internal), scale)
    found = HEURISTICS["optimal"].pick_batch(batch)
    np.testing.assert_allclose(found.makespan_s, brute_force(batch), rtol=1e-12)
    np.testing.assert_allclose(found.lower_bound_s, found.makespan_s, rtol=1e-9)


@pytest.mark.parametrize("scale", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("n", [8, 10])
def test_optimal_is_the_plain_recursion_over_subsets(n, scale) -> None:
    """With every cluster a terminal and no upper bound, the relaxation has nothing to relax."""
    batch = draw(n, 3, Accounting(), scale)
    run = Runner(compiled=False)
    for k in range(batch.n_instances):
        instance = batch.instance(k)
        problem = run.problem(instance)
        everyone = list(range(1, n))
        reach = earliest_arrivals(run, problem)
        exact = relax(run, problem, reach, everyone, 1e9, 1 << 62)
        assert sorted(receiver for _, receiver in exact.transfers) == everyone
        assert optimal(instance).makespan_s == pytest.approx(exact.bound_s, rel=1e-12)


@pytest.mark.parametrize("n", [6, 11])
def test_equal_clusters_are_solved_too(n) -> None:
    """Nothing tells clusters apart, so nothing can be pruned: rounds of doubling are the best."""
    gap = np.ones((n, n))
    found = optimal(Instance(0 * gap, gap, np.zeros(n)))
    assert found.makespan_s == np.ceil(np.log2(n))
    assert found.is_optimal


def test_beyond_a_dozen_the_bound_is_proven_even_when_not_met() -> None:
    batch = draw(30, 2, Accounting(), 1.0)
    for k in range(2):
        hasty = optimal(batch.instance(k), budget_steps=1000)
        patient = optimal(batch.instance(k))
        assert hasty.lower_bound_s <= patient.makespan_s <= hasty.makespan_s
        assert patient.is_optimal
        assert not hasty.is_optimal
