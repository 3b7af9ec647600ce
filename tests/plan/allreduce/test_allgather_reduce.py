"""Every rank combines everything: the right steps and messages, their price, and its bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.constants import MOST_ALLGATHER_REDUCE_BYTES
from gridcoll.model import GridModel, declared_model
from gridcoll.plan import Reduce, Send, check_plan, choose
from gridcoll.plan.allreduce.allgather_reduce import (
    MOST_MEMBERS,
    plan_allgather_reduce,
    price_allgather_reduce,
)
from gridcoll.plan.cost import price_plan
from gridcoll.plan.folding import ALIGNED_UNITS
from gridcoll.plan.paths import nearest_paths
from gridcoll.topology import Grid
from gridcoll.topology.gridfile import parse_gridfile
from tests.plan.grids import model_of, near_over_the_second
from tests.plan.test_hosts import PLACED, placed_model


@settings(max_examples=60)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=24), st.integers(0, 9))
def test_it_is_right_on_any_grid(labels: list[int], n_units: int) -> None:
    check_plan(plan_allgather_reduce(Grid.from_labels(labels), n_units))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=24), st.integers(0, 9), st.data())
def test_it_is_right_along_any_shortest_paths(
    labels: list[int], n_units: int, data: st.DataObject
) -> None:
    grid = Grid.from_labels(labels)
    n = len(grid.clusters)
    ways = st.lists(st.integers(1, 30), min_size=n, max_size=n)
    one_way_s = np.array(data.draw(st.lists(ways, min_size=n, max_size=n)), dtype=float)
    check_plan(plan_allgather_reduce(grid, n_units, paths=nearest_paths(one_way_s)))


@pytest.mark.parametrize("collective", ["allreduce", "barrier"])
def test_results_take_the_nearer_way(collective: str) -> None:
    model = near_over_the_second([0] * 4 + [1] * 2 + [2] * 3)
    winner = choose(collective, model, 8, 0, grid_only=True).winner
    assert winner.name == "allgather-reduce"
    assert "the nearer way" in winner.label
    assert winner.build is not None
    plan = winner.build(8)
    check_plan(plan)
    assert price_plan(plan, model).makespan_s == pytest.approx(winner.predicted_s, rel=0.05)
    assert 8e-3 < (winner.predicted_s or 0.0) < 9e-3


def test_a_step_for_every_bit_and_one_message_from_every_other_cluster() -> None:
    grid = Grid.from_labels([0] * 5 + [1] * 2 + [2])
    sends = [
        [op for op in p if isinstance(op, Send)] for p in plan_allgather_reduce(grid, 3).programs
    ]
    inside = [
        sum(grid.cluster_of[op.peer] == grid.cluster_of[rank] for op in ops)
        for rank, ops in enumerate(sends)
    ]
    assert inside == [3] * 5 + [1] * 2 + [0]
    came = [
        sorted(
            grid.cluster_of[rank] for rank, ops in enumerate(sends) for op in ops if op.peer == r
        )
        for r in range(8)
    ]
    for rank, clusters in enumerate(came):
        others = {0, 1, 2} - {grid.cluster_of[rank]}
        assert [c for c in clusters if c in others] == sorted(others)
    assert [len(ops) - n for ops, n in zip(sends, inside, strict=True)] == [2, 1, 0, 0, 0, 4, 2, 7]


def test_all_combine_alike() -> None:
    """In one order, at places that lie alike: every rank gets the same bits."""
    labels = [0, 1, 0, 1, 2, 0, 1]
    plan = plan_allgather_reduce(Grid.from_labels(labels), 100)
    for programs in (
        [p for p, at in zip(plan.programs, labels, strict=True) if at == c] for c in range(3)
    ):
        combined = {tuple(op for op in program if isinstance(op, Reduce)) for program in programs}
        assert len(combined) == 1
    places = {
        op.source.start % ALIGNED_UNITS for p in plan.programs for op in p if isinstance(op, Reduce)
    }
    assert places == {0}


@pytest.mark.parametrize("n_bytes", [8, 1024])
@pytest.mark.parametrize(
    "labels", [[0] * 6, [0] * 8, [0] * 4 + [1] * 4, [0] * 3 + [1] * 9, [0, 1, 2] * 4], ids=str
)
def test_its_price_is_what_the_plan_takes(labels: list[int], n_bytes: int) -> None:
    model = model_of(labels, together=1e9)
    takes_s = price_plan(plan_allgather_reduce(model.grid, n_bytes), model).makespan_s
    assert price_allgather_reduce(model, n_bytes) == pytest.approx(takes_s, rel=0.03)


def test_forwarded_results_do_not_hold_up_others() -> None:
    """The third cluster gets two from the second: its own after 2 ms, and one from 10 ms away."""
    between_ms = {(0, 1): 10, (0, 2): 17, (1, 2): 2, (0, 3): 11, (1, 3): 24, (2, 3): 10}
    lines = ["version = 1", 'name = "web"']
    for c in range(4):
        lines += ["[[clusters]]", f'name = "c{c}"', "hosts = 1"]
    for (a, b), latency in between_ms.items():
        lines += ["[[links]]", f'between = ["c{a}", "c{b}"]', f'latency = "{latency} ms"']
    spec = parse_gridfile("\n".join(lines))
    model = declared_model(spec, spec.rank_hosts())
    paths = nearest_paths(model.gap_and_one_way_s(np.array([8.0]))[1][..., 0])
    takes_s = price_plan(plan_allgather_reduce(model.grid, 8, paths=paths), model).makespan_s
    assert price_allgather_reduce(model, 8, paths) == pytest.approx(takes_s, rel=0.03)


@pytest.mark.parametrize("hosts", PLACED.values(), ids=PLACED)
def test_its_price_knows_who_shares_an_interface(hosts: list[str]) -> None:
    model = placed_model(hosts)
    takes_s = price_plan(plan_allgather_reduce(model.grid, 1024), model).makespan_s
    assert price_allgather_reduce(model, 1024) == pytest.approx(takes_s, rel=0.1)


def test_on_one_host_messages_take_what_empty_ones_take() -> None:
    model = replace(model_of([0] * 4), grid=Grid.from_labels([0] * 4, ["a"] * 4))
    assert price_allgather_reduce(model, 4096) == price_allgather_reduce(model, 8) > 0


def test_it_beats_trees_by_the_way_down() -> None:
    """Four ranks on either side: two steps and the WAN, where a tree has two more."""
    model = model_of([0] * 4 + [1] * 4)
    by_name = {}
    for candidate in choose("allreduce", model, 8, 0, grid_only=True).candidates:
        by_name.setdefault(candidate.name, candidate)
    assert by_name["allgather-reduce"].predicted_s < by_name["leaders"].predicted_s
    assert choose("barrier", model, 1, 0, grid_only=True).winner.name == "allgather-reduce"


def _offered(model: GridModel, n_bytes: int) -> bool:
    candidates = choose("allreduce", model, n_bytes, 0).candidates
    return "allgather-reduce" in {candidate.name for candidate in candidates}


def test_it_is_for_short_messages_in_clusters_that_are_not_huge() -> None:
    small = model_of([0] * 4 + [1] * 4)
    assert _offered(small, MOST_ALLGATHER_REDUCE_BYTES)
    assert not _offered(small, MOST_ALLGATHER_REDUCE_BYTES + 1)
    assert _offered(model_of([0] * MOST_MEMBERS + [1]), 8)
    assert not _offered(model_of([0] * (MOST_MEMBERS + 1) + [1]), 8)
