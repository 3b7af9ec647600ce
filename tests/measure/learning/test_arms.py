"""Limits of calls, as learning knows them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gridcoll.measure.learning.arms import (
    MOST_CLUSTERS,
    UNTIMED_NATIVE_ERROR,
    arms_of,
    competitors,
    limit_of_calls,
)
from gridcoll.model import GridModel, linear_plogp
from gridcoll.plan.choose import choose
from gridcoll.topology import Grid


def sites(n: int) -> GridModel:
    near, far = linear_plogp(50e-6, 1e7), linear_plogp(10e-3, 1e7)
    grid = Grid.from_labels([site for site in range(n) for _ in range(3)])
    links = tuple(tuple(near if i == j else far for j in range(n)) for i in range(n))
    return GridModel(grid, links, aggregate_bytes_per_s=((3e7,) * n,) * n)


@pytest.mark.parametrize("collective", ["bcast", "allreduce", "alltoall", "reduce", "scatter"])
@pytest.mark.parametrize("n_bytes", [8, 1 << 20])
def test_no_plan_is_predicted_to_take_less(collective: str, n_bytes: int) -> None:
    model = sites(3)
    least_s = limit_of_calls(collective, model, n_bytes, 0)
    predicted_s = choose(collective, model, n_bytes, 0, grid_only=True).winner.expected_s
    assert 0.4 * predicted_s < least_s <= 1.01 * predicted_s


def test_where_it_is_not_known_it_is_nothing() -> None:
    assert limit_of_calls("alltoallv", sites(2), 1 << 20, 0) == 0.0
    assert limit_of_calls("bcast", sites(MOST_CLUSTERS + 1), 1 << 20, 0) == 0.0
    assert limit_of_calls("bcast", sites(MOST_CLUSTERS), 1 << 20, 0) > 0.0
    flows_unknown = replace(sites(3), aggregate_bytes_per_s=())
    assert limit_of_calls("bcast", flows_unknown, 1 << 20, 0) == 0.0


def test_natives_that_were_not_timed_are_expected_to_take_what_they_are_known_for() -> None:
    """No less than the best plan, as nothing is to start with them."""
    model, n_bytes = sites(3), 1 << 16
    candidates = competitors(choose("alltoall", model, n_bytes, 0))
    arms = {arm.name: arm for arm in arms_of("alltoall", candidates, model, n_bytes)}
    # Of MPICH: a step for every other rank, each of which waits for the longest way.
    steps_s = 8 * (10e-3 + n_bytes / 1e7)
    assert arms["native"].predicted_s == pytest.approx(steps_s, rel=0.5)
    assert arms["native"].spread == UNTIMED_NATIVE_ERROR
    assert arms["native"].predicted_s > 1.2 * min(arm.predicted_s for arm in arms.values())
