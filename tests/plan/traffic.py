"""What plans send, for tests that compare it with what was sent, or with what it must be."""

from __future__ import annotations

from gridcoll.plan.ops import Send
from gridcoll.plan.plan import Plan
from gridcoll.plan.traces import Traffic, traffic_of
from gridcoll.topology.grid import Grid


def count_traffic(plan: Plan, grid: Grid) -> Traffic:
    """Count what ``plan`` sends over ``grid``."""
    return traffic_of(
        grid,
        (
            (rank, op.peer, 1, op.chunk.size)
            for rank, program in enumerate(plan.programs)
            for op in program
            if isinstance(op, Send)
        ),
    )
