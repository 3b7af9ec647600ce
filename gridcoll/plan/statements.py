"""Each collective, stated once: what every rank holds before, and what it must hold after.

Content is symbolic. A run of units holds an ordered tuple of contributions ``(rank, unit)``: the
units that rank brought, from ``unit`` on. Data that was only moved has one contribution; a
reduction's result has one from each rank. Adding a contribution twice makes a different tuple, and
so a failed check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from gridcoll.errors import PlanError
from gridcoll.plan.plan import Plan


class Contribution(NamedTuple):
    rank: int
    unit: int


Content: TypeAlias = tuple[Contribution, ...]
Runs: TypeAlias = list[tuple[int, Content]]
"""``(length, content)`` runs from unit 0 of a buffer on."""


@dataclass(frozen=True)
class Statement:
    """``before(plan, rank)`` and ``after(plan, rank)`` give runs by buffer name."""

    collective: str
    before: Callable[[Plan, int], dict[str, Runs]]
    after: Callable[[Plan, int], dict[str, Runs]]


def moved(rank: int, unit: int = 0) -> Content:
    """Content that ``rank`` brought, from its ``unit`` on."""
    return (Contribution(rank, unit),)


STATEMENTS: dict[str, Statement] = {}


def state(statement: Statement) -> Statement:
    """Register ``statement`` under its collective's name."""
    STATEMENTS[statement.collective] = statement
    return statement


def find_statement(collective: str) -> Statement:
    """The statement of ``collective``. Raises `PlanError` for one without a statement."""
    try:
        return STATEMENTS[collective]
    except KeyError:
        raise PlanError(
            f"collective {collective!r}: no before/after statement; stated are {list(STATEMENTS)}"
        ) from None
