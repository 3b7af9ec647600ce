"""All-to-alls by turns, over links that are thinner than interfaces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.constants import (
    BUSY_INTERFACE,
    INTERFACE_SLACK,
    PACE,
    QUEUE_BYTES,
    SHORTEST_RATE_PACED_BYTES,
)
from gridcoll.model import GridModel
from gridcoll.plan import REGISTRIES, Recv, Send, check_plan, choose
from gridcoll.plan.alltoall.rate_paced import MOST_RATE_PACED_PIECES, plan_rate_paced
from gridcoll.plan.cost import price_plan
from gridcoll.topology import Grid
from tests.plan.grids import thin_grid

BLOCK = 1 << 16

THREE_BY_FOUR = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=14), st.integers(0, 5))
def test_it_is_right_on_any_grid(labels: list[int], n_units: int) -> None:
    if len(set(labels)) > 1:
        check_plan(plan_rate_paced(thin_grid(labels), n_units))


@pytest.mark.parametrize(
    "n_bytes", [BLOCK // 5, BLOCK, 4 * BLOCK + 1, 4 * MOST_RATE_PACED_PIECES * BLOCK // 3]
)
@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 6), (1, 5, 2)])
def test_a_link_has_one_piece_at_a_time(sizes: tuple[int, ...], n_bytes: int) -> None:
    """Whoever of its cluster sends it; and it is never without one for longer."""
    model = thin_grid([c for c, n in enumerate(sizes) for _ in range(n)])
    due: dict[tuple[int, int], list[float]] = {}
    for rank, program in enumerate(plan_rate_paced(model, n_bytes).programs):
        for op in program:
            if isinstance(op, Send):
                ends = model.grid.cluster_of[rank], model.grid.cluster_of[op.peer]
                due.setdefault(ends, []).append(op.due_us * 1e-6)
    for (a, b), times in due.items():
        n_pieces = min(MOST_RATE_PACED_PIECES, -(-n_bytes // (1 << 14)))
        pace = max(PACE, 1 - QUEUE_BYTES / (sizes[a] * sizes[b] * n_bytes))
        piece_s = pace * n_bytes / n_pieces / float(model.link_bytes_per_s[a, b])
        assert len(times) == sizes[a] * (sizes[b] - (a == b)) * n_pieces
        if a != b:
            assert sorted(times) == pytest.approx(
                [k * piece_s for k in range(len(times))], abs=2e-6
            )


def leaves_s(model: GridModel, n_bytes: int, rank: int, *, inside: bool) -> list[float]:
    """When ``rank`` sends pieces inside its cluster, or out of it."""
    home = model.grid.cluster_of[rank]
    return sorted(
        op.due_us * 1e-6
        for op in plan_rate_paced(model, n_bytes).programs[rank]
        if isinstance(op, Send) and (model.grid.cluster_of[op.peer] == home) == inside
    )


@pytest.mark.parametrize("link_bytes_per_s", [1e6, 9e6, 1e9])
def test_neighbours_are_served_evenly_in_between(link_bytes_per_s: float) -> None:
    """As long as links take, or interfaces: nothing fills an interface's queue."""
    model = thin_grid(THREE_BY_FOUR, link_bytes_per_s)
    interface_s = INTERFACE_SLACK * 11 * float(model.gap_s(BLOCK)[0, 0])
    link_s = max((16 * BLOCK - QUEUE_BYTES) / link_bytes_per_s, interface_s)
    for rank in range(12):
        for inside in (True, False):
            due_s = leaves_s(model, BLOCK, rank, inside=inside)
            assert due_s[-1] - due_s[0] == pytest.approx(link_s, rel=0.15)
        own_s = np.diff(leaves_s(model, BLOCK, rank, inside=True))
        assert own_s == pytest.approx(np.full(len(own_s), link_s / (len(own_s) + 1)), rel=0.01)


def test_no_window_lets_a_flow_carry_a_block_faster() -> None:
    """What one flow needs for a block counts where all together need no longer for theirs."""
    narrow = thin_grid(THREE_BY_FOUR, 0.8e6)
    wide = replace(narrow, aggregate_bytes_per_s=((16e6,) * 3,) * 3)
    n_bytes = 40 * BLOCK
    for each, least_s in ((narrow, 16 * n_bytes / 0.8e6), (wide, n_bytes / 0.8e6)):
        predicted_s = choose("alltoall", each, n_bytes, 0, forced="rate-paced").winner.predicted_s
        assert predicted_s is not None
        assert least_s < predicted_s < 1.05 * least_s


def test_the_first_windows_wait_for_nothing() -> None:
    """Where windows limit, and only there: what fills a link waits for it."""
    full = thin_grid(THREE_BY_FOUR, 1e6)
    limited = thin_grid(THREE_BY_FOUR, 1e6 / 4)
    limited = replace(limited, aggregate_bytes_per_s=((1e6,) * 3,) * 3)
    predicted_s = [
        choose("alltoall", each, BLOCK, 0, forced="rate-paced").winner.predicted_s or 0.0
        for each in (full, limited)
    ]
    of_piece_s = (1 << 14) * (4 - 1) / 1e6  # one flow takes longer for the last piece
    trip_s = 2 * float(full.latency_s[0, 1])
    assert predicted_s[0] - (predicted_s[1] - of_piece_s) == pytest.approx(trip_s, rel=0.05)


def test_receives_are_posted_in_the_order_in_which_pieces_come() -> None:
    """Only so many are posted ahead."""
    programs = plan_rate_paced(thin_grid(THREE_BY_FOUR), 3 * BLOCK).programs
    leave = {
        (rank, op.peer, op.tag): op.due_us
        for rank, program in enumerate(programs)
        for op in program
        if isinstance(op, Send)
    }
    for rank, program in enumerate(programs):
        come = [leave[op.peer, rank, op.tag] for op in program if isinstance(op, Recv)]
        assert len(come) == 11 * 12
        assert come == sorted(come)


def test_all_links_carry_at_once_and_receivers_are_others_each_time() -> None:
    programs = plan_rate_paced(thin_grid(THREE_BY_FOUR), 1).programs
    order = [[op.peer for op in program if isinstance(op, Send)] for program in programs]
    for rank, targets in enumerate(order):
        away = [target // 4 for target in targets if target // 4 != rank // 4]
        assert all(a != b for a, b in zip(away[::2], away[1::2], strict=True))
    for targets in zip(*order, strict=True):
        assert len(set(targets)) > 6


def test_every_flow_gets_a_piece_before_any_gets_another() -> None:
    """Windows of a few segments are enough."""
    for rank, program in enumerate(plan_rate_paced(thin_grid(THREE_BY_FOUR), BLOCK).programs):
        away = [op for op in program if isinstance(op, Send) and op.peer // 4 != rank // 4]
        for k in range(4):
            part = away[8 * k : 8 * (k + 1)]
            assert len({op.peer for op in part}) == 8
            assert {op.tag for op in part} == {k}


def names(model: GridModel, n_bytes: int = BLOCK) -> list[str]:
    found = REGISTRIES["alltoall"]["rate-paced"].candidates(model, n_bytes, 0)
    return [candidate.name for candidate in found]


def test_what_is_ahead_of_a_link_is_what_its_queue_holds() -> None:
    """But where windows limit, flows are held back by those: nothing is lost."""
    link = thin_grid(THREE_BY_FOUR, 1e6)
    windows = replace(thin_grid(THREE_BY_FOUR, 0.1e6), aggregate_bytes_per_s=((1e6,) * 3,) * 3)
    n_bytes = 16 * BLOCK
    link_s = 16 * n_bytes / 1e6
    for model, ahead_s in ((link, QUEUE_BYTES / 1e6), (windows, (1 - PACE) * link_s)):
        last_s = max(leaves_s(model, n_bytes, rank, inside=False)[-1] for rank in range(12))
        assert last_s == pytest.approx(link_s - ahead_s, rel=0.005)


def test_it_is_offered_where_links_limit() -> None:
    assert names(thin_grid(THREE_BY_FOUR)) == ["rate-paced"]
    assert names(thin_grid(THREE_BY_FOUR), SHORTEST_RATE_PACED_BYTES) == ["rate-paced"]
    assert not names(thin_grid(THREE_BY_FOUR), SHORTEST_RATE_PACED_BYTES - 1)
    assert not names(thin_grid(THREE_BY_FOUR, 50e6))
    assert not names(thin_grid([0] * 6))
    assert not names(thin_grid([c for c in range(3) for _ in range(50)]))


def test_it_is_offered_a_little_before_where_windows_limit() -> None:
    """Flows and interfaces that are both busy all the time hinder one another."""
    interface_s = INTERFACE_SLACK * 11 * float(thin_grid(THREE_BY_FOUR).gap_s(BLOCK)[0, 0])
    full = 16 * BLOCK / interface_s
    for carried, of_flows, of_link in ((0.9, True, True), (1.1, True, False), (1.6, False, False)):
        together = ((carried * full,) * 3,) * 3
        windows = replace(thin_grid(THREE_BY_FOUR, 0.8e6), aggregate_bytes_per_s=together)
        link = thin_grid(THREE_BY_FOUR, carried * full)
        assert (names(windows) == ["rate-paced"]) == of_flows == (carried * BUSY_INTERFACE < 1)
        assert (names(link) == ["rate-paced"]) == of_link


def test_it_takes_what_the_links_take() -> None:
    model = thin_grid(THREE_BY_FOUR)
    found = choose("alltoall", model, BLOCK, 0, forced="rate-paced").winner
    link_s = 16 * BLOCK / 1e6
    assert found.predicted_s is not None
    assert found.predicted_s == pytest.approx(link_s, rel=0.15)
    simulated = price_plan(plan_rate_paced(model, BLOCK), model).makespan_s
    assert found.predicted_s == pytest.approx(simulated, rel=0.15)


def test_ranks_that_share_hosts_take_turns_as_well() -> None:
    model = replace(thin_grid([0] * 4 + [1] * 4), grid=Grid.from_labels("aaaabbbb", "uuvvwwxx"))
    check_plan(plan_rate_paced(model, 3))
    assert names(model) == ["rate-paced"]
    wide = replace(thin_grid([0] * 4 + [1] * 4, 1e9), grid=model.grid)
    due_s = leaves_s(wide, BLOCK, 0, inside=False)
    of_host_s = INTERFACE_SLACK * 2 * 6 * float(wide.gap_s(BLOCK)[0, 0])
    assert due_s[-1] - due_s[0] == pytest.approx(of_host_s, rel=0.1)
