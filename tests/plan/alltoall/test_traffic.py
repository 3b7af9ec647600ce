"""What all-to-all plans send between clusters when they run, counted by the engine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.engine.memory import ByteMemory
from gridcoll.plan import REGISTRIES, Plan
from gridcoll.plan.alltoall.direct import plan_direct
from gridcoll.plan.alltoall.hierarchical import plan_hub
from gridcoll.plan.alltoall.lg import plan_lg
from gridcoll.plan.traces import Traffic, traffic_of
from gridcoll.topology import Grid
from tests.plan.grids import model_of
from tests.plan.traffic import count_traffic
from tests.reference import run_reference


def run_alltoall(plan: Plan, grid: Grid, seed: int = 0) -> Traffic:
    """Run ``plan`` on random bytes, check what arrives, and count what was sent."""
    p, n = plan.n_ranks, plan.n_units
    sent = np.random.default_rng(seed).integers(0, 256, (p, p, n), np.uint8)
    got = np.zeros_like(sent)
    counts = run_reference(
        plan,
        [
            ByteMemory(
                memoryview(got[r].reshape(-1)),  # type: ignore[arg-type]
                memoryview(sent[r].reshape(-1)),  # type: ignore[arg-type]
                memoryview(bytearray(plan.scratch_of(r))),
            )
            for r in range(p)
        ],
    )
    assert (got == sent.transpose(1, 0, 2)).all()
    return traffic_of(grid, (row for r, each in enumerate(counts) for row in each.rows(r)))


def two(n1: int, n2: int) -> Grid:
    return Grid.from_labels([0] * n1 + [1] * n2)


@pytest.mark.parametrize(("n1", "n2"), [(3, 7), (4, 4), (20, 40), (30, 30)])
def test_two_clusters_as_the_paper_counts_them(n1: int, n2: int) -> None:
    """Paper 001, section 4.2: ``2 max(n1, n2)`` against ``2 n1 n2``, of as many bytes."""
    grid = two(n1, n2)
    lg = run_alltoall(plan_lg(grid, 3), grid)
    assert lg.n_inter_messages == 2 * max(n1, n2)
    assert lg.messages[0, 1] == lg.messages[1, 0] == max(n1, n2)
    direct = run_alltoall(plan_direct(range(n1 + n2), 3), grid)
    assert direct.n_inter_messages == 2 * n1 * n2
    assert lg.n_inter_units == direct.n_inter_units == 3 * 2 * n1 * n2


@settings(max_examples=30, deadline=None)
@given(labels=st.lists(st.integers(0, 6), min_size=1, max_size=24))
def test_any_clusters(labels: list[int]) -> None:
    """Each pair as if it were alone, and nothing crosses twice."""
    grid = Grid.from_labels(labels)
    sizes = [len(cluster) for cluster in grid.clusters]
    traffic = run_alltoall(plan_lg(grid, 3), grid, len(labels))
    for i, n_i in enumerate(sizes):
        for j, n_j in enumerate(sizes):
            if i != j:
                assert traffic.messages[i, j] == max(n_i, n_j)
                assert traffic.units[i, j] == 3 * n_i * n_j


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=12))
def test_what_is_planned_is_what_is_sent(labels: list[int]) -> None:
    model = model_of(labels)
    for algorithm in REGISTRIES["alltoall"].values():
        for candidate in algorithm.candidates(model, 5, 0):
            if candidate.build is not None:
                plan = candidate.build(5)
                assert run_alltoall(plan, model.grid) == count_traffic(plan, model.grid)


def test_leaders_exchange_one_message_per_pair() -> None:
    model = model_of([0, 1, 2, 0, 1, 0, 0])
    exchange, hub = REGISTRIES["alltoall"]["leaders"].candidates(model, 10, 0)
    assert exchange.build is not None
    assert hub.build is not None
    traffic = run_alltoall(exchange.build(10), model.grid)
    assert traffic.n_inter_messages == 6
    assert traffic.n_inter_units == 10 * 2 * (4 * 2 + 4 * 1 + 2 * 1)
    traffic = run_alltoall(hub.build(10), model.grid)
    assert traffic.n_inter_messages == 4


@pytest.mark.parametrize("hub", [0, 1, 2])
def test_what_passes_the_hub_crosses_twice(hub: int) -> None:
    sizes = [4, 2, 1]
    grid = Grid.from_labels([0, 1, 2, 0, 1, 0, 0])
    traffic = run_alltoall(plan_hub(grid, hub, 10), grid)
    assert traffic.n_inter_messages == 4
    a, b = (size for cluster, size in enumerate(sizes) if cluster != hub)
    assert traffic.n_inter_units == 10 * 2 * (sizes[hub] * (a + b) + 2 * a * b)


def test_what_came_after() -> None:
    earlier = Traffic({(0, 1): 2}, {(0, 1): 20})
    later = Traffic({(0, 1): 3, (1, 0): 1}, {(0, 1): 25, (1, 0): 7})
    assert later.since(earlier) == Traffic({(0, 1): 1, (1, 0): 1}, {(0, 1): 5, (1, 0): 7})
