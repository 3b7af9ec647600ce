from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.constants import PACE
from gridcoll.errors import PlanError
from gridcoll.model import GridModel
from gridcoll.plan import REGISTRIES, check_plan, choose
from gridcoll.plan.allgather.ways import LaneTrees, RingTrees
from gridcoll.plan.cost import price_plan
from gridcoll.plan.ops import Send
from gridcoll.plan.plan import Program, Programs
from gridcoll.plan.reduce_scatter.mirror import plan_reduce_scatter
from gridcoll.topology import Grid
from tests.plan.grids import grids, model_of
from tests.plan.traffic import count_traffic

HOSTFILES = Path(__file__).parents[3] / "hostfiles"


@settings(max_examples=40, deadline=None)
@given(grids, st.booleans(), st.sampled_from([0, 1, 9, 5000]))
@pytest.mark.long
def test_every_candidate_on_any_grid_is_right(
    labels: list[int], together: bool, n_bytes: int
) -> None:
    """Each contribution once; in rank order where that is claimed; for uneven blocks, too."""
    labels = sorted(labels) if together else labels
    uneven = tuple((3 * rank) % 4 * (n_bytes // 2) for rank in range(len(labels)))
    for candidate in choose("reduce_scatter", model_of(labels), n_bytes, 0).candidates:
        if candidate.build is not None and candidate.build_blocks is not None:
            for exact in {n_bytes, n_bytes // 2 + 1}:
                check_plan(candidate.build(exact), rank_order=candidate.rank_order)
            check_plan(candidate.build_blocks(uneven), rank_order=candidate.rank_order)


def test_rank_order_needs_clusters_of_neighbours() -> None:
    def claims(labels: list[int]) -> dict[str, bool]:
        candidates = choose("reduce_scatter", model_of(labels), 1000, 0).candidates
        return {c.name: c.rank_order for c in candidates if c.build}

    assert claims([0, 0, 1, 1]) == {"lanes": True, "ring": False}
    assert claims([0, 1, 0, 1]) == {"lanes": False, "ring": False}
    interleaved = plan_reduce_scatter(LaneTrees(Grid.from_labels([0, 1, 0, 1])), [1] * 4, 1)
    with pytest.raises(PlanError, match="must leave"):
        check_plan(interleaved, rank_order=True)


@pytest.mark.parametrize("n_bytes", [4 << 10, 1 << 20])
def test_longer_messages_keep_order_among_neighbours_only(n_bytes: int) -> None:
    """As docs/reproducible.md says of operations of users that are said to commute."""

    def order(labels: list[int]) -> tuple[str, set[str]]:
        found = choose("reduce_scatter", model_of(labels), n_bytes, 0, prefer_order=True)
        keeping = {each.name for each in found.candidates if each.rank_order}
        return found.reason.rsplit("; ", 1)[-1], keeping

    how, keeping = order([0, 0, 0, 1, 1, 1])
    assert keeping == {"lanes"}
    assert "no plan keeps it" not in how
    assert order([0, 1, 0, 1, 0, 1]) == ("not in rank order: no plan keeps it", set())


def test_sums_for_far_owners_leave_before_what_near_owners_get() -> None:
    """A sum that waits behind near contributions arrives later by the time that they take."""
    model, n_bytes = model_of([0, 1, 2] * 4, (8e-3,), together=1e9), 16 << 10
    plan = plan_reduce_scatter(LaneTrees(model.grid), [n_bytes] * 12, n_bytes)

    def at_once(rank: int) -> Program:
        ops = plan.programs[rank]
        return tuple(replace(op, after=None) if isinstance(op, Send) else op for op in ops)

    hasty = replace(plan, programs=Programs(plan.n_ranks, at_once))
    total_s, hasty_s = (price_plan(each, model).makespan_s for each in (plan, hasty))
    assert total_s < 0.9 * hasty_s


@pytest.mark.parametrize("labels", [[0] * 2 + [1] * 8, [0] + [1] * 4 + [2] * 7])
@pytest.mark.parametrize("n_bytes", [4 << 10, 16 << 10, 64 << 10])
def test_lanes_of_clusters_of_unlike_sizes_take_what_was_predicted(
    labels: list[int], n_bytes: int
) -> None:
    """A cluster gets as many sums from each other one as it has ranks."""
    model = model_of(labels, (8e-3, 3e-3, 20e-3), together=4e6)
    for lanes in REGISTRIES["reduce_scatter"]["lanes"].candidates(model, n_bytes, 0):
        assert lanes.build is not None
        walked_s = price_plan(lanes.build(n_bytes), model).makespan_s
        assert lanes.predicted_s == pytest.approx(walked_s, rel=0.1)


def test_sums_go_to_all_other_clusters_from_the_start() -> None:
    """One after another, the link to the second cluster would be idle at first."""
    model = load_model(str(HOSTFILES / "thin-wan.toml"))
    (lanes, *_) = REGISTRIES["reduce_scatter"]["lanes"].candidates(model, 64 << 10, 0)
    assert lanes.build is not None
    plan = lanes.build(64 << 10)
    cluster_of = model.grid.cluster_of
    sends = [op for op in plan.programs[0] if isinstance(op, Send)]
    first = [cluster_of[op.peer] for op in sends if cluster_of[op.peer]][:2]
    assert sorted(first) == [1, 2]
    assert price_plan(plan, model).makespan_s == pytest.approx(lanes.predicted_s, rel=0.03)


def test_sums_with_parts_from_other_clusters_are_among_the_last() -> None:
    """They wait for those; what is only added up in the cluster leaves before."""
    trees = LaneTrees(Grid.from_labels([0, 1, 1, 2]), [[0, 0, 1], [1, 1, 1], [1, 2, 2]])
    assert trees.children(0, 1) == [3, 2]
    assert trees.upward_order(1) == [[2, 0, 3, 1]]
    assert trees.upward_order(0) == [[1, 2, 3], [0]]


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
@pytest.mark.parametrize("unit_bytes", [1, 8])
def test_what_stays_in_the_cluster_does_not_slow_down_what_leaves_it(
    collective: str, unit_bytes: int
) -> None:
    """Sends follow each other as an interface carries them, except short ones."""

    def sends(model: GridModel, n_bytes: int) -> list[list[Send]]:
        lanes = REGISTRIES[collective]["lanes"].candidates(model, n_bytes, 0)[0]
        assert lanes.build is not None
        programs = lanes.build(n_bytes // unit_bytes).programs
        return [[op for op in program if isinstance(op, Send)] for program in programs]

    model, n_bytes = model_of([0, 1, 2] * 4, (8e-3,), together=1e9), 16 << 10
    byte_s = PACE * float(model.gap_s(n_bytes)[0, 0]) / n_bytes
    for ops in sends(model, n_bytes):
        before = accumulate((op.chunk.size * unit_bytes for op in ops[:-1]), initial=0)
        due_us = [n * byte_s * 1e6 for n in before]
        assert [op.due_us for op in ops] == pytest.approx(due_us, abs=1)
    for other, n_bytes in ((model, 1 << 10), (model_of([0] * 12), 16 << 10)):
        assert not any(op.due_us for ops in sends(other, n_bytes) for op in ops)


@settings(max_examples=40, deadline=None)
@given(grids, st.integers(1, 4))
def test_one_sum_per_cluster_crosses_to_each_owner(labels: list[int], segment: int) -> None:
    grid = Grid.from_labels(labels)
    sizes = [rank % 5 + 1 for rank in range(len(labels))]
    order = [rank for cluster in grid.clusters for rank in cluster.ranks]
    lanes = count_traffic(plan_reduce_scatter(LaneTrees(grid), sizes, segment), grid)
    for i in range(len(grid.clusters)):
        for j, cluster in enumerate(grid.clusters):
            if i != j:
                assert lanes.units[i, j] == sum(sizes[rank] for rank in cluster.ranks)
    ring = count_traffic(plan_reduce_scatter(RingTrees(order), sizes, segment), grid)
    assert ring.n_inter_units <= sum(sizes) * len(grid.clusters)


@pytest.mark.parametrize(
    "grid", ["three-sites", "grid5000", "long-fat", "thin-wan", "one-cluster", "two-sites-uneven"]
)
@pytest.mark.parametrize("n_bytes", [8, 8192, 65536])
def test_the_choice_is_close_to_the_best(grid: str, n_bytes: int) -> None:
    model = load_model(str(HOSTFILES / f"{grid}.toml"))
    choice = choose("reduce_scatter", model, n_bytes, 0, grid_only=True)
    times = [
        (price_plan(c.build(n_bytes), model).makespan_s, c.predicted_s or 0.0)
        for c in choice.candidates
        if c.build
    ]
    assert times[0][0] <= 1.15 * min(simulated_s for simulated_s, _ in times)
    assert times[0][0] == pytest.approx(times[0][1], rel=0.2)
