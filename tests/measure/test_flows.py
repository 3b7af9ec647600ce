"""How many flows `measure_aggregate_bandwidth` tries, around a given network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.measure import flows as together
from gridcoll.topology import Grid


def around(monkeypatch: pytest.MonkeyPatch, measure: Callable[..., np.ndarray]) -> None:
    """`measure_aggregate_bandwidth` sees what ``measure`` says, at first and later on."""
    monkeypatch.setattr(together, "_measure_round", measure)
    monkeypatch.setattr(together, "_measure_steady", measure)


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

    around(monkeypatch, measure)
    grid = Grid.from_labels([0] * 5 + [1] * 6)
    one_flow = np.ones((2, 2))
    assert together.measure_aggregate_bandwidth(MPI.COMM_SELF, grid, one_flow)[0][1] == carried
    assert seen == [n_flows for n_flows in (*tried, tried[-1]) for _ in range(2)]


def test_a_link_that_one_flow_fills_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what was seen counts, even if that is less."""
    seen: list[int] = []

    def measure(_comm: Any, _grid: Grid, _pairs: Any, _lanes: int, n_flows: int) -> np.ndarray:
        seen.append(n_flows)
        return np.full((2, 2), 9.0)

    around(monkeypatch, measure)
    grid = Grid.from_labels([0] * 4 + [1] * 4)
    assert (
        together.measure_aggregate_bandwidth(MPI.COMM_SELF, grid, np.full((2, 2), 10.0))[0][1]
        == 9.0
    )
    assert seen == [1, 1]


def test_no_more_flows_of_a_rank_than_it_has_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def measure(_comm: Any, _grid: Grid, _pairs: Any, _lanes: int, n_flows: int) -> np.ndarray:
        seen.append(n_flows)
        return np.full((2, 2), 10.0 * n_flows)

    around(monkeypatch, measure)
    grid = Grid.from_labels([0, 0, 1, 1, 1])
    together.measure_aggregate_bandwidth(MPI.COMM_SELF, grid, np.full((2, 2), 5.0))
    assert seen == [1, 1, 2, 2, 2, 2]


def test_a_lonely_rank_holds_nobody_else_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters of one are measured in the same round as those that several flows can serve."""
    seen: list[int] = []

    def measure(_comm: Any, _grid: Grid, _pairs: Any, _lanes: int, n_flows: int) -> np.ndarray:
        seen.append(n_flows)
        return np.full((4, 4), 10.0 * n_flows)

    around(monkeypatch, measure)
    monkeypatch.setattr(together, "rounds_of_pairs", lambda _n: [[(0, 1), (2, 3)]])
    grid = Grid.from_labels([0] * 4 + [1] * 4 + [2, 3])
    together.measure_aggregate_bandwidth(MPI.COMM_SELF, grid, np.ones((4, 4)))
    assert seen == [1, 1, 2, 2, 4, 4, 4, 4]


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

    around(monkeypatch, measure)
    grid = Grid.from_labels([0] * 50 + [1] * 60)
    rates = together.measure_aggregate_bandwidth(MPI.COMM_SELF, grid, np.ones((2, 2)))
    assert rates[0][1] == min(200 * per_lane, most)
    assert seen == [step for step in (*tried, tried[-1]) for _ in range(2)]


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

    around(monkeypatch, measure)
    grid = Grid.from_labels([0, 0, 1, 1, 2, 2])
    rates = together.measure_aggregate_bandwidth(
        MPI.COMM_SELF, grid, 2 * carries, both_directions=both_directions
    )
    up = np.triu(carries)
    assert rates == tuple(map(tuple, carries if both_directions else np.maximum(up, up.T)))
    assert len(seen) == 2 * 3 * (1 + both_directions)
    assert all(len(pairs) == 1 for pairs in seen)


def test_what_flows_carry_later_on_counts_where_windows_limit_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first windows wait for no acknowledgement; a link that one flow fills has no such."""
    seen: list[list[tuple[int, int]]] = []

    def at_first(_comm: Any, _grid: Grid, _pairs: Any, _lanes: int, n_flows: int) -> np.ndarray:
        return np.array([[1.0, 10.0 * n_flows, 5.0], [1.0, 1.0, 5.0], [1.0, 1.0, 1.0]])

    def later(_comm: Any, _grid: Grid, pairs: Any, _lanes: int, n_flows: int) -> np.ndarray:
        seen.append(list(pairs))
        return np.full((3, 3), 7.0 * n_flows - len(seen) % 2)

    monkeypatch.setattr(together, "_measure_round", at_first)
    monkeypatch.setattr(together, "_measure_steady", later)
    grid = Grid.from_labels([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2])
    rates = together.measure_aggregate_bandwidth(MPI.COMM_SELF, grid, np.full((3, 3), 5.0))
    assert seen == [[(0, 1)], [(0, 1)]]
    assert rates[0][1] == rates[1][0] == 28.0  # of four flows; the slower run was disturbed
    assert rates[0][2] == rates[1][2] == 5.0


@pytest.mark.parametrize(("few_s", "many_s", "counts_s"), [(1.0, 5.0, 4.0), (4.0, 4.5, 3.0)])
def test_it_is_what_more_messages_take_longer(
    monkeypatch: pytest.MonkeyPatch, few_s: float, many_s: float, counts_s: float
) -> None:
    """And flows whose windows still opened in the first run are not faster than on average."""

    def slowest(*call: Any) -> list[np.ndarray]:
        assert call[-1] == [together.N_MESSAGES, together.LONG_RUN_FACTOR * together.N_MESSAGES]
        return [np.full((2, 2), few_s), np.full((2, 2), many_s)]

    monkeypatch.setattr(together, "_slowest_s", slowest)
    grid = Grid.from_labels([0, 0, 1, 1])
    rates = together._measure_steady(MPI.COMM_SELF, grid, [(0, 1)], 16, 2)
    more_bytes = (together.LONG_RUN_FACTOR - 1) * together.N_MESSAGES * together.MESSAGE_BYTES
    assert rates[0, 1] == 4 * more_bytes / counts_s


class Pair:
    """Flows between two clusters: what all carry, and what a window lets each carry in a trip."""

    def __init__(self, bytes_per_s: float, lanes: int, window_bytes: float, grows: bool) -> None:
        self.bytes_per_s, self.lanes, self.grows = bytes_per_s, lanes, grows
        self.window_bytes, self.sent_bytes = window_bytes, 0

    def stream_s(self, n_messages: int) -> float:
        """A run of each flow, with the way of the answer."""
        each = n_messages * together.MESSAGE_BYTES
        self.sent_bytes += each * self.lanes
        took_s, left = TRIP_S, float(each)
        while left > 0:
            now = min(left, self.window_bytes)
            left -= now
            wire_s = now * self.lanes / self.bytes_per_s
            took_s += max(wire_s, TRIP_S) if left > 0 else wire_s
            if self.grows:
                self.window_bytes += now
        return took_s


TRIP_S, NIC = 40e-3, 3.1e6


@pytest.mark.parametrize(
    ("carries", "window_bytes", "grows", "most_bytes"),
    [
        (1.0, 1 << 15, True, 1.2e6),  # thin: one flow fills it
        (4.0, 1 << 15, True, together.QUICK_BUDGET_BYTES),  # windows open as they are used
        (3.9, 1 << 17, False, together.QUICK_BUDGET_BYTES),  # each flow is held up by its window
    ],
)
def test_a_quick_look_lasts_until_it_tells(
    carries: float, window_bytes: float, grows: bool, most_bytes: float
) -> None:
    pair, look = Pair(carries * NIC, 4, window_bytes, grows), together.GrowingRuns(4, NIC, TRIP_S)
    while look.needs_another_run(pair.stream_s(look.n_messages) - TRIP_S):
        look.n_messages *= 2
    assert look.bytes_per_s == pytest.approx(carries * NIC, rel=0.15)
    assert pair.sent_bytes <= most_bytes


@pytest.mark.parametrize("bytes_per_s", [1e6, 12.5e6, 40e6])
def test_a_quick_look_has_no_run_that_could_not_tell_but_the_first(bytes_per_s: float) -> None:
    """One flow fills the link, so the second run tells."""
    pair, look = Pair(bytes_per_s, 4, 1 << 20, False), together.GrowingRuns(4, bytes_per_s, TRIP_S)
    n_runs = 1
    while look.needs_another_run(pair.stream_s(look.n_messages) - TRIP_S):
        look.n_messages *= 2
        n_runs += 1
    assert n_runs <= 3  # whole messages: half a run may be a little less
