"""Who looks at whom before a job starts, and what is taken for changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridcoll.measure.cache.check import (
    Expected,
    edges_between,
    edges_inside,
    inside_limits_s,
    moved_hosts,
)
from gridcoll.measure.cache.start import clusters_to_merge, fitting_cluster, leaders_of
from gridcoll.model import linear_plogp
from gridcoll.topology import Grid

grids = st.lists(st.integers(0, 4), min_size=1, max_size=40).map(Grid.from_labels)


@given(grids)
def test_every_host_is_looked_at_and_none_twice_in_a_round(grid: Grid) -> None:
    rounds = edges_inside(grid)
    for edges in rounds:
        ranks = [rank for edge in edges for rank in edge.ranks]
        assert len(ranks) == len(set(ranks))
    seen = {rank for edges in rounds for edge in edges for rank in edge.ranks}
    assert seen == {rank for c in grid.clusters if len(c) > 1 for rank in c.ranks}
    assert len(rounds) <= 4  # however many hosts: of a tree each has three neighbours


@given(grids)
def test_every_pair_of_clusters_is_looked_at_once(grid: Grid) -> None:
    n = len(grid.clusters)
    pairs = [(a, b) for a in range(n) for b in range(a + 1, n)]
    rounds = edges_between(grid, pairs)
    assert sorted(edge.clusters for edges in rounds for edge in edges) == pairs
    for edges in rounds:
        ranks = [rank for edge in edges for rank in edge.ranks]
        assert len(ranks) == len(set(ranks))
        for edge in edges:
            assert tuple(grid.cluster_of[rank] for rank in edge.ranks) == edge.clusters


def test_with_enough_hosts_all_pairs_are_looked_at_at_once() -> None:
    grid = Grid.from_labels([0, 0, 1, 1, 2, 2])
    assert len(edges_between(grid, [(0, 1), (0, 2), (1, 2)])) == 1


def test_what_hangs_from_a_host_that_moved_goes_with_it() -> None:
    grid = Grid.from_labels([0] * 7)
    assert moved_hosts(grid, []) == frozenset()
    assert moved_hosts(grid, [4]) == {4}
    assert moved_hosts(grid, [1]) == {1, 3, 4}
    assert moved_hosts(grid, [1, 2]) == set(range(7))
    assert moved_hosts(Grid.from_labels([0, 0]), [1]) == {0, 1}


FAR = Expected(linear_plogp(12e-3, 12.5e6))


@pytest.mark.parametrize(
    ("trip_s", "is_off"), [(24e-3, False), (29e-3, False), (36e-3, True), (10e-3, True)]
)
def test_a_latency_is_off_by_more_than_its_tolerance(trip_s: float, is_off: bool) -> None:
    assert FAR.latency_is_off(trip_s, 0.3) == is_off


def test_a_latency_that_always_scattered_is_not() -> None:
    assert not Expected(FAR.link, latency_spread_s=5e-3).latency_is_off(36e-3, 0.3)


@pytest.mark.parametrize("rate", [1e6, 12.5e6, 1e9])
@pytest.mark.parametrize("latency_s", [1e-3, 12e-3, 80e-3])
@pytest.mark.parametrize("is_of_this_mpi", [True, False])
def test_a_tenth_of_a_rate_shows_and_the_rate_itself_does_not(
    rate: float, latency_s: float, is_of_this_mpi: bool
) -> None:
    """Where a message as long as we send takes any time beside a round trip."""
    link = Expected(linear_plogp(latency_s, rate), is_of_this_mpi=is_of_this_mpi)
    n_bytes = link.bulk_bytes()
    for factor in (1.0, 1.2):
        took_s = link.trip_s + n_bytes / rate * factor
        assert not link.bulk_is_off(n_bytes, took_s, link.trip_s, 0.3)
    if n_bytes / rate > link.trip_s / 5:
        took_s = link.trip_s + n_bytes / rate * 10
        assert link.bulk_is_off(n_bytes, took_s, link.trip_s, 0.3)


def test_a_host_is_elsewhere_nearer_to_there_than_to_here() -> None:
    near = Expected(linear_plogp(90e-6, 12.5e6))
    limits = inside_limits_s({(0, 0): near, (1, 1): near, (0, 1): FAR, (1, 0): FAR}, 0.3)
    assert near.trip_s < limits[0] < FAR.trip_s
    alone = inside_limits_s({(0, 0): near}, 0.3)
    assert near.trip_s * 1.3 < alone[0] < 4e-3


def test_a_new_host_fits_where_its_landmark_is_as_near_as_neighbours_are() -> None:
    inside_s = np.array([100e-6, 200e-6, 0.0])
    assert fitting_cluster(np.array([120e-6, 5e-3, 9e-3]), inside_s, 0.3) == 0
    assert fitting_cluster(np.array([5e-3, 250e-6, 9e-3]), inside_s, 0.3) == 1
    assert fitting_cluster(np.array([500e-6, 5e-3, 9e-3]), inside_s, 0.3) is None
    assert (
        fitting_cluster(np.array([5e-3, 5e-3, 50e-6]), inside_s, 0.3) is None
    )  # nobody knows of inside


def test_clusters_that_are_as_near_as_neighbours_are_one() -> None:
    grid = Grid.from_labels(["a", "a", "b", "b", "c", "c"])
    inside_s = {0: 100e-6, 1: 120e-6, 2: 100e-6}
    alike = [12.5e6, 0.0, 11e6]
    assert clusters_to_merge(
        grid, {(0, 1): 110e-6, (0, 2): 5e-3, (1, 2): 5e-3}, inside_s, 0.3, alike
    ) == {"b": "a"}
    assert clusters_to_merge(grid, {(1, 0): 5e-3, (2, 1): 110e-6}, inside_s, 0.3, alike) == {
        "c": "b"
    }
    assert clusters_to_merge(grid, {(0, 1): 110e-6}, {}, 0.3, alike) == {}
    assert clusters_to_merge(grid, {(0, 0): 100e-6}, inside_s, 0.3, alike) == {}
    assert clusters_to_merge(grid, {(0, 2): 110e-6}, inside_s, 0.3, [12.5e6, 0.0, 8e6]) == {}
    chain = {(0, 1): 110e-6, (1, 2): 110e-6}
    assert clusters_to_merge(grid, chain, inside_s, 0.3, alike) == {"b": "a", "c": "a"}


def test_leaders() -> None:
    assert leaders_of(["a", "b", "a", "c", "b"]) == [0, 1, 3]
