"""Limits by linear programs: never below what cuts say, and below what plans take."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model.bounds import limit_s, shortest_latency_s
from gridcoll.model.flow_bounds import exchange_limit_s, trees_limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan.choose import choose
from gridcoll.plan.cost import price_plan
from gridcoll.topology.gridfile import GridSpec, parse_gridfile, read_gridfile
from tests.plan.test_packed_trees import unlike_grids

HOSTFILES = Path(__file__).parents[2] / "hostfiles"


def two_pairs(rate: str) -> str:
    """Two fast hosts, three slow ones, and a link of ``rate``."""
    return f"""
version = 1
name = "two"
[[clusters]]
name = "fast"
hosts = 2
nic = "800 Mbit/s"
[[clusters]]
name = "slow"
hosts = 3
nic = "80 Mbit/s"
[[links]]
between = ["fast", "slow"]
latency = "2 ms"
rate = "{rate}"
"""


def test_an_exchange_over_one_link_takes_what_the_link_takes() -> None:
    spec = parse_gridfile(two_pairs("8 Mbit/s"))
    wires = wires_from_spec(spec, spec.rank_hosts())
    assert exchange_limit_s(wires, 1 << 20, 0.0) == pytest.approx(6 * (1 << 20) / 1e6, rel=0.02)


def test_a_slow_root_sends_every_byte_once() -> None:
    """Rank 2 is slow: what it sends, others pass on."""
    spec = parse_gridfile(two_pairs("8 Gbit/s"))
    wires = wires_from_spec(spec, spec.rank_hosts())
    n_bytes = 8 << 20
    least_s = trees_limit_s(wires, shortest_latency_s(wires), n_bytes, 1.0, 2)
    assert least_s == pytest.approx(n_bytes / 10e6, rel=0.01)
    assert least_s <= limit_s("bcast", wires, n_bytes, 2)


def test_an_allreduce_on_shared_uplinks_is_bound_by_them() -> None:
    """A cut sees one uplink at a time; trees have to cross several."""
    spec = read_gridfile(HOSTFILES / "unlike-hosts.toml")
    wires = wires_from_spec(spec, spec.rank_hosts())
    n_bytes = 16 << 20
    assert trees_limit_s(wires, shortest_latency_s(wires), n_bytes, 0.0) > 3.7


def test_blocks_of_all_share_thin_links() -> None:
    """A cut sees what crosses it once; sent on, the blocks of one site cross a second link."""
    spec = read_gridfile(HOSTFILES / "thin-wan.toml")
    wires = wires_from_spec(spec, spec.rank_hosts())
    for collective in ("allgather", "reduce_scatter"):
        assert limit_s(collective, wires, 1 << 16) == pytest.approx(0.1137, rel=0.003)


@settings(max_examples=8, deadline=None)
@given(
    spec=unlike_grids(4, 3),
    collective=st.sampled_from(["allgather", "reduce_scatter", "scatter", "gather"]),
)
def test_no_plan_is_faster_on_unlike_wires(spec: GridSpec, collective: str) -> None:
    model = declared_model(spec, spec.rank_hosts())
    limit = limit_s(collective, wires_from_spec(spec, spec.rank_hosts()), 1 << 14)
    for candidate in choose(collective, model, 1 << 14, 0, grid_only=True).candidates:
        if candidate.build:
            assert price_plan(candidate.build(1 << 14), model).makespan_s >= 0.999 * limit


@pytest.mark.parametrize("grid", ["patchwork", "unlike-hosts", "three-sites", "one-cluster"])
@pytest.mark.parametrize("collective", ["bcast", "reduce", "allreduce", "alltoall"])
def test_short_messages_are_bound_by_latency_alone(grid: str, collective: str) -> None:
    spec = read_gridfile(HOSTFILES / f"{grid}.toml")
    wires = wires_from_spec(spec, spec.rank_hosts())
    distance = shortest_latency_s(wires)
    away = max(float(distance.max()), float(wires.latency_s.diagonal().max()))
    assert limit_s(collective, wires, 1) <= away * 1.01
