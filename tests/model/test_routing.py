from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.model.routing import SHARE_STEPS, busy_s, find_routes, least_exchange_s, whole_parts


def even(n: int, rate: float) -> np.ndarray:
    return np.full((n, n), rate)


def test_round_a_thin_link_by_the_only_way_there_is() -> None:
    """a-b carries 1, a-c and c-b carry 9; only a has data for b: a tenth goes straight."""
    demand = np.zeros((3, 3))
    demand[0, 1] = 100.0
    links = even(3, 9.0)
    links[0, 1] = 1.0
    routes = find_routes(demand, links, np.full(3, 1e9))
    assert routes.direct_s == pytest.approx(100.0)
    assert routes.busy_s == pytest.approx(10.0, rel=0.02)
    assert routes.shares[0, 1, 1] == pytest.approx(0.1, abs=0.02)
    assert routes.shares[0, 1].sum() == 1.0
    assert routes.gain == pytest.approx(10.0, rel=0.02)


def test_a_relays_interface_limits_too() -> None:
    """What is relayed passes c's interface, out and in, of rate 3."""
    demand = np.zeros((3, 3))
    demand[0, 1] = 100.0
    links = even(3, 9.0)
    links[0, 1] = 1.0
    routes = find_routes(demand, links, np.array([1e9, 1e9, 3.0]))
    assert routes.busy_s == pytest.approx(25.0, rel=0.03)  # 25 straight over 1, 75 by way over 3


def test_what_stays_inside_a_cluster_keeps_its_interfaces_from_relaying() -> None:
    """c passes 30 inside over 3: of what it could relay in T, 3 T - 30 are left."""
    demand = np.zeros((3, 3))
    demand[0, 1], demand[2, 2] = 100.0, 30.0
    links = even(3, 9.0)
    links[0, 1] = 1.0
    routes = find_routes(demand, links, np.array([1e9, 1e9, 3.0]))
    assert routes.busy_s == pytest.approx(32.5, rel=0.03)


def test_an_uplink_is_shared_by_what_is_relayed() -> None:
    """b's uplink takes in all of it, whichever way it comes."""
    demand = np.zeros((3, 3))
    demand[0, 1] = 100.0
    links = even(3, 9.0)
    links[0, 1] = 1.0
    uplinks = np.array([np.inf, 4.0, np.inf])
    routes = find_routes(demand, links, np.full(3, 1e9), uplink_bytes_per_s=uplinks)
    assert routes.busy_s == pytest.approx(25.0, rel=0.02)


def test_no_number_of_relays_beats_the_bound() -> None:
    """Links of a chain carry 9, all others 1: in all, 9 + 1 + 1 + 1 leave the first."""
    n = 5
    demand = np.zeros((n, n))
    demand[0, 4] = 100.0
    links = even(n, 1.0)
    for k in range(n - 1):
        links[k, k + 1] = 9.0
    rates = links, np.full(n, 1e9), np.full(n, np.inf)
    least_s = least_exchange_s(demand, *rates, np.zeros(n * n + 4 * n))
    assert least_s <= 100.0 / 12 * 1.001
    later_s = least_exchange_s(demand, *rates, np.full(n * n + 4 * n, 2.0))
    assert later_s == pytest.approx(least_s + 2.0)


def test_nothing_is_gained_where_all_links_are_alike() -> None:
    demand = even(5, 4.0)
    routes = find_routes(demand, even(5, 2.0), np.full(5, 100.0))
    assert routes.gain == 1.0
    assert (routes.shares[np.arange(5), :, np.arange(5)] == 0).all()
    every = np.arange(5)
    assert (routes.shares[:, every, every] == ~np.eye(5, dtype=bool)).all()


@pytest.mark.parametrize("n", [1, 2])
def test_two_clusters_have_no_third(n: int) -> None:
    assert find_routes(even(n, 1.0), even(n, 1.0), np.full(n, 1.0)).gain == 1.0


@pytest.mark.parametrize("seed", range(12))
def test_random_grids_come_within_two_percent_of_the_bound(seed: int) -> None:
    """1 % of it is the solver's, the rest of rounding; every pair's shares add up to one."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 13))
    sizes = rng.integers(1, 7, n).astype(float)
    links = rng.choice([30.0, 60.0, 1000.0], (n, n))
    links = np.minimum(links, links.T)
    hosts = sizes * rng.choice([50.0, 100.0, 200.0], n)
    routes = find_routes(np.outer(sizes, sizes), links, hosts)
    assert routes.least_s <= routes.busy_s <= routes.direct_s
    assert routes.busy_s <= 1.05 * routes.least_s
    away = ~np.eye(n, dtype=bool)
    assert (routes.shares.sum(axis=2)[away] == 1.0).all()
    assert (routes.shares * SHARE_STEPS % 1 == 0).all()
    assert (routes.shares >= 0).all()
    assert (routes.shares[np.arange(n), :, np.arange(n)] == 0).all(), "nothing goes by its source"


def test_a_thin_link_is_not_rounded_up() -> None:
    """Of three parts from 0 to 1, one and a half should go straight: with two, it were 1.33."""
    demand = np.zeros((3, 3))
    demand[0, 1] = 3.0
    links = even(3, 9.0)
    links[0, 1] = 1.0
    shares = np.zeros((3, 3, 3))
    shares[0, 1] = (0.0, 0.5, 0.5)
    n_parts = np.where(demand > 0, 3, 0)
    rates = links, np.full(3, 1e9), np.full(3, np.inf)
    counts = whole_parts(shares, n_parts, demand, *rates)
    assert counts[0, 1].tolist() == [0, 1, 2]
    assert busy_s(counts, demand, *rates).max() == pytest.approx(1.0)
    behind_uplink = links, np.full(3, 1e9), np.array([np.inf, np.inf, 0.5])
    assert whole_parts(shares, n_parts, demand, *behind_uplink)[0, 1].tolist() == [0, 2, 1]


@pytest.mark.parametrize("seed", range(8))
def test_whole_parts_lose_little(seed: int) -> None:
    """Of the hundreds of parts that long blocks have between two clusters."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 13))
    sizes = rng.integers(1, 6, n)
    links = rng.choice([20.0, 50.0, 100.0, 1000.0], (n, n))
    links = np.minimum(links, links.T)
    hosts = sizes * rng.choice([50.0, 100.0, 200.0], n)
    blocks = np.outer(sizes, sizes) * ~np.eye(n, dtype=bool)
    routes = find_routes(blocks.astype(float), links, hosts)
    rates = links, hosts, np.full(n, np.inf)
    counts = whole_parts(routes.shares, 32 * blocks, blocks.astype(float), *rates)
    assert (counts.sum(axis=2) == 32 * blocks).all()
    assert (counts[routes.shares == 0] == 0).all()
    assert busy_s(counts, blocks.astype(float), *rates).max() <= 1.02 * routes.busy_s


def test_rates_must_be_positive() -> None:
    with pytest.raises(UsageError, match="must be positive"):
        find_routes(even(3, 1.0), even(3, 0.0), np.full(3, 1.0))
