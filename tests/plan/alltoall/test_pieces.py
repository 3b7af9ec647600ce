"""Direct exchanges in pieces: where long messages wait for their receiver to answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.constants import EAGER_PIECES_BYTES, MOST_EAGER_PIECES
from gridcoll.model import GridModel, PLogP, linear_plogp
from gridcoll.plan import REGISTRIES, Candidate, Recv, Send, check_plan, choose
from gridcoll.plan.alltoall.direct import plan_direct, plan_farthest_first
from gridcoll.plan.cost import price_plan
from gridcoll.topology import Grid
from tests.plan.grids import model_of

LATENCY_S = 10e-3
RATE = 12.5e6


def with_rendezvous() -> GridModel:
    """Two clusters of four; what is longer than 16 KiB crosses after a round trip."""
    lan = linear_plogp(1e-4, RATE)
    sizes = (0, 1 << 14, (1 << 14) + 1, 1 << 20)
    gaps = tuple(1e-5 + size / RATE for size in sizes)
    waits = [2 * LATENCY_S * (size > 1 << 14) for size in sizes]
    alone = tuple(LATENCY_S + gap + wait for gap, wait in zip(gaps, waits, strict=True))
    wan = PLogP(LATENCY_S, sizes, gaps, gaps, gaps, alone)
    grid = Grid.from_labels([0] * 4 + [1] * 4)
    return GridModel(grid, ((lan, wan), (wan, lan)), aggregate_bytes_per_s=((1e9,) * 2,) * 2)


def candidates(model: GridModel, name: str, n_bytes: int) -> list[Candidate]:
    return REGISTRIES["alltoall"][name].candidates(model, n_bytes, 0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 9), st.integers(0, 10))
def test_blocks_in_pieces_arrive(labels: list[int], n_units: int, piece: int) -> None:
    clusters = [c.ranks for c in model_of(labels).grid.clusters]
    others = [[d for d in range(len(clusters)) if d != c] for c in range(len(clusters))]
    for plan in (
        plan_direct(range(len(labels)), n_units, piece_units=piece),
        plan_farthest_first(clusters, others, n_units, piece_units=piece),
    ):
        check_plan(plan)
        if piece:
            moves = [op for ops in plan.programs for op in ops if isinstance(op, Send | Recv)]
            assert all(op.chunk.size <= piece for op in moves)
            n_each = -(-n_units // piece)
            assert len(moves) == 2 * len(labels) * (len(labels) - 1) * n_each


@pytest.mark.parametrize("n_bytes", [40_000, 1 << 16, 1 << 17])
def test_pieces_save_the_rendezvous(n_bytes: int) -> None:
    """Nobody waits for an answer; the simulation of the plans says the same."""
    winner = choose("alltoall", with_rendezvous(), n_bytes, 0).winner
    assert winner.segment_bytes == EAGER_PIECES_BYTES[0]
    for name in ("direct", "farthest-first"):
        whole, *cut = candidates(with_rendezvous(), name, n_bytes)
        assert whole.segment_bytes is None
        assert cut[0].predicted_s is not None
        assert whole.predicted_s is not None
        assert whole.predicted_s - cut[0].predicted_s > LATENCY_S
        for candidate in (whole, cut[0]):
            assert candidate.build is not None
            simulated_s = price_plan(candidate.build(n_bytes), with_rendezvous()).makespan_s
            assert candidate.predicted_s == pytest.approx(simulated_s, rel=0.15)


@pytest.mark.parametrize("n_bytes", [8, 1 << 14, 1 << 16, 1 << 20])
def test_whole_where_pieces_save_nothing(n_bytes: int) -> None:
    model = with_rendezvous()
    lan = model.links[0][0]
    wan = replace(model.links[0][1] or linear_plogp(1, 1), one_way_s=())
    plain = replace(model, links=((lan, wan), (wan, lan)))
    for name in ("direct", "farthest-first"):
        assert [c.segment_bytes for c in candidates(plain, name, n_bytes)] == [None]


def test_no_pieces_of_blocks_that_are_one_and_not_many() -> None:
    few, many = EAGER_PIECES_BYTES[0], MOST_EAGER_PIECES * EAGER_PIECES_BYTES[-1]
    offered = {
        n_bytes: {c.segment_bytes for c in candidates(with_rendezvous(), "direct", n_bytes)}
        for n_bytes in (few, few + 1, many, many + 1)
    }
    assert offered[few] == offered[many + 1] == {None}
    assert few in offered[few + 1]
    assert few not in offered[many]
