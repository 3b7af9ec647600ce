from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.placement import FORMS, IterationCost, Phase, Problem, predict
from gridcoll.placement.allreduce import PricedAllreduce
from gridcoll.placement.problem import Allreduce


def test_two_level_adds_the_local_rounds_of_footnote_2(resources_of) -> None:  # type: ignore[no-untyped-def]
    """1024 hosts at 44 us: 0.88 ms inside the cluster."""
    resources = resources_of(np.array([[44e-6]]), n_hosts=np.array([1024]))
    assert FORMS["two-level"].local_s(resources) == pytest.approx([0.88e-3])
    assert FORMS["latency"].local_s(resources).tolist() == [0.0]


def test_forms_are_told_apart_in_the_total(resources_of) -> None:  # type: ignore[no-untyped-def]
    resources = resources_of(np.array([[1e-3, 1e-2], [1e-2, 1e-3]]), n_hosts=np.array([8, 1]))
    times = {}
    for form in FORMS:
        problem = Problem(
            n_elements=1000,
            phases=[Phase(name="p", alpha_s=1e-6)],
            allreduce=Allreduce(count=3, form=form),
        )
        times[form] = predict(IterationCost(problem, resources), (0, 1)).iteration_s
    assert times["two-level"] - times["latency"] == pytest.approx(3 * 2 * 3 * 1e-3)


def test_an_outside_price_is_in_the_total_and_asked_once(resources_of) -> None:  # type: ignore[no-untyped-def]
    asked = []

    def price_s(clusters: tuple[int, ...]) -> float:
        asked.append(clusters)
        return 0.25

    resources = resources_of(np.array([[1e-3, 1e-2], [1e-2, 1e-3]]))
    problem = Problem(n_elements=1000, phases=[Phase(name="p", alpha_s=1e-6)])
    plain = IterationCost(problem, resources)
    priced = IterationCost(problem, resources, price_s)
    assert priced.time_s((0, 1)) == pytest.approx(plain.time_s((0, 1)) + 4 * (0.25 - 1e-2))
    assert predict(priced, (0, 1)).allreduce_s == 0.25
    assert asked == [(0, 1)]


def test_a_price_below_the_latency_is_refused(resources_of) -> None:  # type: ignore[no-untyped-def]
    resources = resources_of(np.array([[1e-3, 1e-2], [1e-2, 1e-3]]))
    problem = Problem(n_elements=1000, phases=[Phase(name="p", alpha_s=1e-6)])
    cost = IterationCost(problem, resources, lambda clusters: 1e-3)
    assert cost.time_s((0,)) > 0
    with pytest.raises(
        UsageError, match=r"allreduce over c0, c1: priced at 0\.001 s, below the 0\.01"
    ):
        cost.time_s((0, 1))


def test_detours_lower_the_floor(resources_of) -> None:  # type: ignore[no-untyped-def]
    """Where a detour is shorter than the direct way, a plan may take it."""
    latency_s = np.array([[0, 1, 1], [1, 0, 8], [1, 8, 0]], dtype=float)
    priced = PricedAllreduce(lambda clusters: 2.0, resources_of(latency_s))
    assert priced.floor_ratio == pytest.approx(2 / 8)
    assert priced.price_s((1, 2), 8.0) == 2.0
    metric = PricedAllreduce(lambda clusters: 2.0, resources_of(np.minimum(latency_s, 2.0)))
    assert metric.floor_ratio == 1.0
