"""Prices count what limits the flows of a cluster: a shared uplink, a slow interface."""

from __future__ import annotations

import pytest

from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan.cost import price_plan
from gridcoll.plan.registry import REGISTRIES
from gridcoll.topology.gridfile import parse_gridfile

THIN_UPLINKS = """version = 1
name = "racks"
clusters = [
  { name = "a", hosts = 2, nic = "100 Mbit/s", uplink = "60 Mbit/s" },
  { name = "b", hosts = 2, nic = "100 Mbit/s" },
  { name = "c", hosts = 3, nic = "100 Mbit/s", uplink = "40 Mbit/s" },
  { name = "d", hosts = 3, nic = "100 Mbit/s" },
]
links = [
  { between = ["a", "b"], latency = "2.8 ms", rate = "1 Gbit/s" },
  { between = ["a", "c"], latency = "1.4 ms", rate = "1 Gbit/s" },
  { between = ["b", "c"], latency = "2.1 ms", rate = "1 Gbit/s" },
  { between = ["a", "d"], latency = "2.6 ms", rate = "1 Gbit/s" },
  { between = ["b", "d"], latency = "1.6 ms", rate = "1 Gbit/s" },
  { between = ["c", "d"], latency = "2.7 ms", rate = "1 Gbit/s" },
]
"""

NO_THIN_LINK = """version = 1
name = "rack-that-serves-two"
clusters = [
  { name = "a", hosts = 5, nic = "100 Mbit/s", uplink = "84 Mbit/s" },
  { name = "b", hosts = 5, nic = "100 Mbit/s" },
  { name = "c", hosts = 1, nic = "100 Mbit/s" },
]
links = [
  { between = ["a", "b"], latency = "1 ms", rate = "1 Gbit/s" },
  { between = ["a", "c"], latency = "1.2 ms", rate = "1 Gbit/s" },
  { between = ["b", "c"], latency = "6 ms", rate = "1 Gbit/s" },
]
"""

SLOW_INTERFACE = """version = 1
name = "slow-interface"
clusters = [
  { name = "a", hosts = 5, nic = "100 Mbit/s" },
  { name = "b", hosts = 3, nic = "80 Mbit/s" },
]
links = [{ between = ["a", "b"], latency = "15 ms", rate = "100 Mbit/s" }]
"""


@pytest.mark.parametrize(
    ("collective", "algorithm", "n_bytes"),
    [
        ("alltoall", "rate-paced", 16 << 10),
        ("alltoall", "rate-paced", 64 << 10),
        ("allgather", "lanes", 64 << 10),
        ("reduce_scatter", "lanes", 64 << 10),
    ],
)
def test_what_shares_an_uplink_waits_for_it(collective: str, algorithm: str, n_bytes: int) -> None:
    _check(THIN_UPLINKS, collective, algorithm, n_bytes)


@pytest.mark.parametrize("collective", ["bcast", "reduce"])
def test_a_tree_that_serves_two_clusters_needs_twice_the_uplink(collective: str) -> None:
    _check(NO_THIN_LINK, collective, "multi-tree", 64 << 10)


def test_an_interface_that_is_slower_than_a_link_is_no_window() -> None:
    """Its flows save no round trip: an exchange was said to take 0.7 of its limit."""
    _check(SLOW_INTERFACE, "alltoall", "rate-paced", 64 << 10)


def _check(grid: str, collective: str, algorithm: str, n_bytes: int) -> None:
    spec = parse_gridfile(grid)
    hosts = spec.rank_hosts()
    model, wires = declared_model(spec, hosts), wires_from_spec(spec, hosts)
    found = REGISTRIES[collective][algorithm].candidates(model, n_bytes, 0)
    assert found
    for candidate in found:
        assert candidate.build
        walked_s = price_plan(candidate.build(n_bytes), model).makespan_s
        assert candidate.expected_s > 0.9 * limit_s(collective, wires, n_bytes)
        assert candidate.expected_s > 0.75 * walked_s
