"""LG in the strict steps of paper 001, for comparison.

The paper's second phase begins when the local phase is over, and has ⌈n2/n1⌉ steps. In each, a
rank of the smaller cluster exchanges with one rank of the larger. `lg` sends the same messages, but
each waits only for its blocks.
"""

from __future__ import annotations

from msgspec.structs import replace

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.alltoall.exchange import exchange_plan, has_both
from gridcoll.plan.alltoall.lg import exchanges, plan_lg
from gridcoll.plan.cost import price_plan
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.grid import Grid


def plan_lg_steps(grid: Grid, n_units: int, label: str = "lg-steps") -> Plan:
    """Return `plan_lg`, but ranks finish the local phase, then exchange across step by step."""
    lg_plan = plan_lg(grid, n_units)
    scratch = lg_plan.scratch_units or (0,) * grid.n_ranks

    def program_of(rank: int) -> Program:
        own_cluster = frozenset(grid.clusters[grid.cluster_of[rank]].ranks)
        return _in_steps(
            lg_plan.programs[rank], own_cluster, Chunk("scratch", *_unit(scratch[rank]))
        )

    # One more block holds the unit that is written when the local phase is over.
    blocks = [count // n_units + 1 for count in scratch] if n_units else []
    return exchange_plan(label, n_units, Programs(grid.n_ranks, program_of), blocks)


def _unit(at: int) -> tuple[int, int]:
    return at, at + 1


def _in_steps(program: Program, own_cluster: frozenset[int], token: Chunk) -> Program:
    """Return ``program`` with sends across that wait for the receive of the step before.

    The first one waits for ``token``. This is written after every local receive, and each of these
    copies waits for the one before it.
    """
    local, sends_across = list[Op](), list[Send]()
    receives_across: list[list[Op]] = []
    for op in program:
        if isinstance(op, Send) and op.peer not in own_cluster:
            sends_across.append(op)
        elif isinstance(op, Recv) and op.peer not in own_cluster:
            receives_across.append([op])
        elif isinstance(op, Copy) and op.source.buffer == "scratch":
            receives_across[-1].append(op)
        else:
            local.append(op)
    received = [op.chunk for op in local if isinstance(op, Recv)]
    ops = local + [
        Copy(Chunk(chunk.buffer, *_unit(chunk.start)), token) for chunk in received if chunk.size
    ]
    before = token if received else None
    for send, recv_ops in zip(sends_across, receives_across, strict=True):
        ops += [replace(send, after=before), *recv_ops]
        before = recv_ops[0].chunk if isinstance(recv_ops[0], Recv) else None
    return tuple(ops)


def n_steps(grid: Grid) -> int:
    """Return the most steps of any rank: the sum of ⌈n2/n1⌉ over all clusters that it meets."""
    return max(
        sum(
            -(-len(each.large) // len(each.small)) for each in exchanges(grid) if rank in each.ranks
        )
        for rank in range(grid.n_ranks)
    )


MOST_RANKS = 256
"""Limit of ranks, since it is priced by simulating the whole plan."""


@algorithm(
    "alltoall",
    "lg-steps",
    "for comparison: LG that waits for each step, as published",
    "001 section 4.1, Algorithm 1",
    max_clusters=0,
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
