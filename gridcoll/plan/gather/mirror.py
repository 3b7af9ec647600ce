"""Gather: a scatter run backwards. Sends become receives and receives become sends."""

from __future__ import annotations

from gridcoll.errors import PlanError
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import alias
from gridcoll.plan.scatter.trees import STRATEGIES, UNEVEN, register_strategy
from gridcoll.plan.statements import Statement, moved, state

state(
    Statement(
        "gather",
        before=lambda plan, rank: {"input": [(plan.n_units, moved(rank))]},
        after=lambda plan, rank: (
            {"output": [(plan.n_units, moved(other)) for other in range(plan.n_ranks)]}
            if rank == plan.root
            else {}
        ),
    )
)

_SWAPPED = {"input": "output", "output": "input", "scratch": "scratch"}
"""Buffers of a scatter, and those that take their part in a gather."""


def plan_gather(scatter: Plan, label: str = "") -> Plan:
    """Gather along the tree of ``scatter``. Raises `PlanError` for a plan of another collective."""
    if scatter.collective != "scatter":
        raise PlanError(f"plan to run backwards: must be a scatter, got {scatter.collective}")
    return Plan(
        "gather",
        label,
        scatter.n_units,
        scatter.root,
        Programs(scatter.n_ranks, lambda rank: backwards(scatter.programs[rank])),
        scatter.scratch_units,
    )


def backwards(program: Program) -> Program:
    """Return the program that undoes ``program``, which only moves data.

    Each unit must move in one direction only. Raises `PlanError` for a program that reduces.
    """
    return tuple(_backwards(op) for op in reversed(program))


def _backwards(op: Op) -> Op:
    match op:
        case Send(peer=peer, chunk=chunk, tag=tag):
            return Recv(peer, _swapped(chunk), tag)
        case Recv(peer=peer, chunk=chunk, tag=tag):
            return Send(peer, _swapped(chunk), tag)
        case Copy(source=source, into=into):
            return Copy(_swapped(into), _swapped(source))
    raise PlanError(f"{op}: cannot be undone")


def _swapped(chunk: Chunk) -> Chunk:
    return Chunk(_SWAPPED[chunk.buffer], chunk.start, chunk.stop)


for _strategy in STRATEGIES:
    register_strategy("gather", plan_gather, _strategy, f"{_strategy.source}; backwards")
register_strategy("gatherv", plan_gather, UNEVEN, f"{UNEVEN.source}; backwards")
alias("gather", "coordinators", "leaders")
