"""`best`, the best schedule within a budget, and `optimal`, the exact optimum."""

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
    """Return the best schedule found within a budget, with a proven `Schedule.lower_bound_s`.

    Raises `UsageError` naming the invalid argument.

    Parameters
    ----------
    budget_s : float, optional
        Stop after about this time. Not for use on several ranks: they may get different schedules.
        The seven heuristics always run.
    budget_steps : int
        Without ``budget_s``, stop after this many elementary steps. The result then depends only on
        the arguments, not on the machine, its load or the accelerator: all ranks get the same.
    accelerate : bool, optional
        Whether to use compiled kernels; by default if `warm_up` has loaded them. This changes only
        the speed.
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
    """Like `best`, for an `Instance`; ``clock`` measures ``budget_s``."""
    for name, value in (("budget_s", budget_s), ("budget_steps", budget_steps)):
        if value is not None and not value >= 0:
            raise UsageError(f"{name}: must not be negative, got {value}")
    runner = Runner(accelerate)
    return Search(instance, runner, Budget(budget_s, budget_steps, runner.steps_per_s, clock)).run()


def warm_up() -> bool:
    """Load the compiled kernels, if numba is installed; return whether it is.

    This takes about a second, and about four the first time on a machine, to compile them.
    """
    if has_numba() and not acceleration.is_warm():
        search = Search(
            Instance(np.ones((3, 3)), np.ones((3, 3)), np.ones(3)), Runner(True), Budget(1e-9, 0, 1)
        )
        search.run()
        search.run_each_kernel()
        acceleration.set_warm()
    return has_numba()


EXACT_CLUSTERS = 12
"""Up to this many clusters the recursion over all subsets always runs to the end."""

DEFAULT_OPTIMAL_STEPS = 50_000_000
"""Budget beyond `EXACT_CLUSTERS`: seconds in plain Python, a fraction of a second compiled."""


def optimal(
    instance: Instance,
    *,
    budget_s: float | None = None,
    budget_steps: int = DEFAULT_OPTIMAL_STEPS,
    accelerate: bool | None = None,
) -> Schedule:
    """Return a schedule with the least makespan, equal to its `Schedule.lower_bound_s`.

    Up to `EXACT_CLUSTERS` clusters the result is always optimal, whatever the budget. Beyond, the
    budget may not be enough; `Schedule.is_optimal` says whether the bounds met.

    The search is branch and bound over the set of clusters that the relaxation of
    `gridcoll.schedule.relaxation` must reach. With all clusters it is the recursion over subsets.
    """
    runner = Runner(accelerate)
    if instance.n_clusters <= EXACT_CLUSTERS:
        budget = Budget(None, float("inf"), runner.steps_per_s)
    else:
        budget = Budget(budget_s, budget_steps, runner.steps_per_s)
    return Search(instance, runner, budget).run()
