"""A direct exchange in rounds that the clock keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.constants import PACE, SHORTEST_PACED_BYTES
from gridcoll.model import GridModel
from gridcoll.plan import REGISTRIES, Candidate, Recv, Send, check_plan
from gridcoll.plan.alltoall.matching import matching_messages, plan_matching, rounds_farthest_first
from gridcoll.plan.alltoall.messages import tally
from gridcoll.plan.pacing import Pace
from gridcoll.topology import Grid
from tests.plan.grids import model_of

HOSTFILES = Path(__file__).parents[3] / "hostfiles"

THREE = ((0.0, 5.2, 12.2), (5.2, 0.0, 5.4), (12.2, 5.4, 0.0))


def offered(model: GridModel, n_bytes: int) -> list[Candidate]:
    return REGISTRIES["alltoall"]["matching"].candidates(model, n_bytes, 0)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=14))
def test_in_a_round_everybody_sends_one_block_and_gets_one(labels: list[int]) -> None:
    rounds = rounds_farthest_first(tuple(labels), THREE)
    everybody = set(range(len(labels)))
    assert all(set(targets) == everybody for targets in rounds)
    for rank in everybody:
        assert sorted(targets[rank] for targets in rounds) == sorted(everybody - {rank})


@pytest.mark.parametrize("sizes", [(4, 4, 4), (3, 6), (2, 5, 3)])
def test_long_ways_come_first_and_neighbours_last(sizes: tuple[int, ...]) -> None:
    of = tuple(c for c, n in enumerate(sizes) for _ in range(n))
    way = [
        [THREE[of[source]][of[target]] for source, target in enumerate(targets)]
        for targets in rounds_farthest_first(of, THREE)
    ]
    assert sum(way[0]) > 0.9 * max(map(sum, way))
    assert sum(way[-1]) == 0
    first = len(way) // 2
    share = sum(map(sum, way[:first])) / sum(map(sum, way))
    assert share > 1.15 * first / len(way)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(0, 40), st.integers(0, 10))
def test_blocks_arrive_one_after_another(labels: list[int], n_units: int, piece: int) -> None:
    rounds = rounds_farthest_first(tuple(labels), THREE)
    plan = plan_matching(rounds, lambda rank: Pace(2.0), n_units, piece_units=piece)
    check_plan(plan)
    for rank, program in enumerate(plan.programs):
        sends = [op for op in program if isinstance(op, Send)]
        sent = [sum(op.chunk.size for op in sends[:k]) for k in range(len(sends))]
        assert [op.due_us for op in sends] == [2_000_000 * units for units in sent]
        assert list(dict.fromkeys(op.peer for op in sends)) == (
            [targets[rank] for targets in rounds] if n_units else []
        )
        assert all(isinstance(op, Recv) for op in program[: len(sends)])


def test_it_is_priced_as_it_is_written() -> None:
    rounds = rounds_farthest_first((0, 0, 1, 1, 1, 2), THREE)
    said, read = matching_messages(rounds), tally(plan_matching(rounds, lambda rank: Pace(0.0), 1))
    for name in ("source", "target", "n_blocks", "stage"):
        assert getattr(said, name).tolist() == getattr(read, name).tolist()


def test_a_block_leaves_when_the_interface_is_nearly_done_with_the_one_before() -> None:
    model = load_model(str(HOSTFILES / "two-sites-uneven.toml"))
    candidate, *_in_pieces = offered(model, 1 << 16)
    assert candidate.build is not None
    plan = candidate.build(1 << 16)
    for rank, program in enumerate(plan.programs):
        home = model.grid.cluster_of[rank]
        gap_us = model.gap_s(1 << 16)[home, home] * 1e6
        dues = [op.due_us for op in program if isinstance(op, Send)]
        assert dues == pytest.approx([PACE * gap_us * k for k in range(len(dues))], abs=1)


def test_ranks_of_one_host_share_its_interface() -> None:
    grid = Grid.from_labels([0, 0, 0, 1], ("a", "a", "b", "c"))
    model = replace(model_of([0, 0, 0, 1]), grid=grid)
    (candidate,) = offered(model, 10_000)
    assert candidate.build is not None
    dues = {
        rank: {op.peer: op.due_us for op in program if isinstance(op, Send)}
        for rank, program in enumerate(candidate.build(10_000).programs)
    }
    gap_us = PACE * model.gap_s(10_000)[0, 0] * 1e6
    assert max(dues[2].values()) == pytest.approx(2 * gap_us, abs=1)
    # What rank 0 has for its neighbour takes no time of the interface, all else twice as much.
    off_host = sorted(due for peer, due in dues[0].items() if peer != 1)
    assert off_host == pytest.approx([0, 2 * gap_us], abs=1)


@pytest.mark.parametrize(
    ("labels", "n_bytes"),
    [
        ([0] * 5, 1 << 16),
        ([0, 0, 1], SHORTEST_PACED_BYTES - 1),
        ([0, 1] * 17, 1 << 16),
        ([0], 1 << 16),
    ],
)
def test_it_is_not_offered_where_order_is_worth_nothing(labels: list[int], n_bytes: int) -> None:
    assert not offered(model_of(labels), n_bytes)
