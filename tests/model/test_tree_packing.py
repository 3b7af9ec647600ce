"""Fractional packing of trees by linear programming."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model.tree_packing import TOLERANCE, Packing, Platform, pack_by_depth


def platform(
    counts: tuple[int, ...], rates: tuple[float, ...], link: float = 1e3, root: int = -1
) -> Platform:
    n = len(counts)
    links, hops = ((link,) * n,) * n, ((1.0,) * n,) * n
    return Platform(counts, tuple(range(n)), rates, links, (float("inf"),) * n, hops, root)


def pack_trees(some: Platform, most_s: float = float("inf")) -> Packing | None:
    """The best packing in which no host is farther than ``most_s`` from a tree's top."""
    found = pack_by_depth(some, (most_s,))
    return found[-1] if found else None


def test_like_hosts_pass_what_a_ring_passes() -> None:
    """Edges of a tree over P hosts, two ends each, over P interfaces."""
    packing = pack_trees(platform((4, 4), (1.0, 1.0)))
    assert packing
    assert packing.busy_s == pytest.approx(2 * 7 / 8, rel=TOLERANCE)


def test_a_slow_host_is_a_leaf() -> None:
    packing = pack_trees(platform((3, 1), (4.0, 1.0)))
    assert packing
    assert packing.busy_s == pytest.approx(1.0, rel=TOLERANCE)
    for tree in packing.trees:
        assert tree.parents.count(3) == 0


def test_thin_links_are_passed_once() -> None:
    packing = pack_trees(platform((3, 3), (1.0, 1.0), link=0.1))
    assert packing
    assert packing.busy_s == pytest.approx(10.0, rel=TOLERANCE)


def test_an_uplink_is_shared_by_all_that_leaves() -> None:
    """Three sites of one uplink each: two edges, of four ends, over three uplinks."""
    ways = ((100.0,) * 3,) * 3
    sites = Platform((2,) * 3, (0, 1, 2), (100.0,) * 3, ways, (1.0,) * 3, ((1.0,) * 3,) * 3)
    packing = pack_trees(sites)
    assert packing
    assert packing.busy_s == pytest.approx(4 / 3, rel=TOLERANCE)


def test_a_root_sends_and_the_rest_pass_on() -> None:
    packing = pack_trees(platform((1, 3), (1.0, 1.0), root=0))
    assert packing
    assert packing.busy_s == pytest.approx(1.0, rel=0.05)
    assert all(tree.parents[0] == -1 for tree in packing.trees)


def test_too_short_a_way_has_no_trees() -> None:
    assert pack_trees(platform((2, 2), (1.0, 1.0)), 0.5) is None


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 8), st.integers(0, 10_000))
def test_shares_load_no_resource_for_longer_than_the_dual_allows(n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    links = random.uniform(1, 100, (n, n))
    hops = random.uniform(1, 9, (n, n))
    some = Platform(
        tuple(random.integers(1, 5, n).tolist()),
        tuple(range(n)),
        tuple(random.uniform(1, 50, n).tolist()),
        tuple(map(tuple, (links + links.T).tolist())),
        tuple(random.uniform(5, 500, n).tolist()),
        tuple(map(tuple, (hops + hops.T).tolist())),
    )
    packing = pack_trees(some)
    assert packing
    assert sum(packing.shares) == pytest.approx(1)
    assert packing.least_s <= packing.busy_s <= packing.least_s * (1 + 2 * TOLERANCE)
    for tree in packing.trees:
        assert tree.parents.count(-1) == 1


def test_trees_that_left_come_back() -> None:
    """Over many clusters a tree leaves the basis and is wanted again: the optimum needs it."""
    random = np.random.default_rng(1)
    n = 24
    links, hops = random.uniform(2, 125, (n, n)), random.uniform(1, 30, (n, n))
    some = Platform(
        tuple(random.integers(1, 6, n).tolist()),
        tuple(range(n)),
        tuple(random.choice([6.0, 12.0, 25.0, 62.0, 125.0], n).tolist()),
        tuple(map(tuple, (links + links.T).tolist())),
        (float("inf"),) * n,
        tuple(map(tuple, (hops + hops.T).tolist())),
    )
    packing = pack_trees(some)
    assert packing
    assert packing.busy_s <= packing.least_s * (1 + 2 * TOLERANCE)


def test_longer_ways_carry_more_and_those_that_gain_nothing_are_left_out() -> None:
    """Two clusters of one host 1 s away; each other one is reached over either, or past both."""
    hops = ((0.1, 1.0, 1.0, 4.0), (1.0, 0.1, 4.0, 1.0), (1.0, 4.0, 0.1, 4.0), (4.0, 1.0, 4.0, 0.1))
    some = Platform(
        (1, 1, 3, 3), (0, 1, 2, 3), (1.0, 8.0, 4.0, 4.0), ((9.0,) * 4,) * 4, (9.0,) * 4, hops
    )
    found = pack_by_depth(some, (0.5, 2.1, 4.5, np.inf))
    assert [packing.busy_s for packing in found] == sorted(
        (packing.busy_s for packing in found), reverse=True
    )
    assert len(found) > 1
    assert found[-1].busy_s <= found[-1].least_s * (1 + 2 * TOLERANCE)
    assert pack_by_depth(some, (0.5,)) == ()


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), st.integers(0, 10_000))
def test_a_broadcast_has_a_bound_too(n: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    links, hops = random.uniform(1, 100, (n, n)), random.uniform(1, 9, (n, n))
    some = Platform(
        (1, *random.integers(1, 5, n - 1).tolist()),
        tuple(range(n)),
        tuple(random.uniform(1, 50, n).tolist()),
        tuple(map(tuple, links.tolist())),
        tuple(random.uniform(5, 500, n).tolist()),
        tuple(map(tuple, hops.tolist())),
        0,
    )
    packing = pack_trees(some)
    assert packing
    assert packing.least_s <= packing.busy_s <= packing.least_s * (1 + 2 * TOLERANCE)
    assert packing.least_s >= max(1 / rate for rate in some.rates[1:]) * (1 - 1e-9)
