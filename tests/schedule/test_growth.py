from __future__ import annotations

import numpy as np
import pytest

from gridcoll.schedule import Accounting, Instance, best
from gridcoll.schedule.anytime import optimal
from gridcoll.schedule.search import growth_bound_s


def alike(n: int, latency: float, own: float) -> Instance:
    return Instance(np.full((n, n), latency), np.ones((n, n)), np.full(n, own))


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("latency", [0.0, 0.5, 3.0])
def test_clusters_that_are_alike_reach_it(n, latency) -> None:
    instance = alike(n, latency, 0.0)
    assert growth_bound_s(instance) == optimal(instance).makespan_s


def test_holders_double_without_latency() -> None:
    assert [growth_bound_s(alike(n, 0.0, 5.0)) for n in (1, 2, 3, 4, 5, 8, 9, 64)] == [
        5, 6, 7, 7, 8, 8, 9, 11,
    ]  # fmt: skip


@pytest.mark.parametrize("busy", ["gap", "gap+latency"])
@pytest.mark.parametrize("internal", ["after-last-send", "from-arrival"])
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0])
def test_it_is_a_bound(spread, internal, busy) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(1, 7))
        times = [rng.uniform(0, 1, (n, n)), rng.uniform(1, 1.2, (n, n)), rng.uniform(0, spread, n)]
        instance = Instance(*times, int(rng.integers(n)), Accounting(busy, internal))
        assert growth_bound_s(instance) <= optimal(instance).makespan_s * (1 + 1e-12)


def test_many_clusters_that_are_alike_are_solved_at_once() -> None:
    found = best(np.zeros((64, 64)), np.ones((64, 64)), np.zeros(64))
    assert found.makespan_s == 6
    assert found.is_optimal
