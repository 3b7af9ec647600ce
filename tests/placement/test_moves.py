"""Neighbours computed at once are what each would be alone."""

from __future__ import annotations

import numpy as np
import pytest

from gridcoll.placement import IterationCost
from gridcoll.placement.local import Growth, flip_times


def _outside(cost: IterationCost) -> IterationCost:
    """The same problem with an ALLREDUCE that no closed form gives."""
    limit_s = float(cost.resources.latency_s.max())
    return IterationCost(
        cost.problem, cost.resources, lambda clusters: limit_s + 1e-3 * (sum(clusters) % 7)
    )


@pytest.mark.parametrize("outside", [False, True])
def test_flips(draw, outside: bool) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(3)
    for case in range(200):
        cost = draw(rng, int(rng.integers(1, 12)))
        cost = _outside(cost) if outside else cost
        mask = rng.random(cost.n_clusters) < (0.0 if case == 0 else 0.5)
        each = [cost.times((mask ^ row)[None, :])[0] for row in np.eye(cost.n_clusters, dtype=bool)]
        np.testing.assert_allclose(flip_times(cost, mask), each, rtol=1e-9)


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.long
def test_growth(draw, outside: bool) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(4)
    for _ in range(60):
        cost = draw(rng, int(rng.integers(2, 9)))
        cost = _outside(cost) if outside else cost
        n = cost.n_clusters
        moves = [(i,) for i in range(n)] + list(cost.resources.groups())
        growth = Growth(cost, np.eye(n, dtype=bool), moves)
        moving = True
        while moving:
            candidates = growth.candidates()
            for row, mask in enumerate(growth.masks):
                for column, move in enumerate(moves):
                    after = mask.copy()
                    after[list(move)] = True
                    expected = cost.times(after[None, :])[0] if (after != mask).any() else np.inf
                    assert candidates[row, column] == pytest.approx(expected, rel=1e-9)
            before = growth.times.copy()
            moving = growth.step()
            np.testing.assert_allclose(growth.times, cost.times(growth.masks), rtol=1e-9)
            assert (growth.times <= before).all()
        assert (growth.candidates() >= growth.times[:, None] * (1 - 1e-9)).all()
