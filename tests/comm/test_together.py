"""How many flows are tried between clusters: `measure_together` around a given network."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.comm import together
from gridcoll.topology import Grid


@pytest.mark.parametrize(
    ("per_flow", "most", "tried", "carried"),
    [
        (10.0, 100.0, [1, 2, 4], 40.0),  # four flows of each rank are the most
        (10.0, 20.0, [1, 2, 4], 20.0),  # the third step carries no more
        (10.0, 10.5, [1, 2], 10.5),
    ],
)
def test_flows_are_doubled_as_long_as_they_carry_more(
    monkeypatch: pytest.MonkeyPatch,
    per_flow: float,
    most: float,
    tried: list[int],
    carried: float,
) -> None:
    seen: list[int] = []

    def measure(_comm: Any, _grid: Grid, _pairs: Any, _lanes: int, n_flows: int) -> np.ndarray:
        seen.append(n_flows)
        disturbed = len(seen) % 2
        return np.full((2, 2), min(per_flow * n_flows, most) / (1 + disturbed))

    monkeypatch.setattr(together, "_measure_round", measure)
    grid = Grid.from_labels([0] * 5 + [1] * 6)
    one_flow = np.ones((2, 2))
    assert together.measure_together(MPI.COMM_SELF, grid, one_flow)[0][1] == carried
    assert seen == [n_flows for n_flows in tried for _ in range(2)]


def test_a_link_that_one_flow_fills_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was seen counts, even if that is less."""
    seen: list[int] = []

    def measure(_comm: Any, _grid: Grid, _pairs: Any, _lanes: int, n_flows: int) -> np.ndarray:
        seen.append(n_flows)
        return np.full((2, 2), 9.0)

    monkeypatch.setattr(together, "_measure_round", measure)
    grid = Grid.from_labels([0] * 4 + [1] * 4)
    assert together.measure_together(MPI.COMM_SELF, grid, np.full((2, 2), 10.0))[0][1] == 9.0
    assert seen == [1, 1]


def test_no_more_flows_of_a_rank_than_it_has_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def measure(_comm: Any, _grid: Grid, _pairs: Any, _lanes: int, n_flows: int) -> np.ndarray:
        seen.append(n_flows)
        return np.full((2, 2), 10.0 * n_flows)

    monkeypatch.setattr(together, "_measure_round", measure)
    grid = Grid.from_labels([0, 0, 1, 1, 1])
    together.measure_together(MPI.COMM_SELF, grid, np.full((2, 2), 5.0))
    assert seen == [1, 1, 2, 2]


def test_a_lonely_rank_holds_nobody_else_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of one are measured in the same round as those that several flows can serve."""
    seen: list[int] = []

    def measure(_comm: Any, _grid: Grid, _pairs: Any, _lanes: int, n_flows: int) -> np.ndarray:
        seen.append(n_flows)
        return np.full((4, 4), 10.0 * n_flows)

    monkeypatch.setattr(together, "_measure_round", measure)
    monkeypatch.setattr(together, "rounds_of_pairs", lambda _n: [[(0, 1), (2, 3)]])
    grid = Grid.from_labels([0] * 4 + [1] * 4 + [2, 3])
    together.measure_together(MPI.COMM_SELF, grid, np.ones((4, 4)))
    assert seen == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize(
    ("per_lane", "most", "tried"),
    [
        (1.0, 1e9, [(16, 1), (32, 1), (64, 1), (64, 2), (64, 4)]),
        (1.0, 20.0, [(16, 1), (32, 1), (64, 1)]),  # no more than the step before
        (1.0, 16.0, [(16, 1), (32, 1)]),
    ],
)
def test_thousands_of_ranks_do_not_all_send_at_once(
    monkeypatch: pytest.MonkeyPatch, per_lane: float, most: float, tried: list[tuple[int, int]]
) -> None:
    """More of them as long as they carry more."""
    seen: list[tuple[int, int]] = []

    def measure(_comm: Any, _grid: Grid, _pairs: Any, lanes: int, n_flows: int) -> np.ndarray:
        seen.append((lanes, n_flows))
        return np.full((2, 2), min(per_lane * min(lanes, 50) * n_flows, most))

    monkeypatch.setattr(together, "_measure_round", measure)
    grid = Grid.from_labels([0] * 50 + [1] * 60)
    rates = together.measure_together(MPI.COMM_SELF, grid, np.ones((2, 2)))
    assert rates[0][1] == min(200 * per_lane, most)
    assert seen == [step for step in tried for _ in range(2)]


@pytest.mark.parametrize("both_directions", [False, True])
def test_directions_are_alike_unless_both_are_measured(
    monkeypatch: pytest.MonkeyPatch, both_directions: bool
) -> None:
    """Up carries less than down here, and not at the same time."""
    seen: list[list[tuple[int, int]]] = []
    carries = np.array([[1.0, 10.0, 20.0], [3.0, 1.0, 30.0], [4.0, 5.0, 1.0]])

    def measure(
        _comm: Any, _grid: Grid, pairs: list[tuple[int, int]], _lanes: int, _n_flows: int
    ) -> np.ndarray:
        seen.append(list(pairs))
        found = np.ones((3, 3))
        for pair in pairs:
            found[pair] = carries[pair]
        return found

    monkeypatch.setattr(together, "_measure_round", measure)
    grid = Grid.from_labels([0, 0, 1, 1, 2, 2])
    rates = together.measure_together(
        MPI.COMM_SELF, grid, 2 * carries, both_directions=both_directions
    )
    up = np.triu(carries)
    assert rates == tuple(map(tuple, carries if both_directions else np.maximum(up, up.T)))
    assert len(seen) == 2 * 3 * (1 + both_directions)
    assert all(len(pairs) == 1 for pairs in seen)
