"""Plans made by hand, small enough to break in one place; and what to say when one is refused."""

from __future__ import annotations

import pytest

from gridcoll.errors import PlanError
from gridcoll.plan import Chunk, Copy, Op, Plan, Recv, Reduce, Send, check_plan

SUM = "sum everywhere, for tests"
"""Stated where the fixture of that name is asked for."""


def out(start: int, stop: int) -> Chunk:
    return Chunk("output", start, stop)


def plan(programs: list[list[Op]], collective: str = "bcast", **fields: object) -> Plan:
    values: dict[str, object] = {"label": "made by hand", "n_units": 8, "root": 0, **fields}
    return Plan(collective, programs=[tuple(ops) for ops in programs], **values)  # type: ignore[arg-type]


def chain() -> list[list[Op]]:
    """Eight units down 0 → 1 → 2 in two segments."""
    a, b = out(0, 4), out(4, 8)
    return [
        [Send(1, a, 0), Send(1, b, 1)],
        [Recv(0, a, 0), Send(2, a, 0), Recv(0, b, 1), Send(2, b, 1)],
        [Recv(1, a, 0), Recv(1, b, 1)],
    ]


def exchange() -> list[list[Op]]:
    """Two ranks sum eight units: each sends its input and adds the other's to its own, in order."""
    mine, all_of_it, theirs = Chunk("input", 0, 8), out(0, 8), Chunk("scratch", 0, 8)
    return [
        [
            Copy(mine, all_of_it),
            Send(1, mine, 0),
            Recv(1, theirs, 0),
            Reduce(theirs, all_of_it, source_first=False),
        ],
        [
            Copy(mine, all_of_it),
            Send(0, mine, 0),
            Recv(0, theirs, 0),
            Reduce(theirs, all_of_it, source_first=True),
        ],
    ]


def summed(programs: list[list[Op]]) -> Plan:
    return plan(programs, SUM, root=-1, scratch_units=(8, 8))


def refused(broken: Plan, *parts: str, rank_order: bool = False) -> None:
    with pytest.raises(PlanError) as caught:
        check_plan(broken, rank_order=rank_order)
    for part in parts:
        assert part in str(caught.value)
