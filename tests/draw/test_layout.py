from __future__ import annotations

import numpy as np
import pytest

from gridcoll.draw.grid_picture import (
    overlaps,
    place_by_site,
    place_clusters,
    spanning_tree,
    sunflower,
)


def latencies(n, seed):
    points = np.random.default_rng(seed).random((n, 2))
    return np.linalg.norm(points[:, None] - points[None], axis=2) * 10e-3


@pytest.mark.parametrize("n", [1, 2, 3, 6, 9])
def test_circles_stand_in_the_box_and_apart(n):
    radii = np.full(n, 0.8)
    places = place_clusters(latencies(n, n), radii, 9.0, 6.0)
    assert (places >= 0.8 - 1e-9).all()
    assert (places <= np.array([9.0, 6.0]) - 0.8 + 1e-9).all()
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)[~np.eye(n, dtype=bool)]
    assert (apart >= 1.6 - 0.05).all()


def test_near_clusters_stand_near():
    latency_s = np.array([[0, 1, 12], [1, 0, 12], [12, 12, 0]]) * 1e-3
    a, b, c = place_clusters(latency_s, np.full(3, 0.3), 9.0, 6.0)
    assert np.linalg.norm(a - b) < 0.5 * np.linalg.norm(a - c)


def test_clusters_at_no_distance_are_still_apart():
    a, b = place_clusters(np.zeros((2, 2)), np.full(2, 0.5), 9.0, 6.0)
    assert np.linalg.norm(a - b) >= 0.99


def test_the_spanning_tree_is_the_cheapest():
    cost = np.array([[0, 1, 5, 9], [1, 0, 2, 9], [5, 2, 0, 3], [9, 9, 3, 0]])
    assert spanning_tree(cost) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("n", [1, 4, 7, 8, 60])
def test_dots_stay_inside_their_circle_and_apart(n):
    dots = sunflower(n, 1.0)
    assert np.linalg.norm(dots, axis=1).max() <= 1.0
    apart = np.linalg.norm(dots[:, None] - dots[None], axis=2)[~np.eye(n, dtype=bool)]
    assert n == 1 or apart.min() > 0.8 / np.sqrt(n)


def test_overlaps():
    assert overlaps((0, 0, 2, 2), [(1, 1, 3, 3)])
    assert not overlaps((0, 0, 1, 1), [(1, 0, 2, 1), (0, 2, 1, 3)])


def test_sites_keep_their_clusters_together_and_apart_from_others():
    sites = [(0, 1, 2), (3,), (4, 5, 6, 7, 8, 9, 10, 11, 12)]
    radii = np.full(13, 0.5)
    places, centres, grounds = place_by_site(latencies(13, 1), sites, radii, 20.0, 14.0)
    for members, centre, ground in zip(sites, centres, grounds, strict=True):
        away = np.linalg.norm(places[list(members)] - centre, axis=1)
        assert (away + 0.5 <= ground + 1e-9).all()
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)[~np.eye(13, dtype=bool)]
    assert apart.min() >= 0.95
    for i in range(3):
        for j in range(i):
            assert np.linalg.norm(centres[i] - centres[j]) >= grounds[i] + grounds[j] - 0.05
