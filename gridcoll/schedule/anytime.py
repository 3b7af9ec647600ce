"""`best`: the schedule to use, within a budget of time or of steps."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gridcoll.errors import UsageError
from gridcoll.schedule import accelerate as acceleration
from gridcoll.schedule.accelerate import Runner, has_numba
from gridcoll.schedule.instance import Accounting, Instance
from gridcoll.schedule.schedule import Schedule
from gridcoll.schedule.search import Budget, Search

DEFAULT_STEPS = 2_000_000
"""A fraction of a second in plain Python."""


def best(
    latency_s: npt.ArrayLike,
    gap_s: npt.ArrayLike,
    internal_s: npt.ArrayLike,
    root: int = 0,
    *,
    budget_s: float | None = None,
    budget_steps: int = DEFAULT_STEPS,
    accelerate: bool | None = None,
    accounting: Accounting | None = None,
) -> Schedule:
    """The best schedule found within a budget, with a proven `Schedule.lower_bound_s`.

    Raises `UsageError` naming the invalid argument.

    Parameters
    ----------
    budget_s : float, optional
        Stop after about this long. For a single caller: two of them may get different schedules.
        The seven heuristics always run.
    budget_steps : int
        Without ``budget_s``, stop after this many elementary steps. The result then depends on the
        arguments alone, not on the machine, its load or the accelerator: every rank gets the same.
    accelerate : bool, optional
        Whether to use compiled kernels; by default if `warm_up` has loaded them. Changes the speed
        only.
    """
    instance = Instance(latency_s, gap_s, internal_s, root, accounting or Accounting())  # type: ignore[arg-type]
    return solve(instance, budget_s=budget_s, budget_steps=budget_steps, accelerate=accelerate)


def solve(
    instance: Instance,
    *,
    budget_s: float | None = None,
    budget_steps: int = DEFAULT_STEPS,
    accelerate: bool | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Schedule:
    """`best` for an instance that is already made; ``clock`` is what ``budget_s`` is read on."""
    for name, value in (("budget_s", budget_s), ("budget_steps", budget_steps)):
        if value is not None and not value >= 0:
            raise UsageError(f"{name}: must not be negative, got {value}")
    runner = Runner(accelerate)
    return Search(instance, runner, Budget(budget_s, budget_steps, runner.steps_per_s, clock)).run()


def warm_up() -> bool:
    """Load the compiled kernels, if numba is installed; return whether it is.

    Takes about a second, and some four the first time on a machine, when they are compiled.
    """
    if has_numba() and not acceleration.is_warm():
        search = Search(
            Instance(np.ones((3, 3)), np.ones((3, 3)), np.ones(3)), Runner(True), Budget(1e-9, 0, 1)
        )
        search.run()
        search.try_everything()
        acceleration.set_warm()
    return has_numba()
