from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.placement import IterationCost, Phase, Problem, select, selection
from gridcoll.placement.problem import Memory


def test_the_runner_up_is_second_of_all(draw, subsets) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(21)
    for _ in range(60):
        cost = draw(rng, int(rng.integers(2, 9)), memory=False)
        times = np.sort(cost.times(subsets(cost.n_clusters)))
        chosen = select(cost)
        assert chosen.proven
        assert chosen.best.iteration_s == pytest.approx(times[0], rel=1e-12)
        assert chosen.runner_up is not None
        assert chosen.runner_up_exact
        assert chosen.runner_up.clusters != chosen.best.clusters
        assert chosen.runner_up.iteration_s == pytest.approx(times[1], rel=1e-12)


def test_on_large_grids_it_is_one_cluster_away(draw, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(selection, "EXACT_RUNNER_UP_CLUSTERS", 3)
    rng = np.random.default_rng(22)
    for _ in range(60):
        cost = draw(rng, int(rng.integers(4, 9)), memory=False)
        chosen = select(cost)
        assert chosen.runner_up is not None
        assert not chosen.runner_up_exact
        best, second = set(chosen.best.clusters), set(chosen.runner_up.clusters)
        assert best != second
        assert len(best - second) <= 1
        assert len(second - best) <= 1
        assert chosen.runner_up.iteration_s <= min(c.iteration_s for c in chosen.changes) * 1.000001


def test_changes_are_what_each_cluster_gains_or_costs(draw) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(23)
    for _ in range(30):
        cost = draw(rng, 7, memory=False)
        chosen = select(cost)
        best = set(chosen.best.clusters)
        expected = set(range(7)) - (best if len(best) == 1 else set())
        assert {change.cluster for change in chosen.changes} == expected
        for change in chosen.changes:
            assert change.kind == ("drop" if change.cluster in best else "add")
            after = cost.time_s(tuple(sorted(best ^ {change.cluster})))
            assert change.iteration_s == pytest.approx(after, rel=1e-9)
            assert change.gain_s == pytest.approx(chosen.best.iteration_s - after, abs=1e-9 * after)
            assert change.gain_s <= 1e-9 * after  # nothing beats a proven optimum


def test_one_cluster_has_no_runner_up(draw) -> None:  # type: ignore[no-untyped-def]
    chosen = select(draw(np.random.default_rng(24), 1, memory=False))
    assert chosen.runner_up is None
    assert chosen.changes == ()


def cost_with_memory(resources_of, host: str) -> IterationCost:  # type: ignore[no-untyped-def]
    resources = resources_of(np.array([[1e-5, 1.0], [1.0, 1e-5]]))
    problem = Problem(
        n_elements=8_000_000,
        phases=[Phase(name="p", alpha_s=1e-9)],
        memory=Memory(element_bytes=600, host=host),
    )
    return IterationCost(problem, resources)


def test_memory_decides(resources_of) -> None:  # type: ignore[no-untyped-def]
    """8 million elements of 600 bytes: 1.2 GB on each of four hosts, 0.6 GB on each of eight."""
    assert select(cost_with_memory(resources_of, "1.3 GB")).best.clusters == (0,)
    both = select(cost_with_memory(resources_of, "1 GB"))
    assert both.best.clusters == (0, 1)
    assert both.runner_up is None
    assert all(change.lacks_memory for change in both.changes)
    with pytest.raises(UsageError, match=r"memory: no subset found holds 8000000 elements of 600"):
        select(cost_with_memory(resources_of, "0.5 GB"))


def test_unknown_search(draw) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match="unknown search 'best'"):
        select(draw(np.random.default_rng(25), 3), "best")
