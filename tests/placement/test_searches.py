from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.placement import SEARCHES, IterationCost, Phase, Problem, SubsetResult, exact
from gridcoll.placement.selection import find_search
from gridcoll.study.placement_command import CASE_KINDS

EXACT = ("exhaustive", "branch-and-bound")
NEAR = 1e-9


def run(name: str, cost: IterationCost, seed: int = 0):  # type: ignore[no-untyped-def]
    return SEARCHES[name].run(cost, np.random.default_rng(seed))


def test_registry() -> None:
    assert list(SEARCHES) == [
        "exhaustive", "random", "random-1k", "greedy", "grouping", "annealing",
        "annealing-greedy", "annealing-grouping", "branch-and-bound",
    ]  # fmt: skip
    assert all(name == entry.name and entry.source for name, entry in SEARCHES.items())
    with pytest.raises(UsageError, match="unknown search 'tabu'; known are exhaustive, random"):
        find_search("tabu")


def test_exhaustive_is_the_minimum(draw, subsets) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(5)
    for _ in range(300):
        cost = draw(rng, int(rng.integers(1, 10)))
        times = cost.times(subsets(cost.n_clusters))
        result = run("exhaustive", cost)
        assert result.iteration_s == pytest.approx(times.min(), rel=1e-12)
        assert result.proven
        assert result.n_evaluated == len(times)


def test_exhaustive_beyond_one_table(draw, subsets, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Subsets of the first clusters in a table, combined with each subset of the others."""
    monkeypatch.setattr("gridcoll.placement.exact.LOW_CLUSTERS", 3)
    rng = np.random.default_rng(6)
    for _ in range(100):
        cost = draw(rng, int(rng.integers(3, 10)))
        times = cost.times(subsets(cost.n_clusters))
        assert run("exhaustive", cost).iteration_s == pytest.approx(times.min(), rel=1e-12)


@pytest.mark.long
def test_nothing_beats_exhaustive(draw) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(7)
    lost = dict.fromkeys(SEARCHES, 0)
    for case in range(400):
        cost = draw(rng, int(rng.integers(1, 8)))
        best_s = run("exhaustive", cost).iteration_s
        for name in ("greedy", "grouping", "random-1k") if case % 10 else SEARCHES:
            found = run(name, cost, seed=case)
            assert found.clusters
            assert found.iteration_s == cost.time_s(found.clusters)
            assert found.iteration_s >= best_s * (1 - NEAR)
            lost[name] += found.iteration_s > best_s * (1 + NEAR)
    assert lost["branch-and-bound"] == 0
    assert lost["random"] > lost["annealing"] > lost["annealing-grouping"]
    assert lost["greedy"] > 0  # else the comparison above would say little


@pytest.mark.long
def test_every_search_with_an_outside_price(draw) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(8)
    for _ in range(20):
        cost = draw(rng, int(rng.integers(1, 7)))
        priced = IterationCost(cost.problem, cost.resources, uneven(cost))
        every = [run(name, priced) for name in SEARCHES]
        best_s = every[0].iteration_s
        assert every[-1].proven
        assert every[-1].iteration_s == pytest.approx(best_s, rel=NEAR)
        assert min(found.iteration_s for found in every) == pytest.approx(best_s, rel=NEAR)


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.long
def test_branch_and_bound_finds_the_optimum_itself(draw, monkeypatch, outside: bool) -> None:  # type: ignore[no-untyped-def]
    """Annealing's start is mostly the optimum already; from a bad one, pruning has to be right."""
    monkeypatch.setattr(exact, "_start", lambda cost, rng: SubsetResult((0,), cost.time_s((0,)), 1))
    rng = np.random.default_rng(15)
    for _ in range(60 if outside else 300):
        cost = draw(rng, int(rng.integers(2, 8 if outside else 11)))
        if outside:
            cost = IterationCost(cost.problem, cost.resources, uneven(cost))
        found = run("branch-and-bound", cost)
        assert found.proven
        assert found.iteration_s == pytest.approx(run("exhaustive", cost).iteration_s, rel=NEAR)


def uneven(cost: IterationCost):  # type: ignore[no-untyped-def]
    """A price that may fall or rise with any cluster."""
    latency_s = cost.resources.latency_s

    def price_s(clusters):  # type: ignore[no-untyped-def]
        longest = latency_s[np.ix_(clusters, clusters)].max()
        return longest * (1 + sum(clusters) % 3) + 1e-4 * len(clusters)

    return price_s


def test_branch_and_bound_asks_for_few_prices() -> None:
    kind = CASE_KINDS["close-to-homogeneous"]
    asked = []
    for seed in range(10):
        cost = kind.draw(np.random.default_rng(seed), kind.n_elements)
        two_level = IterationCost(cost.problem, cost.resources).with_closed_allreduce()

        def price_s(clusters, two_level=two_level):  # type: ignore[no-untyped-def]
            asked.append(clusters)
            return two_level.allreduce_s(clusters) * 1.01

        assert run("branch-and-bound", IterationCost(cost.problem, cost.resources, price_s)).proven
    assert len(asked) < 10 * 40  # of 255 subsets each


def test_25_clusters_proven_as_exhaustive_finds_them() -> None:
    kind = CASE_KINDS["very-heterogeneous"]
    rng = np.random.default_rng(9)
    cost = kind.draw(rng, 20_000_000)
    while cost.n_clusters not in (19, 20, 21):
        cost = kind.draw(rng, 20_000_000)
    proven = run("branch-and-bound", cost)
    assert proven.proven
    assert proven.iteration_s == pytest.approx(run("exhaustive", cost).iteration_s, rel=NEAR)


def test_branch_and_bound_says_when_it_gives_up(draw, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(exact, "MAX_NODES", 0)
    rng = np.random.default_rng(10)
    given_up = [run("branch-and-bound", draw(rng, 9)) for _ in range(40)]
    assert not all(found.proven for found in given_up)
    assert all(found.clusters for found in given_up)


@pytest.mark.parametrize("name", list(SEARCHES))
def test_seeded(draw, name: str) -> None:  # type: ignore[no-untyped-def]
    cost = draw(np.random.default_rng(11), 10)
    assert run(name, cost, seed=1) == run(name, cost, seed=1)


@pytest.mark.parametrize("name", list(SEARCHES))
def test_one_cluster(draw, name: str) -> None:  # type: ignore[no-untyped-def]
    assert run(name, draw(np.random.default_rng(12), 1)).clusters == (0,)


@pytest.mark.parametrize("name", EXACT)
def test_equal_clusters(resources_of, name: str) -> None:  # type: ignore[no-untyped-def]
    """With nothing to tell clusters apart but their number, the lowest are taken."""
    resources = resources_of(np.full((5, 5), 1e-3) - 0.9e-3 * np.eye(5))
    problem = Problem(n_elements=100, phases=[Phase(name="p", alpha_s=1e-5)])
    assert run(name, IterationCost(problem, resources)).clusters == (0,)


def islands(resources_of) -> IterationCost:  # type: ignore[no-untyped-def]
    """Two clusters in Hawaii, two in Australia (§3.1.3): the second pair pays only as a pair."""
    place = np.array([0, 0, 1, 1])
    latency_s = np.where(place[:, None] == place, 1e-3, 2e-2)
    resources = resources_of(
        latency_s, sites=("hawaii", "hawaii", "australia", "australia"), n_hosts=np.full(4, 16)
    )
    return IterationCost(
        Problem(n_elements=900_000, phases=[Phase(name="p", alpha_s=1e-5)]), resources
    )


def test_grouping_jumps_where_greedy_stops(resources_of) -> None:  # type: ignore[no-untyped-def]
    cost = islands(resources_of)
    assert run("greedy", cost).clusters == (0, 1)
    assert run("grouping", cost).clusters == (0, 1, 2, 3)
    assert run("exhaustive", cost).clusters == (0, 1, 2, 3)


def test_annealing_never_loses_its_start(draw) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(13)
    for seed in range(40):
        cost = draw(rng, int(rng.integers(2, 15)))
        for start in ("greedy", "grouping"):
            found_s = run(f"annealing-{start}", cost, seed).iteration_s
            assert found_s <= run(start, cost).iteration_s * (1 + NEAR)


@pytest.mark.long
def test_memory_is_found_where_there_is_some(draw) -> None:  # type: ignore[no-untyped-def]
    """One subset or another has memory enough; each search but the random one finds one."""
    rng = np.random.default_rng(14)
    for seed in range(40):
        cost = draw(rng, 6, memory=True)
        if not cost.lacks_memory(run("exhaustive", cost).iteration_s):
            for name in SEARCHES:
                if name != "random":
                    assert not cost.lacks_memory(run(name, cost, seed).iteration_s), name


def test_too_many_for_exhaustive(resources_of) -> None:  # type: ignore[no-untyped-def]
    resources = resources_of(np.full((27, 27), 1e-3))
    cost = IterationCost(Problem(n_elements=9, phases=[Phase(name="p", alpha_s=1.0)]), resources)
    with pytest.raises(UsageError, match=r"27 clusters make 2\^27 subsets, at most 26"):
        run("exhaustive", cost)


def test_random_draws_are_never_empty(resources_of) -> None:  # type: ignore[no-untyped-def]
    resources = resources_of(np.full((2, 2), 1e-3))
    cost = IterationCost(Problem(n_elements=9, phases=[Phase(name="p", alpha_s=1.0)]), resources)
    found = {run("random", cost, seed).clusters for seed in range(40)}
    assert found == {(0,), (1,), (0, 1)}
