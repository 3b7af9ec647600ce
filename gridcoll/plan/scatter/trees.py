"""Scatter: every rank gets its block from the root, straight or down a tree.

A plan's ``n_units`` is the size of one block. Where a message carries blocks for a whole subtree,
its first rank takes its own and passes the rest on (paper 003, section 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from gridcoll.plan.blocks import Messages, Standing, copy_runs
from gridcoll.plan.ops import Chunk, Copy, Op
from gridcoll.plan.pacing import Pace, one_by_one
from gridcoll.plan.plan import ByRank, Plan, Program, Programs, scratch_of
from gridcoll.plan.statements import Statement, moved, state
from gridcoll.plan.trees import RankTree

state(
    Statement(
        "scatter",
        before=lambda plan, rank: (
            {"input": [(plan.n_ranks * plan.n_units, moved(rank))]} if rank == plan.root else {}
        ),
        after=lambda plan, rank: {
            "output": [(plan.n_units, moved(plan.root, rank * plan.n_units))]
        },
    )
)


@dataclass(frozen=True)
class Subtrees:
    """A tree and an order of its ranks in which every subtree stands together, its top first."""

    tree: RankTree

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Children by rank: where subtrees are intervals of ranks, so are their blocks."""
        order, left = [], [self.tree.root]
        while left:
            rank = left.pop()
            order.append(rank)
            left += sorted(self.tree.children[rank], reverse=True)
        return tuple(order)

    @cached_property
    def place(self) -> tuple[int, ...]:
        """``place[rank]`` in `order`."""
        place = [0] * len(self.order)
        for at, rank in enumerate(self.order):
            place[rank] = at
        return tuple(place)

    @cached_property
    def size(self) -> tuple[int, ...]:
        """``size[rank]``: ranks in the subtree whose top it is."""
        size = [1] * len(self.order)
        for rank in reversed(self.order):
            if rank != self.tree.root:
                size[self.tree.parent[rank]] += size[rank]
        return tuple(size)

    def of(self, rank: int) -> tuple[int, ...]:
        """The ranks of the subtree of ``rank``."""
        return self.order[self.place[rank] : self.place[rank] + self.size[rank]]


def plan_scatter(
    tree: RankTree,
    n_units: int,
    *,
    pipelined: bool = False,
    pace: Pace | None = None,
    label: str = "",
) -> Plan:
    """Scatter blocks of ``n_units`` down ``tree``.

    Parameters
    ----------
    tree : RankTree
    n_units : int
    pipelined : bool
        Every block is a message of its own and moves on at once, the farthest first. Otherwise a
        child gets all blocks of its subtree in one message.
    pace : Pace, optional
        The root's; without one all that it sends leaves at once.
    label : str
        How the tree came about, for people.
    """
    subtrees = Subtrees(tree)
    write = _pipelined if pipelined else _bulk
    n_ranks = len(tree.children)

    def program_of(rank: int) -> Program:
        ops = tuple(write(subtrees, rank, n_units)) if n_units else ()
        return one_by_one(ops, pace) if pace and rank == tree.root else ops

    programs = Programs(n_ranks, program_of)
    scratch = ByRank(n_ranks, lambda rank: scratch_of(programs[rank]))
    return Plan("scatter", label, n_units, tree.root, programs, scratch)


def _standing(subtrees: Subtrees, rank: int, n_units: int) -> Standing:
    """Where ``rank`` has the blocks that it passes on."""
    sizes = (n_units,) * len(subtrees.order)
    if rank == subtrees.tree.root:
        return Standing("input", range(len(sizes)), sizes)
    return Standing("scratch", subtrees.of(rank), sizes)


def _bulk(subtrees: Subtrees, rank: int, n_units: int) -> list[Op]:
    tree, ours = subtrees.tree, subtrees.of(rank)
    here, own = _standing(subtrees, rank, n_units), Chunk("output", 0, n_units)
    if not tree.children[rank] and rank != tree.root:
        return Messages(tree.parent[rank]).receive(own)
    packed = Standing("scratch", ours, here.sizes)
    ops: list[Op] = []
    if rank != tree.root:
        (whole,) = here.runs(ours)
        ops += Messages(tree.parent[rank]).receive(whole)
    for child in tree.children[rank]:
        theirs = subtrees.of(child)
        runs = here.runs(theirs)
        if len(runs) > 1:
            ops += copy_runs(theirs, here, packed)
            runs = packed.runs(theirs)
        ops += Messages(child).send(runs[0])
    ops.append(Copy(here.block(rank), own))
    return ops


def _pipelined(subtrees: Subtrees, rank: int, n_units: int) -> list[Op]:
    tree = subtrees.tree
    here, own = _standing(subtrees, rank, n_units), Chunk("output", 0, n_units)
    to_child = {child: Messages(child) for child in tree.children[rank]}
    towards = {
        other: to_child[child] for child in tree.children[rank] for other in subtrees.of(child)
    }
    if rank == tree.root:
        sends = [
            op
            for child in tree.children[rank]
            for other in reversed(subtrees.of(child))
            for op in towards[other].send(here.block(other))
        ]
        return [*sends, Copy(here.block(rank), own)]
    ops: list[Op] = []
    come = Messages(tree.parent[rank])
    for other in reversed(subtrees.of(rank)[1:]):
        ops += come.receive(here.block(other))
        ops += towards[other].send(here.block(other))
    return [*ops, *come.receive(own)]


def serve_blocks(
    root: int, order: Sequence[int], starts: Sequence[int], sizes: Sequence[int]
) -> Program:
    """What the root does to scatter blocks whose sizes only it and their receivers know.

    Every block goes straight to its rank: nobody in between would know how much to expect.

    Parameters
    ----------
    root : int
    order : sequence of int
        The other ranks, as the root serves them.
    starts, sizes : sequence of int
        By rank, where its block stands in the root's input, and its units.
    """
    ops: list[Op] = []
    for rank in order:
        block = Chunk("input", starts[rank], starts[rank] + sizes[rank])
        ops += Messages(rank).send(block)
    if sizes[root]:
        own = Chunk("input", starts[root], starts[root] + sizes[root])
        ops.append(Copy(own, Chunk("output", 0, own.size)))
    return tuple(ops)


def take_block(root: int, n_units: int) -> Program:
    """What another rank does then, whose block has ``n_units``."""
    return tuple(Messages(root).receive(Chunk("output", 0, n_units)))
