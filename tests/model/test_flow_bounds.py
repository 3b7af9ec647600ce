"""Limits by linear programs: never below what cuts say, and below what plans take."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridcoll.model.bounds import limit_s, shortest_latency_s
from gridcoll.model.flow_bounds import exchange_limit_s, trees_limit_s
from gridcoll.model.wires import wires_from_spec
from gridcoll.topology.gridfile import parse_gridfile, read_gridfile

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


@pytest.mark.parametrize("grid", ["patchwork", "unlike-hosts", "three-sites", "one-cluster"])
@pytest.mark.parametrize("collective", ["bcast", "reduce", "allreduce", "alltoall"])
def test_short_messages_are_bound_by_latency_alone(grid: str, collective: str) -> None:
    spec = read_gridfile(HOSTFILES / f"{grid}.toml")
    wires = wires_from_spec(spec, spec.rank_hosts())
    distance = shortest_latency_s(wires)
    away = max(float(distance.max()), float(wires.latency_s.diagonal().max()))
    assert limit_s(collective, wires, 1) <= away * 1.01
