"""Every search by name: what it is good for, where it comes from, and the function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gridcoll.errors import UsageError
from gridcoll.placement import exact, local
from gridcoll.placement.cost import Found, IterationCost


@dataclass(frozen=True)
class Search:
    """One way to find a subset: ``run(cost, rng) -> Found``. ``label`` is the paper's spelling."""

    name: str
    label: str
    good_for: str
    source: str
    run: Callable[[IterationCost, np.random.Generator], Found]


_ENTRIES = (
    Search(
        "exhaustive", "exhaustive",
        f"the optimum of up to {exact.MAX_CLUSTERS} clusters, by trying every subset",
        "paper 004, §3.1.1", exact.exhaustive,
    ),
    Search(
        "random", "rnd",
        "the baseline: one random subset",
        "paper 004, §3.1.2", local.random_subset,
    ),
    Search(
        "random-1k", "rnd1k",
        "few clusters: the best of a thousand random subsets",
        "paper 004, §3.1.2", local.random_1k,
    ),
    Search(
        "greedy", "greedy",
        "clusters unlike one another: add one at a time, from each cluster in turn",
        "paper 004, §3.1.3", local.greedy,
    ),
    Search(
        "grouping", "grouping",
        "grids of sites: greedy that may also add a whole site or region",
        "paper 004, §3.1.4", local.grouping,
    ),
    Search(
        "annealing", "sa",
        "what annealing does alone, from no cluster; rarely the one to take",
        "paper 004, §3.1.5", local.annealing,
    ),
    Search(
        "annealing-greedy", "sa.greedy",
        "grids without sites: greedy, then annealing",
        "paper 004, §3.1.5", local.annealing_greedy,
    ),
    Search(
        "annealing-grouping", "sa.grouping",
        "hundreds of clusters: grouping, then annealing; the paper's best",
        "paper 004, §3.1.5", local.annealing_grouping,
    ),
    Search(
        "branch-and-bound", "branch and bound",
        "the default: starts from annealing-grouping and proves the optimum",
        "gridcoll", exact.branch_and_bound,
    ),
)  # fmt: skip

SEARCHES: dict[str, Search] = {entry.name: entry for entry in _ENTRIES}
DEFAULT_SEARCH = "branch-and-bound"


def find_search(name: str) -> Search:
    """The search called ``name``. Raises `UsageError`."""
    if name not in SEARCHES:
        raise UsageError(f"unknown search {name!r}; known are {', '.join(SEARCHES)}")
    return SEARCHES[name]
