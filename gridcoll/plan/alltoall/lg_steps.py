"""LG in the strict steps of paper 001, for comparison.

The paper's second phase begins when the local one is over, and has ⌈n2/n1⌉ steps: a rank of the
smaller cluster exchanges with one rank of the larger at a time. `lg` has the same messages, but
waits for their blocks only.
"""

from __future__ import annotations

from dataclasses import replace

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.alltoall.exchange import exchange_plan, has_both
from gridcoll.plan.alltoall.lg import exchanges, plan_lg
from gridcoll.plan.cost import price_plan
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.grid import Grid


def plan_lg_steps(grid: Grid, n_units: int, label: str = "lg-steps") -> Plan:
    """`plan_lg` whose ranks finish the local phase, then exchange across one step at a time."""
    plain = plan_lg(grid, n_units)
    scratch = plain.scratch_units or (0,) * grid.n_ranks

    def program_of(rank: int) -> Program:
        home = frozenset(grid.clusters[grid.cluster_of[rank]].ranks)
        return _in_steps(plain.programs[rank], home, Chunk("scratch", *_unit(scratch[rank])))

    # One block more is room for the unit that says that the local phase is over.
    blocks = [count // n_units + 1 for count in scratch] if n_units else []
    return exchange_plan(label, n_units, Programs(grid.n_ranks, program_of), blocks)


def _unit(at: int) -> tuple[int, int]:
    return at, at + 1


def _in_steps(program: Program, home: frozenset[int], token: Chunk) -> Program:
    """Sends across wait for what the step before received; the first one for ``token``.

    ``token`` is written after every local receive: a copy waits for the one before it.
    """
    local, out = list[Op](), list[Send]()
    come: list[list[Op]] = []
    for op in program:
        if isinstance(op, Send) and op.peer not in home:
            out.append(op)
        elif isinstance(op, Recv) and op.peer not in home:
            come.append([op])
        elif isinstance(op, Copy) and op.source.buffer == "scratch":
            come[-1].append(op)
        else:
            local.append(op)
    received = [op.chunk for op in local if isinstance(op, Recv)]
    ops = local + [
        Copy(Chunk(chunk.buffer, *_unit(chunk.start)), token) for chunk in received if chunk.size
    ]
    before = token if received else None
    for send, arrives in zip(out, come, strict=True):
        ops += [replace(send, after=before), *arrives]
        before = arrives[0].chunk if isinstance(arrives[0], Recv) else None
    return tuple(ops)


def n_steps(grid: Grid) -> int:
    """⌈n2/n1⌉ of every two clusters, in the rounds in which pairs meet."""
    return max(
        sum(
            -(-len(each.large) // len(each.small)) for each in exchanges(grid) if rank in each.ranks
        )
        for rank in range(grid.n_ranks)
    )


MOST_RANKS = 256
"""Its price is a walk through the whole plan."""


@algorithm(
    "alltoall",
    "lg-steps",
    "for comparison: LG that waits for each step, as published",
    "001 section 4.1, Algorithm 1",
    most_clusters=0,
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if not has_both(grid) or grid.n_ranks > MOST_RANKS:
        return []
    label = f"the local phase, then steps across one after another, {n_steps(grid)} at most"

    def build(n_units: int) -> Plan:
        return plan_lg_steps(grid, n_units, f"lg-steps: {label}")

    predicted_s = price_plan(build(n_bytes), model).makespan_s
    return [Candidate("lg-steps", label, predicted_s, build)]
