"""Reduce-scatter: an allgather run backwards. A block is combined along the path to its owner.

A plan's ``n_units`` is the size of one block, unless ranks have blocks of different sizes that all
ranks know.
"""

from __future__ import annotations

from collections.abc import Sequence

from gridcoll.plan.allgather.trees import register_lanes_and_ring
from gridcoll.plan.allgather.ways import BlockTrees, Segments, side_by_side
from gridcoll.plan.folding import Incoming, Slots, Term, fold
from gridcoll.plan.ops import Chunk, Op, Send
from gridcoll.plan.plan import Plan, Program, Programs, scratch_of_each
from gridcoll.plan.statements import Contribution, Runs, Statement, moved, state


def _after(plan: Plan, rank: int) -> dict[str, Runs]:
    start = sum(plan.block_units[:rank])
    of_all_ranks = tuple(Contribution(other, start) for other in range(plan.n_ranks))
    return {"output": [(plan.block_units[rank], of_all_ranks)]}


state(
    Statement(
        "reduce_scatter",
        before=lambda plan, rank: {"input": [(sum(plan.block_units), moved(rank))]},
        after=_after,
    )
)


def plan_reduce_scatter(
    trees: BlockTrees, sizes: Sequence[int], segment_units: int, label: str = ""
) -> Plan:
    """Reduce-scatter blocks of ``sizes`` elements, by owner, in segments.

    Every block is combined along its owner's tree of ``trees``, from the leaves to the owner. What
    a rank adds to blocks of its last owners, which are the nearest, is sent after its last sum for
    another rank: a sum has the longer way, and would wait behind it.
    """
    segments = Segments(sizes, segment_units)
    n_ranks = len(sizes)

    def program_of(rank: int) -> Program:
        ops: list[Op] = []
        slots = Slots(0)
        last_sum: Chunk | None = None
        *_, nearest = groups = trees.upward_order(rank)
        for owners in groups:
            after = last_sum if owners is nearest else None
            for owner, tag, start, stop in side_by_side(segments, owners):
                children = trees.children(owner, rank)
                into = own = Chunk("input", start, stop)
                if owner == rank:
                    first = segments.starts[rank]
                    into = Chunk("output", start - first, stop - first)
                elif children:
                    into = slots(own.size)
                if into is not own:
                    stream = trees.stream_of[owner]
                    terms: list[tuple[int, Term]] = [(rank, own)]
                    terms += [(child, Incoming(child, tag, stream)) for child in children]
                    fold(ops, terms, into, slots)
                if owner != rank:
                    waits_for = after if into is own else None
                    ops.append(Send(trees.parent(owner, rank), into, tag, waits_for))
                    last_sum = last_sum if into is own else into
        return tuple(ops)

    programs = Programs(n_ranks, program_of)
    scratch = scratch_of_each(programs)
    even = len(set(sizes)) == 1
    n_units, blocks = (sizes[0], ()) if even else (0, tuple(sizes))
    return Plan("reduce_scatter", label, n_units, -1, programs, scratch, blocks)


register_lanes_and_ring("reduce_scatter", plan_reduce_scatter, "; backwards", upwards=True)
