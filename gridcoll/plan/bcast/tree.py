"""Broadcast by a tree over all ranks, with a segment size.

Flat, chain, binary, binomial, one level or two, segmented or not: all are this plan with different
trees. The papers' store-and-forward phases are the case of one segment.
"""

from __future__ import annotations

from collections.abc import Sequence

from gridcoll.errors import PlanError
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.statements import Statement, moved, state
from gridcoll.plan.trees import RankTree, cut_segments

state(
    Statement(
        "bcast",
        before=lambda plan, rank: (
            {"output": [(plan.n_units, moved(plan.root))]} if rank == plan.root else {}
        ),
        after=lambda plan, rank: {"output": [(plan.n_units, moved(plan.root))]},
    )
)


def plan_bcast(
    trees: Sequence[RankTree],
    n_units: int,
    segment_units: int,
    label: str = "",
    unit_s: float = 0.0,
    ahead_s: float = 0.0,
) -> Plan:
    """Broadcast ``n_units`` in segments, each forwarded as soon as it has been received.

    Segments go down one tree, or several with the same root: segment ``k`` takes tree
    ``k mod len(trees)``. A tree that occurs several times has that many turns.

    If ``unit_s`` is given, the root sends no faster than a unit each ``unit_s`` seconds. It may be
    ahead of that by ``ahead_s`` seconds.

    Raises `PlanError` if the roots differ.
    """
    root = trees[0].root
    if any(tree.root != root for tree in trees):
        raise PlanError(f"trees: must share one root, got {[tree.root for tree in trees]}")
    segments = cut_segments(n_units, segment_units)
    numbers: dict[RankTree, int] = {}
    streams = [numbers.setdefault(tree, len(numbers)) for tree in trees]

    def program_of(rank: int) -> Program:
        ops: list[Op] = []
        for tag, (start, stop) in enumerate(segments):
            turn = tag % len(trees)
            tree = trees[turn]
            chunk = Chunk("output", start, stop)
            if rank != root:
                ops.append(Recv(tree.parent[rank], chunk, tag, streams[turn]))
            due_s = start * unit_s - ahead_s if rank == root else 0.0
            due_us = max(int(due_s * 1e6), 0)
            ops.extend(Send(child, chunk, tag, due_us=due_us) for child in tree.children[rank])
        return tuple(ops)

    return Plan("bcast", label, n_units, root, Programs(len(trees[0].children), program_of))
