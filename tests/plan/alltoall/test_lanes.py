"""All-to-all through several leaders: right on any grid, as long as predicted, near the limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model import declared_model
from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import ModelKey
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan import REGISTRIES, Send, check_plan
from gridcoll.plan.alltoall.lanes import Lanes, plan_lanes, shortest_paths
from gridcoll.plan.choose import choose
from gridcoll.plan.cost import price_plan
from gridcoll.topology.gridfile import read_gridfile
from tests.plan.grids import model_of

HOSTFILES = Path(__file__).parents[3] / "hostfiles"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=20), st.integers(1, 6), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_it_is_right_on_any_grid(labels: list[int], n_lanes: int, n_units: int) -> None:
    """Also over several other clusters: links of 1 ms are nearer ways than those of 9."""
    model = model_of(labels, latencies_s=(9e-3, 9e-3, 1e-3))
    lanes = Lanes(model.grid, n_lanes, shortest_paths(ModelKey(model)))
    check_plan(plan_lanes(lanes, n_units))


@pytest.mark.parametrize(("grid", "considered"), [("three-sites", False), ("grid5000-88", True)])
def test_small_clusters_have_several_leaders_only_if_asked_for(grid: str, considered: bool) -> None:
    spec = read_gridfile(HOSTFILES / f"{grid}.toml")
    model = declared_model(spec, spec.rank_hosts())
    names = {each.name for each in choose("alltoall", model, 8, 0).candidates}
    assert ("lanes" in names) == considered
    assert choose("alltoall", model, 8, 0, forced="lanes").winner.name == "lanes"


def test_among_dozens_of_hosts_it_is_near_the_limit_with_few_messages() -> None:
    """The farthest are nearer by way of a third cluster, which no direct exchange takes."""
    spec = read_gridfile(HOSTFILES / "grid5000-88.toml")
    hosts = spec.rank_hosts()
    model = declared_model(spec, hosts)
    (best,) = REGISTRIES["alltoall"]["lanes"].candidates(model, 8, 0)
    assert best.predicted_s is not None
    assert best.predicted_s <= 1.08 * limit_s("alltoall", wires_from_spec(spec, hosts), 8)
    assert best.build is not None
    plan = best.build(8)
    n_messages = sum(isinstance(op, Send) for program in plan.programs for op in program)
    assert n_messages <= 0.1 * len(hosts) ** 2
    assert price_plan(plan, model).makespan_s == pytest.approx(best.predicted_s, rel=0.02)
