"""LG in the paper's strict steps: right, and never ahead of its step."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.plan import Recv, Send, check_plan
from gridcoll.plan.alltoall.lg import plan_lg
from gridcoll.plan.alltoall.lg_steps import n_steps, plan_lg_steps
from gridcoll.plan.choose import choose
from gridcoll.plan.cost import price_plan
from gridcoll.topology import Grid
from tests.plan.alltoall.test_traffic import run_alltoall, two
from tests.plan.grids import model_of


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 3))
def test_blocks_arrive_on_any_grid(labels: list[int], n_units: int) -> None:
    names = sorted(set(labels))
    grid = Grid.from_labels([names.index(label) for label in labels])
    plan = plan_lg_steps(grid, n_units)
    check_plan(plan)
    run_alltoall(plan, grid)


def test_no_rank_is_ahead_of_its_step() -> None:
    """All local receives end before a rank sends across, and each step before the next begins."""
    grid = two(3, 7)
    plan = plan_lg_steps(grid, 4)
    timeline = price_plan(plan, model_of(grid.cluster_of))
    for rank, program in enumerate(plan.programs):
        home = grid.clusters[grid.cluster_of[rank]].ranks
        start, end = timeline.start_s[rank], timeline.end_s[rank]
        ends = [end[k] for k, op in enumerate(program) if isinstance(op, Recv) and op.peer in home]
        local_s = max(ends)
        across = [k for k, op in enumerate(program) if isinstance(op, Send) and op.peer not in home]
        into = [k for k, op in enumerate(program) if isinstance(op, Recv) and op.peer not in home]
        assert len(across) == len(into) == (1 if rank >= 3 else 3 if rank == 0 else 2)
        assert all(start[k] >= local_s for k in across)
        for before, k in zip(into, across[1:], strict=False):
            assert start[k] >= end[before]


def test_steps_are_those_of_the_paper() -> None:
    assert n_steps(two(3, 7)) == 3
    assert n_steps(two(20, 40)) == 2
    assert n_steps(two(30, 30)) == 1


def test_it_takes_longer_than_lg_and_is_not_in_the_choice() -> None:
    model = model_of(two(3, 7).cluster_of)
    plans = (plan_lg_steps(model.grid, 64), plan_lg(model.grid, 64))
    steps_s, lg_s = (price_plan(plan, model).makespan_s for plan in plans)
    assert steps_s > lg_s
    assert "lg-steps" not in {each.name for each in choose("alltoall", model, 64, 0).candidates}
    assert choose("alltoall", model, 64, 0, forced="lg-steps").winner.name == "lg-steps"
