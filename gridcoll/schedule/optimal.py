"""The exact optimum; beyond a dozen clusters, as near as a budget allows, with a proven bound."""

from __future__ import annotations

from gridcoll.schedule.accelerate import Runner
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.schedule import Schedule
from gridcoll.schedule.search import Budget, Search

EXACT_CLUSTERS = 12
"""Up to here the recursion over all subsets always ends in good time."""

BEYOND_STEPS = 50_000_000
"""The default budget beyond `EXACT_CLUSTERS`: seconds in plain Python, a fraction compiled."""


def optimal(
    instance: Instance,
    *,
    budget_s: float | None = None,
    budget_steps: int = BEYOND_STEPS,
    accelerate: bool | None = None,
) -> Schedule:
    """A schedule with the least makespan: `Schedule.lower_bound_s` equals it.

    Up to `EXACT_CLUSTERS` clusters that is always so, whatever the budget. Beyond, the search may
    run out of it; `Schedule.is_optimal` says whether the bounds met.

    The search is branch and bound on which clusters the relaxation of
    `gridcoll.schedule.relaxation` must reach; with all of them it is the recursion over subsets.
    """
    runner = Runner(accelerate)
    if instance.n_clusters <= EXACT_CLUSTERS:
        budget = Budget(None, float("inf"), runner.steps_per_s)
    else:
        budget = Budget(budget_s, budget_steps, runner.steps_per_s)
    return Search(instance, runner, budget).run()
