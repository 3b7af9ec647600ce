"""All-to-all through members: right on any grid, few messages, as long as predicted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model import GridModel
from gridcoll.plan import REGISTRIES, Send, check_plan
from gridcoll.plan.alltoall.aggregated import Crossing, plan_aggregated, price_aggregated
from gridcoll.plan.cost import price_plan
from gridcoll.topology import Grid
from tests.plan.grids import model_of


def crossing_of(grid: Grid) -> Crossing:
    n = len(grid.clusters)
    return Crossing(grid, tuple(tuple(c for c in range(n) if c != own) for own in range(n)))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=24), st.integers(0, 3))
@settings(deadline=None)
def test_it_is_right_on_any_grid(labels: list[int], n_units: int) -> None:
    plan = plan_aggregated(crossing_of(Grid.from_labels(labels)), n_units)
    check_plan(plan)
    assert all(units <= 7 * len(labels) * n_units for units in plan.scratch_units)


@given(st.integers(2, 9), st.integers(0, 1 << 20))
@settings(max_examples=4, deadline=None)
@pytest.mark.long
def test_it_is_right_among_hundreds(n_clusters: int, seed: int) -> None:
    labels = [(k * k + seed) % (1 + k % n_clusters) for k in range(150)]
    check_plan(plan_aggregated(crossing_of(Grid.from_labels(labels)), 1))


@given(st.lists(st.integers(1, 12), min_size=2, max_size=8))
@settings(max_examples=20, deadline=None)
def test_messages_are_as_many_as_members_and_clusters(sizes: list[int]) -> None:
    """Of every rank, sent and received."""
    labels = [c for c, size in enumerate(sizes) for _ in range(size)]
    grid = Grid.from_labels(labels)
    plan = plan_aggregated(crossing_of(grid), 1)
    received: Counter[int] = Counter()
    for rank, program in enumerate(plan.programs):
        sent = [op.peer for op in program if isinstance(op, Send)]
        received.update(sent)
        assert len(sent) <= 2 * (sizes[labels[rank]] - 1) + len(sizes) - 1
    for rank, count in received.items():
        assert count <= 2 * (sizes[labels[rank]] - 1) + len(sizes) - 1


def models() -> list[GridModel]:
    return [
        model_of([c for c in range(n) for _ in range(size)], together=1e9)
        for n, size in ((4, 12), (8, 5), (3, 20))
    ]


@pytest.mark.parametrize("model", models())
@pytest.mark.parametrize("n_bytes", [8, 256])
def test_it_takes_what_was_predicted(model: GridModel, n_bytes: int) -> None:
    plan = plan_aggregated(crossing_of(model.grid), n_bytes)
    walked_s = price_plan(plan, model).makespan_s
    assert walked_s == pytest.approx(price_aggregated(model, n_bytes), rel=0.15)


def test_it_is_offered_where_messages_cost_something() -> None:
    """Not to a dozen ranks far away from each other, nor for long blocks."""
    candidates = REGISTRIES["alltoall"]["aggregated"].candidates
    few, many = model_of([0, 0, 1, 1]), model_of([0] * 60 + [1] * 60)
    assert not candidates(few, 8, 0)
    assert candidates(many, 8, 0)
    assert not candidates(many, 1 << 20, 0)
