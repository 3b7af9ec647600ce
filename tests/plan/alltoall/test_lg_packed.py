"""LG with one message from neighbour to neighbour: how many there are, and what they need."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.plan import REGISTRIES, Copy, Send, check_plan
from gridcoll.plan.alltoall.lg import plan_lg
from gridcoll.plan.alltoall.lg_candidates import (
    MOST_PACKED_BYTES,
    MOST_PACKED_RANKS,
)
from gridcoll.plan.alltoall.lg_messages import lg_packed_messages
from gridcoll.plan.alltoall.lg_packed import full_ranks, packed_blocks, plan_lg_packed
from gridcoll.plan.alltoall.messages import tally
from gridcoll.topology import Grid
from tests.plan.alltoall.test_lg import all_for_rank_0, route
from tests.plan.alltoall.test_price import canonical
from tests.plan.alltoall.test_traffic import two
from tests.plan.grids import model_of

packed = REGISTRIES["alltoall"]["lg-packed"].candidates


@pytest.mark.parametrize(("n", "n_clusters"), [(2, 2), (6, 2), (4, 3), (3, 7), (20, 2)])
def test_a_message_to_every_neighbour_and_one_to_every_other_cluster(
    n: int, n_clusters: int
) -> None:
    for program in plan_lg_packed(
        Grid.from_labels([c for c in range(n_clusters) for _ in range(n)]), 1
    ).programs:
        assert sum(isinstance(op, Send) for op in program) == n - 1 + n_clusters - 1


def test_the_example_takes_the_papers_route() -> None:
    plan = plan_lg_packed(two(3, 7), 1)
    assert route(plan, 7, 2) == [7, 8, 2]
    assert route(plan, 6, 2) == [6, 8, 2]
    assert route(plan, 8, 2) == [8, 2]
    assert route(plan, 7, 6) == [7, 6]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=24))
def test_it_is_right_on_any_grid(labels: list[int]) -> None:
    """Those that need too much scratch included."""
    grid = Grid.from_labels(labels)
    plan = plan_lg_packed(grid, 3)
    check_plan(plan)
    assert max(plan.scratch_units, default=0) == 3 * packed_blocks(grid)


@pytest.mark.parametrize(("n1", "n2"), [(6, 6), (6, 7), (9, 10), (12, 13)])
def test_who_collects_twice_as_much_has_no_room_for_more(n1: int, n2: int) -> None:
    """The one of the smaller cluster for whom a rank of the larger is left gets its own apart."""
    grid = two(n1, n2)
    assert full_ranks(grid) == (frozenset((0,)) if n2 > n1 else frozenset())
    assert packed_blocks(grid) <= 2 * grid.n_ranks
    plan = plan_lg_packed(grid, 1)
    check_plan(plan)
    n_sent = [sum(isinstance(op, Send) for op in program) for program in plan.programs]
    lg = [sum(isinstance(op, Send) for op in program) for program in plan_lg(grid, 1).programs]
    assert sum(n_sent) < 0.7 * sum(lg)
    assert canonical(lg_packed_messages(grid)) == canonical(tally(plan))
    assert n_sent[1] == n1 - 1 + 1 + (n2 > n1)


def test_who_has_just_room_enough_gets_all_in_one() -> None:
    assert packed_blocks(two(5, 6)) == 2 * 11
    assert not full_ranks(two(5, 6))


def test_what_arrives_takes_turns_where_room_is_short() -> None:
    grid = all_for_rank_0()
    plan = plan_lg_packed(grid, 1)
    assert max(plan.scratch_units) == plan.scratch_of(0) == 2 * grid.n_ranks
    check_plan(plan)


def test_who_is_alone_copies_nothing_but_its_own() -> None:
    plan = plan_lg_packed(two(1, 4), 1)
    assert [type(op) for op in plan.programs[0]].count(Copy) == 1
    assert plan.scratch_of(0) == 0


def test_it_is_not_offered_where_it_needs_too_much() -> None:
    """One of three collects for three of seven, for two of six and for two of five."""
    fits = model_of([0] * 4 + [1] * 4)
    uneven = model_of([0] * 3 + [1] * 7 + [2] * 6 + [3] * 5)
    assert packed_blocks(fits.grid) <= 16
    assert packed(fits, MOST_PACKED_BYTES, 0)
    assert not packed(fits, MOST_PACKED_BYTES + 1, 0)
    assert packed_blocks(uneven.grid) > 2 * uneven.grid.n_ranks
    assert not packed(uneven, 8, 0)
    assert not packed(model_of([0, 1] * (MOST_PACKED_RANKS // 2 + 1)), 8, 0)
    assert not packed(model_of([0] * 4), 8, 0)
    assert not packed(model_of([0, 1, 2]), 8, 0)


def test_every_block_is_copied_at_its_source_and_once_on_the_way() -> None:
    plan = plan_lg_packed(two(4, 4), 5)
    for program in plan.programs:
        copies = [op for op in program if isinstance(op, Copy)]
        packs = [op for op in copies if op.source.buffer == "input"]
        assert sum(op.source.size for op in packs) == 5 * (3 * 2 + 1 + 1)
        assert sum(op.source.size for op in copies) == 5 * (3 * 2 + 1 + 1 + 3 * 2)
