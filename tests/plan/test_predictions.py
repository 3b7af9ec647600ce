"""What choices rest on, against the simulation of the very plan that would run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridcoll.cli.models import load_model
from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan import choose
from gridcoll.plan.cost import price_plan
from gridcoll.topology.gridfile import parse_gridfile, read_gridfile

HOSTFILES = Path(__file__).parents[2] / "hostfiles"

GRIDS = ("three-sites", "grid5000", "long-fat", "thin-wan", "one-cluster", "two-sites-uneven")
GRIDS += ("two-sites-shared",)

NEAR = 1.5
"""What is predicted to take this many times as long as the fastest is not taken."""


COLLECTIVES = ("bcast", "reduce", "allreduce", "alltoall", "scatter", "gather", "allgather")


@pytest.mark.parametrize("n_bytes", [1 << 16, 1 << 20, 1 << 22])
@pytest.mark.parametrize("collective", [*COLLECTIVES, "reduce_scatter"])
def test_nothing_is_predicted_below_the_limit_where_uplinks_are_shared(
    collective: str, n_bytes: int
) -> None:
    spec = read_gridfile(HOSTFILES / "unlike-hosts.toml")
    model = declared_model(spec, spec.rank_hosts())
    limit = limit_s(collective, wires_from_spec(spec, spec.rank_hosts()), n_bytes)
    choice = choose(collective, model, n_bytes, 0, grid_only=True)
    assert min(c.predicted_s or np.inf for c in choice.candidates) >= 0.99 * limit
    assert choice.winner.build
    walked_s = price_plan(choice.winner.build(n_bytes), model).makespan_s
    assert limit <= walked_s <= 1.25 * (choice.winner.predicted_s or 0.0)


STAR = """
{ name = "hub", hosts = 4, nic = "200 Mbit/s", uplink = "150 Mbit/s" },
{ name = "fast", hosts = 3, nic = "100 Mbit/s", uplink = "50 Mbit/s" },
{ name = "slow", hosts = 2, nic = "100 Mbit/s", uplink = "30 Mbit/s" },
"""
SLOW_HOST = """
{ name = "old", hosts = 1, nic = "10 Mbit/s" },
{ name = "new", hosts = 5, nic = "100 Mbit/s" },
{ name = "far", hosts = 4, nic = "100 Mbit/s" },
"""


@pytest.mark.parametrize("n_bytes", [8192, 1 << 16])
@pytest.mark.parametrize("clusters", [STAR, SLOW_HOST])
@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
def test_no_way_of_blocks_is_predicted_below_the_limit(
    collective: str, clusters: str, n_bytes: int
) -> None:
    """All blocks enter by one thin uplink, or by the interface of one slow host."""
    spec = parse_gridfile(
        f'version = 1\nname = "g"\nclusters = [{clusters}]\ndefault_link = {{ latency = "8 ms" }}'
    )
    hosts = spec.rank_hosts()
    limit = limit_s(collective, wires_from_spec(spec, hosts), n_bytes)
    choice = choose(collective, declared_model(spec, hosts), n_bytes, 0, grid_only=True)
    found = {c.label: (c.predicted_s or np.inf) / limit for c in choice.candidates}
    assert min(found.values()) >= 0.97, found


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("n_bytes", [8, 8192, 100_000])
def test_every_broadcast_takes_what_was_predicted(grid: str, n_bytes: int) -> None:
    model = load_model(str(HOSTFILES / f"{grid}.toml"))
    candidates = choose("bcast", model, n_bytes, 1, grid_only=True).candidates
    plans = [(c, c.build(n_bytes)) for c in candidates if c.build]
    assert len(plans) > 4
    off = {
        f"{c.name}: {c.label}": price_plan(plan, model).makespan_s / c.expected_s - 1
        for c, plan in plans
        if c.expected_s < NEAR * candidates[0].expected_s
    }
    assert {name: by for name, by in off.items() if abs(by) > 0.07} == {}
