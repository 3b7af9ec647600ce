"""Which hosts go together, by what their interfaces were seen to carry."""

from __future__ import annotations

from gridcoll.measure import interfaces
from gridcoll.measure.interfaces import alike


def test_hosts_are_split_where_rates_differ() -> None:
    nodes = [[0, 1], [2], [3], [4, 5]]
    assert alike(nodes, {0: 5e6, 2: 26e6, 3: 20e6, 4: 6e6}) == [{2, 3}, {0, 1, 4, 5}]
    assert alike(nodes, {0: 20e6, 2: 26e6, 3: 20e6, 4: 18e6}) == [{0, 1, 2, 3, 4, 5}]
    assert alike(nodes, {}) == [{0, 1, 2, 3, 4, 5}], "where nobody looked"


def test_those_that_seem_slow_meet_fast_ones_once_more() -> None:
    best = {0: 5.0, 1: 20.0, 2: 5.0, 3: 5.0, 4: 18.0}
    again = interfaces._again(range(5), best)
    assert again == [[(0, 1), (2, 4)], [(3, 1)]]
    assert interfaces._again(range(3), {0: 10.0, 1: 11.0, 2: 12.0}) == []
