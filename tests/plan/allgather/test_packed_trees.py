"""Allgathers and reduce-scatters by a tree per owner, beside all others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan.allgather.packed_trees import GivenTrees, grow_trees
from gridcoll.plan.allgather.trees import plan_allgather
from gridcoll.plan.check import check_plan
from gridcoll.plan.choose import choose
from gridcoll.plan.reduce_scatter.mirror import plan_reduce_scatter
from gridcoll.plan.registry import REGISTRIES
from gridcoll.topology.gridfile import GridSpec, read_gridfile
from tests.plan.grids import unlike_model
from tests.plan.test_packed_trees import unlike_grids

HOSTFILES = Path(__file__).parents[3] / "hostfiles"


@settings(max_examples=15, deadline=None)
@given(spec=unlike_grids(4, 3), segment=st.integers(1, 9), data=st.data())
def test_plans_are_right(spec: GridSpec, segment: int, data: st.DataObject) -> None:
    model = declared_model(spec, spec.rank_hosts())
    n = model.grid.n_ranks
    sizes = data.draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
    trees = GivenTrees(grow_trees(model, 40_000))
    check_plan(plan_allgather(trees, sizes, segment))
    check_plan(plan_reduce_scatter(trees, sizes, segment))


@pytest.mark.parametrize(("collective", "most"), [("allgather", 1.1), ("reduce_scatter", 1.2)])
def test_on_a_patchwork_it_comes_near_the_limit(collective: str, most: float) -> None:
    spec = read_gridfile(HOSTFILES / "patchwork.toml")
    wires = wires_from_spec(spec, spec.rank_hosts())
    winner = choose(collective, unlike_model(), 1 << 16, 0, grid_only=True).winner
    assert winner.name == "packed-trees"
    assert 1 <= (winner.predicted_s or 0) / limit_s(collective, wires, 1 << 16) <= most


def test_slow_interfaces_hand_on_next_to_nothing() -> None:
    model = unlike_model()
    slow = set(model.grid.clusters[3].ranks)
    trees = grow_trees(model, 1 << 16)
    others = [(owner, parent) for owner, tree in enumerate(trees) for parent in tree]
    handed_on = sum(parent in slow and parent != owner for owner, parent in others)
    assert handed_on < 0.1 * len(trees) * (len(trees) - 1)


@pytest.mark.parametrize("grid", ["three-sites", "grid5000", "one-cluster"])
def test_even_grids_are_left_alone(grid: str) -> None:
    spec = read_gridfile(HOSTFILES / f"{grid}.toml")
    model = declared_model(spec, spec.rank_hosts())
    for collective in ("allgather", "reduce_scatter"):
        assert not REGISTRIES[collective]["packed-trees"].candidates(model, 1 << 20, 0)
