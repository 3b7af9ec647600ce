from __future__ import annotations

import pytest

from gridcoll.schedule.anytime import solve
from gridcoll.schedule.search import Search
from gridcoll.study.comparison import Setting
from gridcoll.study.optimum_command import measure_nearness


def test_methods_are_ranked() -> None:
    setting = Setting(n_iterations=6)
    seven, hasty, exact = measure_nearness(setting, 8, [10.0], exact=True, accelerate=False)
    assert [seven.method, hasty.method, exact.method] == ["best of the seven", "best", "optimal"]
    assert seven.gap > 0
    assert seven.worst_gap >= seven.gap
    assert hasty.gap == exact.gap == exact.own_gap == 0
    assert exact.proven == hasty.proven == 1
    assert seven.proven == 0
    assert exact.n_instances == 6


@pytest.mark.long
def test_twenty_clusters_are_solved_and_what_is_left_of_fifty_is_known() -> None:
    """By steps, in plain Python: what a machine can do in a second is not at stake."""
    batch = Setting(n_iterations=50).chunk(20, 0)
    found = [solve(batch.instance(k), accelerate=False) for k in range(50)]
    assert sum(schedule.is_optimal for schedule in found) >= 0.99 * len(found)
    batch = Setting(n_iterations=6).chunk(50, 0)
    found = [solve(batch.instance(k), budget_steps=300_000, accelerate=False) for k in range(6)]
    gaps = [schedule.makespan_s / schedule.lower_bound_s - 1 for schedule in found]
    assert 0 <= min(gaps) <= sum(gaps) / len(gaps) < 0.03


@pytest.mark.parametrize("k", [6, 20, 24])
def test_what_is_left_of_the_budget_is_not_left_unused(k, monkeypatch) -> None:
    """Where bounds have not met when relaxing more would take too long, polishing gains."""
    instance = Setting(filling="per-cluster-max", n_iterations=40).chunk(30, 0).instance(k)
    found = solve(instance, budget_steps=200_000, accelerate=False)
    monkeypatch.setattr(Search, "_polish", lambda self, tree: None)
    rough = solve(instance, budget_steps=200_000, accelerate=False)
    assert found.makespan_s < rough.makespan_s * (1 - 1e-3)
    assert found.lower_bound_s == rough.lower_bound_s
