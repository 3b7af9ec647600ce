"""The choice of clusters, with the gain or cost of every single change to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.placement import exact, local
from gridcoll.placement.cost import BoolArray, IterationCost, Prediction, SubsetResult, predict
from gridcoll.placement.exact import best_but
from gridcoll.placement.local import flip_times
from gridcoll.placement.resources import as_mask


class Search(Struct, frozen=True):
    """One search for a subset: ``run(cost, rng)``. ``label`` is the paper's spelling."""

    name: str
    label: str
    good_for: str
    source: str
    run: Callable[[IterationCost, np.random.Generator], SubsetResult]


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
    """Return the search called ``name``. Raises `UsageError`."""
    if name not in SEARCHES:
        raise UsageError(f"unknown search {name!r}; known are {', '.join(SEARCHES)}")
    return SEARCHES[name]


EXACT_RUNNER_UP_CLUSTERS = 20  # the exact runner-up of so many clusters takes some 50 ms more
EXACT_RUNNER_UP_PRICED = 8  # the same if every ALLREDUCE is priced from outside


class Change(Struct, frozen=True):
    """One cluster added to the choice or dropped from it; faster if ``gain_s`` is above 0."""

    cluster: int
    kind: Literal["add", "drop"]
    iteration_s: float
    gain_s: float
    lacks_memory: bool


class Selection(Struct, frozen=True):
    """The chosen clusters, the runner-up and all changes by one cluster.

    ``runner_up`` is the next best subset: of all subsets if ``runner_up_exact``, else of those that
    differ from the choice by adding, dropping or exchanging one cluster. It is None on a grid of
    one cluster, or if no other subset has enough memory.
    """

    search: str
    best: Prediction
    proven: bool
    n_evaluated: int
    runner_up: Prediction | None
    runner_up_exact: bool
    changes: tuple[Change, ...]


def select(cost: IterationCost, search: str = DEFAULT_SEARCH, seed: int = 0) -> Selection:
    """Return the clusters to run on, found by ``search`` (a name in `SEARCHES`).

    Raises `UsageError` for an unknown search, or if no subset found has enough memory.
    """
    result = find_search(search).run(cost, np.random.default_rng(seed))
    if cost.lacks_memory(result.iteration_s):
        raise UsageError(_memory_message(cost, result))
    most = EXACT_RUNNER_UP_CLUSTERS if cost.is_closed else EXACT_RUNNER_UP_PRICED
    exact = cost.n_clusters <= most
    second = best_but(cost, result.clusters).clusters if exact else _best_neighbour(cost, result)
    if not second or cost.lacks_memory(cost.time_s(second)):
        second = ()
    return Selection(
        search=search,
        best=predict(cost, result.clusters),
        proven=result.proven,
        n_evaluated=result.n_evaluated,
        runner_up=predict(cost, second) if second else None,
        runner_up_exact=exact,
        changes=tuple(_changes(cost, result)),
    )


def _changes(cost: IterationCost, chosen: SubsetResult) -> Iterator[Change]:
    mask = as_mask(chosen.clusters, cost.n_clusters)
    for i, time_s in enumerate(flip_times(cost, mask)):
        if np.isfinite(time_s):  # dropping the only cluster leaves nothing to run on
            yield Change(
                cluster=i,
                kind="drop" if mask[i] else "add",
                iteration_s=float(time_s),
                gain_s=chosen.iteration_s - float(time_s),
                lacks_memory=cost.lacks_memory(float(time_s)),
            )


def _best_neighbour(cost: IterationCost, chosen: SubsetResult) -> tuple[int, ...]:
    masks = _neighbours(as_mask(chosen.clusters, cost.n_clusters))
    best = int(cost.times(masks).argmin())
    return tuple(int(i) for i in np.flatnonzero(masks[best]))


def _neighbours(mask: BoolArray) -> BoolArray:
    """Return all subsets that differ from ``mask`` (C,) by one addition, drop or exchange."""
    eye = np.eye(len(mask), dtype=bool)
    flips = mask ^ eye
    exchanges = [mask ^ eye[i] ^ eye[~mask] for i in np.flatnonzero(mask)]
    return np.concatenate([flips, *exchanges])


def _memory_message(cost: IterationCost, result: SubsetResult) -> str:
    memory = cost.problem.memory
    element_bytes = 0.0 if memory is None else memory.element_bytes
    per_host = max(predict(cost, result.clusters).elements_per_host)
    return (
        f"memory: no subset found holds {cost.problem.n_elements} elements of {element_bytes:g} "
        f"bytes: even the best leaves {per_host * element_bytes / 2**30:.4g} GiB to a host"
    )
