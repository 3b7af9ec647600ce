from __future__ import annotations

import pytest

from gridcoll.topology.rounds import rounds_of_pairs


@pytest.mark.parametrize("n", range(18))
def test_everybody_meets_everybody_once_and_nobody_is_in_two_places(n: int) -> None:
    rounds = rounds_of_pairs(n)
    met = sorted(pair for pairs in rounds for pair in pairs)
    assert met == [(a, b) for a in range(n) for b in range(a + 1, n)]
    for pairs in rounds:
        busy = [member for pair in pairs for member in pair]
        assert len(busy) == len(set(busy))


@pytest.mark.parametrize("n", range(2, 18))
def test_no_more_rounds_than_needed(n: int) -> None:
    assert len(rounds_of_pairs(n)) == (n - 1 if n % 2 == 0 else n)
