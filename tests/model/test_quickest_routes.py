"""Routes by which the last block arrives soonest."""

from __future__ import annotations

import numpy as np
import pytest

from gridcoll.cli.models import load_model
from gridcoll.model.quickest_routes import QuickestRoutes, find_quickest_routes, quickest_routes

FAST = 1e9
NONE = np.full(3, np.inf)


def between(ab: float, ac: float, bc: float, inside: float = 0.0) -> np.ndarray:
    """Values between clusters a, b and c, the same in both directions."""
    return np.array([[inside, ab, ac], [ab, inside, bc], [ac, bc, inside]], float)


def from_a_to_b(
    n_bytes: float, rates: np.ndarray, latency_s: np.ndarray, hosts: np.ndarray | None = None
) -> QuickestRoutes:
    demand = np.zeros((3, 3))
    demand[0, 1] = n_bytes
    hosts = np.full(3, FAST) if hosts is None else hosts
    return find_quickest_routes(demand, rates, hosts, NONE, latency_s)


def test_a_detour_takes_what_arrives_over_it_in_time() -> None:
    """Straight, x bytes take x + 1; by way of c, the others take a ninth of that and 20."""
    routes = from_a_to_b(100.0, between(1.0, 9.0, 9.0), between(1.0, 10.0, 10.0))
    assert routes.direct_s == pytest.approx(101.0)
    assert routes.takes_s == pytest.approx(28.1, rel=0.02)
    assert routes.shares[0, 1, 1] == pytest.approx(0.271, abs=0.01)


def test_a_detour_that_is_too_long_takes_nothing() -> None:
    """And does not count: by the highest throughput, it would take 90 % of the data."""
    routes = from_a_to_b(100.0, between(1.0, 9.0, 9.0), between(1.0, 60.0, 60.0))
    assert routes.takes_s == routes.direct_s == pytest.approx(101.0)
    assert routes.shares[0, 1, 1] == 1.0
    assert routes.gain == 1.0


def test_one_detour_is_quick_and_another_too_long() -> None:
    """The one by c is used as if the one by d, of 98 s, did not exist."""
    demand, rates, latency_s = np.zeros((4, 4)), np.full((4, 4), 9.0), np.full((4, 4), 49.0)
    demand[0, 1], rates[0, 1] = 100.0, 1.0
    latency_s[:3, :3] = between(1.0, 10.0, 10.0)
    routes = find_quickest_routes(demand, rates, np.full(4, FAST), np.full(4, np.inf), latency_s)
    assert routes.takes_s == pytest.approx(28.1, rel=0.02)
    assert routes.shares[0, 1, 3] == 0.0


def test_a_shorter_way_takes_everything_that_is_short() -> None:
    routes = from_a_to_b(1e-6, between(1.0, 1.0, 1.0), between(30.0, 10.0, 10.0))
    assert routes.takes_s == pytest.approx(20.0)
    assert routes.shares[0, 1, 2] == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_no_share_of_a_detour_is_quicker(seed: int) -> None:
    """Of 1001 shares for one pair of clusters, with any rates and latencies."""
    draw = np.random.default_rng(seed)
    rates = between(*draw.uniform(1.0, 10.0, 3))
    latency_s = between(*draw.uniform(1.0, 30.0, 3))
    hosts = draw.uniform(1.0, 20.0, 3)
    routes = from_a_to_b(100.0, rates, latency_s, hosts)
    ends = []
    for share in np.linspace(0.0, 1.0, 1001):
        direct, by_c = 100.0 * (1 - share), 100.0 * share
        over_c_s = latency_s[0, 2] + latency_s[2, 1]
        used = [latency_s[0, 1]] * int(direct > 0) + [over_c_s] * int(by_c > 0)
        each = [direct / rates[0, 1] + latency_s[0, 1]] * int(direct > 0)
        each += [by_c / min(rates[0, 2], rates[2, 1], hosts[2]) + over_c_s] * int(by_c > 0)
        # What has the longest way after it passes the source first; the target's is alike.
        longest_s = max(used)
        first = by_c if over_c_s == longest_s else direct
        at_ends = [100.0 / min(hosts[:2]) + min(used), first / min(hosts[:2]) + longest_s]
        ends.append(max(each + at_ends))
    assert min(ends) * 0.999 <= routes.takes_s <= min(ends) * 1.02


def test_the_farthest_data_passes_an_interface_first() -> None:
    """50 bytes to b, 10 s away, then 50 to c, 1 s away: the latter end at 101."""
    demand = np.zeros((3, 3))
    demand[0, 1] = demand[0, 2] = 50.0
    hosts = np.array([1.0, FAST, FAST])
    latency_s = between(10.0, 1.0, 20.0)
    routes = find_quickest_routes(demand, np.full((3, 3), FAST), hosts, NONE, latency_s)
    assert routes.takes_s == pytest.approx(101.0)
    latency_s = between(70.0, 1.0, 80.0)
    routes = find_quickest_routes(demand, np.full((3, 3), FAST), hosts, NONE, latency_s)
    assert routes.takes_s == pytest.approx(120.0)


def test_data_inside_clusters_and_uplinks_count() -> None:
    """30 bytes inside a pass its interfaces, too; c's uplink lets a third of the detour through."""
    demand = np.zeros((3, 3))
    demand[0, 1], demand[0, 0] = 60.0, 30.0
    hosts = np.array([1.0, FAST, FAST])
    rates, latency_s = np.full((3, 3), FAST), between(5.0, 1.0, 1.0, 0.5)
    routes = find_quickest_routes(demand, rates, hosts, NONE, latency_s)
    assert routes.direct_s == pytest.approx(90.5)
    demand[0, 0] = 0.0
    rates = between(1.0, 9.0, 9.0)
    uplinks = np.array([np.inf, np.inf, 3.0])
    routes = find_quickest_routes(demand, rates, np.full(3, FAST), uplinks, np.zeros((3, 3)))
    assert routes.takes_s == pytest.approx(15.0, rel=0.02)


def test_only_ways_that_gain_are_detours() -> None:
    """On the patchwork, short blocks between lyon and rennes go by lille, and no others."""
    model = load_model("patchwork")
    routes = quickest_routes(model, 8)
    names = [cluster.name for cluster in model.grid.clusters]
    relayed = {
        tuple(names[k] for k in way)
        for way in np.argwhere(routes.shares > 0).tolist()
        if way[1] != way[2]
    }
    assert len(relayed) <= 4
    assert {way[2] for way in relayed} == {"lille"}
    for a, b in np.argwhere(~np.eye(4, dtype=bool)):
        assert routes.shares[a, b].sum() == 1.0
