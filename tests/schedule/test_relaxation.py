from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from msgspec.structs import replace

from gridcoll.schedule import Accounting, Instance
from gridcoll.schedule.accelerate import Runner
from gridcoll.schedule.anytime import optimal
from gridcoll.schedule.relaxation import earliest_arrivals, relax

RUN = Runner(compiled=False)
NO_LIMIT = 1 << 62


def draw(seed: int, n: int, accounting: Accounting, longest: float = 4.0) -> Instance:
    rng = np.random.default_rng(seed)
    times = [rng.uniform(0, 1, (n, n)), rng.uniform(0, 1, (n, n)), rng.uniform(0, longest, n)]
    return Instance(*times, int(rng.integers(n)), accounting)


def bounds(instance: Instance, upper_s: float) -> list[float]:
    """With no terminal more each time, from one to all."""
    problem = RUN.problem(instance)
    reach = earliest_arrivals(RUN, problem)
    others = [v for v in range(instance.n_clusters) if v != instance.root]
    return [
        relax(RUN, problem, reach, others[:k], upper_s, NO_LIMIT).bound_s
        for k in range(1, len(others) + 1)
    ]


@pytest.mark.parametrize("accounting", [Accounting(), Accounting("gap", "from-arrival")], ids=str)
@pytest.mark.parametrize("seed", range(15))
def test_bounds_rise_to_the_optimum(seed, accounting) -> None:
    instance = draw(seed, 6, accounting)
    least = optimal(instance).makespan_s
    found = bounds(instance, 1e9)
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(found))
    assert found[-1] == pytest.approx(least, rel=1e-12)


@pytest.mark.parametrize("seed", range(15))
def test_an_upper_bound_prunes_nothing_below_it(seed) -> None:
    instance = draw(seed, 6, Accounting())
    free = bounds(instance, 1e9)
    upper = free[-1] * 1.000001
    assert bounds(instance, upper) == pytest.approx(free, rel=1e-12)
    assert bounds(instance, free[-1] * 0.999999)[-1] == np.inf


@pytest.mark.parametrize("n_terminals", [2, 3])
@pytest.mark.parametrize("seed", range(25))
def test_the_bound_is_the_optimum_with_relays_at_will(seed, n_terminals) -> None:
    """Try every number of copies of each relay, none included."""
    instance = draw(seed, 5, Accounting(), 0.1)
    instance = replace(instance, latency_s=instance.latency_s / 10)  # splitting the work pays
    others = [v for v in range(5) if v != instance.root]
    terminals, relays = others[:n_terminals], others[n_terminals:]
    least = np.inf
    for copies in product(range(n_terminals + 1), repeat=len(relays)):
        cast = [instance.root, *terminals, *np.repeat(relays, copies)]
        gap = instance.gap_s[np.ix_(cast, cast)]
        gap[np.equal.outer(cast, cast)] = 1e3  # copies know nothing of each other
        latency = instance.latency_s[np.ix_(cast, cast)]
        found = optimal(Instance(latency, gap, instance.internal_s[cast], 0))
        least = min(least, found.makespan_s)
    problem = RUN.problem(instance)
    reach = earliest_arrivals(RUN, problem)
    bound = relax(RUN, problem, reach, terminals, 1e9, NO_LIMIT).bound_s
    assert bound == pytest.approx(least, rel=1e-12)


def test_shared_relays_are_named() -> None:
    """Both terminals are best reached through 1, which the tree then uses twice."""
    far, near = 100.0, 1.0
    gap = np.full((5, 5), far)
    gap[0, 1] = gap[1, 2] = gap[1, 3] = near
    gap[1, 2] = gap[1, 3] = 50.0
    instance = Instance(0 * gap, gap, np.zeros(5))
    problem = RUN.problem(instance)
    reach = earliest_arrivals(RUN, problem)
    assert list(reach) == [0, 1, 51, 51, 100]
    found = relax(RUN, problem, reach, [2, 3], 1e9, NO_LIMIT)
    assert found.bound_s == 52  # 0 sends to 1 at 0 and, once more, at 1
    assert found.shared == [1]
    strict = relax(RUN, problem, reach, [2, 3, 1], 1e9, NO_LIMIT)
    assert strict.shared == []
    assert strict.bound_s == 101  # 1 sends to 2 and 3 in turn


def test_the_step_limit_is_kept() -> None:
    instance = draw(1, 6, Accounting())
    problem = RUN.problem(instance)
    reach = earliest_arrivals(RUN, problem)
    found = relax(RUN, problem, reach, [v for v in range(6) if v != instance.root], 1e9, 10)
    assert not found.finished
    assert found.bound_s == 0
