from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

from gridcoll.plan import Chunk, Plan, check_plan, choose
from gridcoll.plan.allreduce.lanes import cut_columns
from gridcoll.plan.allreduce.pieces import Piece
from gridcoll.plan.allreduce.rank_order import MOST_SCRATCH_BYTES, plan_in_rank_order
from gridcoll.plan.bracket import Block, children_in, parent_in, whole_blocks
from gridcoll.plan.folding import ALIGNED_UNITS
from gridcoll.plan.ops import Reduce
from gridcoll.topology import Grid
from tests.plan.grids import model_of
from tests.reference import run_reference

labels_of_some = st.lists(st.integers(0, 3), min_size=1, max_size=13)


class Terms(Struct):
    """Memory whose units are terms: what was combined, and how."""

    buffers: dict[str, Any]

    def view(self, chunk: Chunk) -> Any:
        return self.buffers[chunk.buffer][chunk.start : chunk.stop]

    def copy(self, source: Chunk, into: Chunk) -> None:
        self.view(into)[:] = self.view(source)

    def reduce(self, source: Chunk, into: Chunk, source_first: bool) -> None:
        assert source_first
        result = self.view(into)
        for k, left in enumerate(self.view(source)):
            result[k] = f"({left} {result[k]})"


def as_mpi4py(terms: list[str]) -> str:
    """Pairs, pairs of pairs, and so on, from the left: a binomial tree's order."""
    while len(terms) > 1:
        pairs = [terms[k : k + 2] for k in range(0, len(terms), 2)]
        terms = [f"({' '.join(pair)})" if len(pair) > 1 else pair[0] for pair in pairs]
    return terms[0]


def outcome(plan: Plan) -> list[Any]:
    """What every rank's output holds in the end."""
    memories = []
    for rank in range(plan.n_ranks):
        sizes = {"input": plan.n_units, "output": plan.n_units, "scratch": plan.scratch_of(rank)}
        buffers = {name: np.full(size, "", object) for name, size in sizes.items()}
        buffers["input"][:] = str(rank)
        memories.append(Terms(buffers))
    run_reference(plan, memories)
    return [set(memory.buffers["output"]) for memory in memories]


@settings(max_examples=20)
@given(labels_of_some | labels_of_some.map(sorted), st.data())
def test_every_fixed_plan_combines_as_mpi4py_does(labels: list[int], data: st.DataObject) -> None:
    """Whatever the clusters, the pieces, the segments and the root."""
    model, n = model_of(labels, together=1e9), len(labels)
    wanted = {as_mpi4py([str(rank) for rank in range(n)])}
    root = data.draw(st.integers(0, n - 1))
    for collective in ("allreduce", "reduce"):
        for n_bytes in (8, 20_000):
            found = choose(collective, model, n_bytes, root, reproducible=True, rank_order=True)
            plans = [c.build(24) for c in found.candidates if c.build]
            assert len(plans) >= 1 + (n_bytes > 8) or n == 1
            for plan in plans:
                check_plan(plan, rank_order=True)
                results = outcome(plan)
                gets = range(n) if collective == "allreduce" else [root]
                assert all(results[rank] == wanted for rank in gets)


@given(labels_of_some, st.data())
@pytest.mark.long
def test_any_pieces_are_right(labels: list[int], data: st.DataObject) -> None:
    grid = Grid.from_labels(labels)
    n, clusters = data.draw(st.integers(0, 40)), len(grid.clusters)
    root = data.draw(st.integers(-1, grid.n_ranks - 1))
    home = data.draw(st.integers(-1 if root < 0 else 0, clusters - 1))
    pieces = data.draw(
        st.sampled_from([cut_columns(grid, n, True), [Piece(0, n, (0,) * clusters, home)]])
    )
    most = data.draw(st.sampled_from([None, 0, 64 * 40]))
    plan = plan_in_rank_order(grid, n, pieces, data.draw(st.integers(1, 9)), root, "", most)
    check_plan(plan, rank_order=True)
    if most is not None and len(pieces) == 1:  # for two segments there is always room
        assert max(plan.scratch_units) <= max(most, 2 * ALIGNED_UNITS * grid.n_ranks)
    wanted = as_mpi4py([str(rank) for rank in range(grid.n_ranks)])
    for rank, result in enumerate(outcome(plan)):
        assert result == ({wanted} if n else set()) or root not in (-1, rank)
    starts = [op.into.start for program in plan.programs for op in program if type(op) is Reduce]
    assert not any(start % ALIGNED_UNITS for start in starts)


@pytest.mark.parametrize("collective", ["allreduce", "reduce"])
def test_scratch_is_no_multiple_of_a_long_message(collective: str) -> None:
    """Not a hundred times where one rank combines all that a cluster of a hundred has."""
    model = model_of([c for c in range(3) for _ in range(100)], together=1e9)
    n_bytes = 64 << 20
    for candidate in choose(collective, model, n_bytes, 0, reproducible=True).candidates:
        if candidate.build is not None and candidate.name == "rank-order":
            plan = candidate.build(n_bytes // 8)
            for rank in (0, 1, 150, 299):
                assert plan.scratch_of(rank) * 8 <= max(1.01 * MOST_SCRATCH_BYTES, 1.2 * n_bytes)


@given(labels_of_some)
def test_whole_parts_of_the_bracket(labels: list[int]) -> None:
    """They cover all ranks, each is one cluster's, and none could be larger."""
    blocks = whole_blocks(tuple(labels))
    assert [rank for block in blocks for rank in range(*block)] == list(range(len(labels)))
    assert all(len(set(labels[block.start : block.stop])) == 1 for block in blocks)

    def halves(block: Block) -> list[Block]:
        own = [block]
        return (
            own + [b for h in block.halves for b in halves(h)] if block[1] - block[0] > 1 else own
        )

    for block in halves(Block(0, len(labels))):
        one_cluster = len(set(labels[block.start : block.stop])) == 1
        inside = any(b.start <= block.start and block.stop <= b.stop for b in blocks)
        assert one_cluster == inside


@given(st.integers(0, 3), st.integers(1, 16))
def test_inside_a_part_everybody_has_a_parent(aligned: int, size: int) -> None:
    block = Block(aligned * 16, aligned * 16 + size)
    for rank in range(*block):
        parent = parent_in(block, rank)
        assert (parent < 0) == (rank == block.start)
        assert parent < 0 or rank in children_in(block, parent)
        assert all(parent_in(block, child) == rank for child in children_in(block, rank))


def test_reproducible_calls_take_no_other_plan() -> None:
    """Whatever is asked for otherwise; native neither."""
    model = model_of([0, 1, 0, 1, 1], native_s=1e-9)
    for forced in ("", "native", "ring", "rank-order"):
        winner = choose("allreduce", model, 100_000, 0, reproducible=True, forced=forced).winner
        assert winner.name == "rank-order"
    assert choose("reduce", model, 8, 3, reproducible=True).winner.name == "rank-order"
    assert choose("allreduce", model, 8, 0, forced="native").winner.build is None


@pytest.mark.parametrize("collective", ["allreduce", "reduce"])
@pytest.mark.parametrize("n_bytes", [8, 1 << 20])
def test_they_compete_where_order_counts_and_nowhere_else(collective: str, n_bytes: int) -> None:
    model = model_of([0, 0, 0, 1, 1, 1])
    plain = choose(collective, model, n_bytes, 0)
    assert not any(candidate.name == "rank-order" for candidate in plain.candidates)
    assert plain.own_operations
    for asked in ({"rank_order": True}, {"prefer_order": True}, {"reproducible": True}):
        choice = choose(collective, model, n_bytes, 0, **asked)
        assert any(candidate.name == "rank-order" for candidate in choice.candidates), asked
    forced = choose(collective, model, n_bytes, 0, forced="rank-order").winner
    assert forced.name == "rank-order"
