from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.placement import (
    Exchanges,
    IterationCost,
    Phase,
    Problem,
    Resources,
    correct_betas,
    select,
    select_corrected,
)


def far_apart(resources_of) -> tuple[Problem, Resources]:  # type: ignore[no-untyped-def]
    """With the betas stated the second cluster pays; with what a bad mesh exchanges it does not."""
    resources = resources_of(np.array([[1e-5, 1e-3], [1e-3, 1e-5]]), n_hosts=np.array([20, 10]))
    return Problem(n_elements=1_000_000, phases=[Phase(name="p", alpha_s=1e-5)]), resources


def test_betas_reproduce_the_counts(resources_of) -> None:  # type: ignore[no-untyped-def]
    problem, resources = far_apart(resources_of)
    chosen = select(IterationCost(problem, resources))
    assert chosen.best.clusters == (0, 1)
    counts = Exchanges(host_faces=4000, cluster_faces=9000)
    corrected = correct_betas(problem, chosen, counts)
    assert corrected.update.beta_host * (1e6 / 30) ** (2 / 3) == pytest.approx(4000)
    assert corrected.update.beta_cluster * (1e6 / 2) ** (2 / 3) == pytest.approx(9000)
    assert corrected.update.count == problem.update.count


def test_one_cluster_says_nothing_of_beta_cluster(resources_of) -> None:  # type: ignore[no-untyped-def]
    problem, _ = far_apart(resources_of)
    alone = resources_of(np.array([[1e-5]]))
    chosen = select(IterationCost(problem, alone))
    corrected = correct_betas(problem, chosen, Exchanges(host_faces=1, cluster_faces=0))
    assert corrected.update.beta_cluster == problem.update.beta_cluster


@pytest.mark.parametrize("field", ["host_faces", "cluster_faces"])
def test_negative_counts(resources_of, field: str) -> None:  # type: ignore[no-untyped-def]
    problem, resources = far_apart(resources_of)
    chosen = select(IterationCost(problem, resources))
    counts = Exchanges(**{"host_faces": 1, "cluster_faces": 1, field: -1})
    with pytest.raises(UsageError, match=f"exchanges: {field}: must not be negative, got -1"):
        correct_betas(problem, chosen, counts)


def test_the_choice_is_repeated_until_it_holds(resources_of) -> None:  # type: ignore[no-untyped-def]
    problem, resources = far_apart(resources_of)
    seen = []

    def partition(asked, chosen):  # type: ignore[no-untyped-def]
        seen.append(chosen.best.clusters)
        host_faces = asked.update.beta_host * (1e6 / chosen.best.n_hosts) ** (2 / 3)
        return Exchanges(host_faces, cluster_faces=5e6 if len(chosen.best.clusters) > 1 else 0)

    rounds = select_corrected(problem, resources, partition)
    assert seen == [(0, 1), (0,)]  # both, too much exchanged, then the large one alone
    assert [entry.selection.best.clusters for entry in rounds] == seen
    assert rounds[0].corrected_s > 2 * rounds[0].selection.best.iteration_s
    assert rounds[1].corrected_s == pytest.approx(rounds[1].selection.best.iteration_s)


def test_counts_that_agree_end_it_at_once(resources_of) -> None:  # type: ignore[no-untyped-def]
    problem, resources = far_apart(resources_of)

    def partition(asked, chosen):  # type: ignore[no-untyped-def]
        return Exchanges(5 * (1e6 / 30) ** (2 / 3), (1e6 / 2) ** (2 / 3))

    rounds = select_corrected(problem, resources, partition)
    assert len(rounds) == 1
    assert rounds[0].corrected == problem


def test_a_circle_ends_with_the_fastest(resources_of) -> None:  # type: ignore[no-untyped-def]
    problem, resources = far_apart(resources_of)
    calls = []

    def partition(asked, chosen):  # type: ignore[no-untyped-def]
        calls.append(chosen.best.clusters)
        if len(chosen.best.clusters) > 1:
            return Exchanges(1e3, 5e6)
        return Exchanges(4e7, 0)  # worse still: the choice goes back to both

    rounds = select_corrected(problem, resources, partition)
    assert calls == [(0, 1), (0,)]
    assert len(rounds) == len(calls)
    assert rounds[-1].corrected_s == min(entry.corrected_s for entry in rounds)
