"""Statement of each collective: what every rank holds before it, and must hold after it.

Content is symbolic. A run of units holds an ordered tuple of contributions ``(rank, unit)``: the
units that ``rank`` contributed, from ``unit`` on. Data that was only moved has one contribution;
the result of a reduction has one from each rank. Adding a contribution twice gives a different
tuple, so the check fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from gridcoll.errors import PlanError
from gridcoll.plan.plan import Plan


class Contribution(NamedTuple):
    rank: int
    unit: int


Content: TypeAlias = tuple[Contribution, ...]
Runs: TypeAlias = list[tuple[int, Content]]
"""Runs ``(length, content)`` from unit 0 of a buffer on."""


class Statement(Struct, frozen=True):
    """``before(plan, rank)`` and ``after(plan, rank)`` return runs by buffer name."""

    collective: str
    before: Callable[[Plan, int], dict[str, Runs]]
    after: Callable[[Plan, int], dict[str, Runs]]


def moved(rank: int, unit: int = 0) -> Content:
    """Return the content that ``rank`` contributed, from its ``unit`` on."""
    return (Contribution(rank, unit),)


STATEMENTS: dict[str, Statement] = {}


def state(statement: Statement) -> Statement:
    """Register ``statement`` under its collective's name."""
    STATEMENTS[statement.collective] = statement
    return statement


def find_statement(collective: str) -> Statement:
    """Return the statement of ``collective``. Raises `PlanError` if it has none."""
    try:
        return STATEMENTS[collective]
    except KeyError:
        raise PlanError(
            f"collective {collective!r}: no before/after statement; stated are {list(STATEMENTS)}"
        ) from None
