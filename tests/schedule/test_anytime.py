from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.errors import UsageError
from gridcoll.schedule import HEURISTICS, Accounting, Instance, accelerate, best
from gridcoll.schedule.accelerate import Runner, has_numba
from gridcoll.schedule.anytime import optimal, solve, warm_up
from gridcoll.schedule.completion import _fill
from gridcoll.schedule.greedy import _greedy
from gridcoll.schedule.relaxation import _dijkstra, _recursion
from gridcoll.schedule.search import Budget, Search

SEVEN = ("flat", "fef", "ecef", "ecef-la", "ecef-la-min-t", "ecef-la-max-t", "bottom-up")


def draw(seed: int, n: int, spread: float = 3.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    rng = np.random.default_rng(seed)
    latency, gap = rng.uniform(1e-3, 15e-3, (n, n)), rng.uniform(0.1, 0.6, (n, n))
    return latency, gap, rng.uniform(0.02, spread, n), int(rng.integers(n))


@given(
    st.integers(0, 2**32),
    st.integers(1, 16),
    st.sampled_from([0.02, 0.5, 3.0]),
    st.sampled_from([0, 100, 10_000, 60_000]),
)
@settings(max_examples=60, deadline=None)
def test_never_worse_than_any_of_the_seven_whatever_the_budget(seed, n, spread, steps) -> None:
    times = draw(seed, n, spread)
    found = best(*times, budget_steps=steps, accelerate=False)
    for name in SEVEN:
        assert found.makespan_s <= HEURISTICS[name](*times).makespan_s
    assert 0 < found.lower_bound_s <= found.makespan_s


@pytest.mark.parametrize("seed", range(12))
def test_bounds_hold_and_ten_clusters_are_solved(seed) -> None:
    times = draw(seed, 10)
    least = optimal(Instance(*times)).makespan_s
    found = best(*times)
    assert found.makespan_s == pytest.approx(least, rel=1e-12)
    assert found.is_optimal
    for steps in (0, 300, 3000):
        hasty = best(*times, budget_steps=steps)
        assert hasty.lower_bound_s <= least * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_more_steps_never_make_it_worse(seed) -> None:
    times = draw(seed, 40)
    found = [best(*times, budget_steps=steps).makespan_s for steps in (0, 50_000, 500_000)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]


def test_steps_and_nothing_else_decide() -> None:
    times = draw(3, 30, 0.5)
    first = best(*times, budget_steps=60_000, accelerate=False)
    assert best(*times, budget_steps=60_000, accelerate=False) == first


@pytest.mark.skipif(not has_numba(), reason="needs numba (extra fast)")
@pytest.mark.parametrize(("n", "steps"), [(1, 10**4), (2, 10**4), (12, 10**6), (40, 10**6)])
@pytest.mark.parametrize("internal", ["after-last-send", "from-arrival"])
@pytest.mark.long
def test_compiled_kernels_find_the_very_same(n, steps, internal) -> None:
    for seed in range(3):
        instance = Instance(*draw(seed, n, 0.5), Accounting("gap", internal))
        plain, compiled = (
            Search(instance, Runner(compiled=choice), Budget(None, steps, 1e6)).run()
            for choice in (False, True)
        )
        assert plain == compiled


def test_without_numba_asking_for_it_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(accelerate, "has_numba", lambda: False)
    with pytest.raises(UsageError, match="pip install numba"):
        best(*draw(1, 3), accelerate=True)
    assert best(*draw(1, 3), accelerate=False).is_optimal


def test_a_budget_in_seconds_bounds_the_search() -> None:
    """A clock that leaps: after the first look no time is left, and the seven are all there is."""
    instance = Instance(*draw(5, 30))
    hasty = solve(instance, budget_s=1.0, accelerate=False, clock=count(step=2).__next__)
    patient = solve(instance, budget_s=1e9, accelerate=False, clock=count(step=2).__next__)
    assert hasty.makespan_s > patient.makespan_s
    assert hasty.lower_bound_s < patient.lower_bound_s == pytest.approx(patient.makespan_s)


@pytest.mark.parametrize("budget", [{"budget_s": -1}, {"budget_s": np.nan}, {"budget_steps": -1}])
def test_impossible_budgets(budget) -> None:
    with pytest.raises(UsageError, match=next(iter(budget))):
        best(*draw(1, 3), **budget)


@pytest.mark.skipif(not has_numba(), reason="needs numba (extra fast)")
@pytest.mark.long
def test_a_warm_search_compiles_nothing() -> None:
    assert warm_up()
    kernels = [_dijkstra, _recursion, _greedy, _fill]
    known = [len(accelerate._compiled(kernel).signatures) for kernel in kernels]
    assert all(known)
    assert Runner(None).compiled
    for accounting in (Accounting(), Accounting("gap+latency", "from-arrival")):
        best(*draw(2, 30), budget_s=0.05, accounting=accounting)
    assert [len(accelerate._compiled(kernel).signatures) for kernel in kernels] == known
