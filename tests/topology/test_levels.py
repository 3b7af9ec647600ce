from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.study.grid5000_command import LATENCY_US
from gridcoll.topology.levels import find_levels, join_nearest


def test_the_levels_of_paper_000_table_3() -> None:
    """Orsay's two clusters, then IDPOT's three, then sites; the order of their latencies."""
    levels = find_levels(LATENCY_US)
    assert (0, 1) in levels[0]
    assert any((2, 3, 4) in groups for groups in levels)
    assert levels[-1] == (tuple(range(6)),)


def test_every_level_joins_groups_of_the_one_before() -> None:
    rng = np.random.default_rng(1)
    for n in (2, 5, 12):
        latency_s = rng.uniform(1e-5, 1e-1, (n, n))
        before = [(cluster,) for cluster in range(n)]
        for groups in find_levels(np.maximum(latency_s, latency_s.T)):
            assert sorted(c for group in groups for c in group) == list(range(n))
            assert len(groups) < len(before)
            assert all(any(set(old) <= set(new) for new in groups) for old in before)
            before = list(groups)
        assert len(before) == 1


def test_one_cluster_has_no_levels_and_alike_ones_have_one() -> None:
    assert find_levels([[0.0]]) == ()
    assert find_levels(np.full((4, 4), 1e-3)) == (((0, 1, 2, 3),),)


def test_a_matrix_that_is_none() -> None:
    with pytest.raises(UsageError):
        find_levels([[0.0, -1.0], [-1.0, 0.0]])


def test_the_nearest_are_joined_first_and_what_is_as_near_at_once() -> None:
    latency_s = np.full((5, 5), 8.0)
    latency_s[:2, :2] = 1.0
    latency_s[2:, 2:] = 3.0
    assert join_nearest(latency_s) == (
        (0.0, ((0,), (1,), (2,), (3,), (4,))),
        (1.0, ((0, 1), (2,), (3,), (4,))),
        (3.0, ((0, 1), (2, 3, 4))),
        (8.0, ((0, 1, 2, 3, 4),)),
    )
    assert join_nearest([[0.0]]) == ((0.0, ((0,),)),)


def test_no_two_of_a_group_are_farther_than_it_says() -> None:
    latency_s = np.random.default_rng(2).uniform(1e-3, 1e-1, (9, 9))
    for widest_s, groups in join_nearest(latency_s):
        far = [max(latency_s[a, b] for a in g for b in g if a != b) for g in groups if len(g) > 1]
        assert max(far, default=0.0) == widest_s
