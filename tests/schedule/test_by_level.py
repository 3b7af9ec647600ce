"""A schedule on each level of clusters of clusters."""

from __future__ import annotations

import numpy as np

from gridcoll.schedule import HEURISTICS, Instance


def two_countries() -> Instance:
    """Two countries of two cities of two clusters: 100, 10 and 1 ms apart."""
    place = np.arange(8)
    apart = np.where(place[:, None] // 2 == place // 2, 1e-3, 10e-3)
    apart = np.where(place[:, None] // 4 == place // 4, apart, 100e-3)
    return Instance(apart, 5 * apart, np.full(8, 0.1), 1)


def test_every_level_is_crossed_once() -> None:
    schedule = HEURISTICS["by-level"].pick(two_countries())
    assert [(s // 4, r // 4) for s, r in schedule.transfers].count((0, 1)) == 1
    between_cities = [
        (s, r) for s, r in schedule.transfers if s // 4 == r // 4 and s // 2 != r // 2
    ]
    assert len(between_cities) == 2
    assert len(schedule.transfers) == 7


def test_the_widest_level_comes_first() -> None:
    schedule = HEURISTICS["by-level"].pick(two_countries())
    first = schedule.transfers[0]
    assert first.sender == 1
    assert first.receiver >= 4
    widths = [two_countries().latency_s[s, r] for s, r in schedule.transfers]
    for sender in range(8):
        own = [w for w, (s, _) in zip(widths, schedule.transfers, strict=True) if s == sender]
        assert own == sorted(own, reverse=True)


def test_the_optimum_over_all_clusters_is_never_behind_it() -> None:
    instance = two_countries()
    best = HEURISTICS["optimal"].pick(instance)
    assert best.makespan_s <= HEURISTICS["by-level"].pick(instance).makespan_s
