"""Ways to broadcast over a grid by one tree: the papers' schedules, and the chain of chains."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.plan.bcast.segments import (
    MANY_CLUSTERS,
    best_inside,
    inside_shapes,
    shape_closed_form_s,
    tree_candidate,
)
from gridcoll.plan.registry import Algorithm, Candidate, algorithm, register
from gridcoll.plan.trees import GridTree, chain_tree
from gridcoll.schedule import HEURISTICS, Heuristic, Instance, Schedule
from gridcoll.schedule.anytime import solve
from gridcoll.schedule.batch import Batch
from gridcoll.schedule.paths import shortest_path
from gridcoll.schedule.schedule import make_schedule
from gridcoll.schedule.search import reorder

MOST_ALONE = 64
"""Clusters to which one instance alone takes less than a batch of one, which gives the same."""

QUICK_HEURISTICS = ("fef", "ecef", "ecef-la-max-t")
"""Heuristics that are tried for any number of clusters."""

ASKED_FOR_ONLY = ("mixed", "optimal")
"""Not tried: ``mixed`` equals one of the others; ``optimal`` may take long, and ``best`` usually
finds it."""

MOST_BEST_CLUSTERS = 100
"""Most clusters with which `best` is tried."""

MOST_SEARCHED = 50
"""Clusters among which it searches. With more, the seven alone would take most of the time that a
choice may: there it is the best of `QUICK_HEURISTICS`, each sender's transfers put in order."""

BEST_STEPS = 200_000
"""Budget of the search: below 50 ms in plain Python, a tenth of that compiled. Never worse than the
seven, proven optimal for a dozen clusters and more."""


@algorithm(
    "bcast",
    "chain",
    "long messages: a pipeline over all ranks, cluster by cluster",
    "gridcoll; inside a cluster Barchet-Estefanel & Mounié 2004, Table 1",
)
def _chain(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """A chain over all ranks in cluster order: no rank sends anything twice."""
    if model.grid.n_ranks == 1:
        return []
    root_cluster = model.grid.cluster_of[root]
    orders = {
        shortest_path(model.latency_s, root_cluster),
        shortest_path(model.latency_s + model.gap_s(n_bytes), root_cluster),
    }
    trees = [chain_tree(model.grid, root, pairwise(order)) for order in sorted(orders)]
    return [tree_candidate("chain", model, n_bytes, [tree], paced=True) for tree in trees]


def _scheduled(heuristic: Heuristic, model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """The heuristic's tree, with each cluster's best internal shape, at the best segment size.

    The heuristic sees the papers' instance: L, g(m) and the best internal broadcast of the whole
    message. Its store-and-forward makespan is kept for comparison.
    """
    if model.n_clusters == 1:
        return []
    _, shapes = best_inside(model, n_bytes)
    instance = _instance(ModelKey(model), n_bytes, model.grid.cluster_of[root])
    schedule = _schedule(heuristic.name, instance)
    transfers = tuple((int(s), int(r)) for s, r in schedule.transfers)
    tree = GridTree(root, transfers, shapes, (0,) * model.n_clusters)
    return [tree_candidate(heuristic.name, model, n_bytes, [tree], schedule.makespan_s)]


@lru_cache(maxsize=4)
def _instance(key: ModelKey, n_bytes: int, home: int) -> Instance:
    """What all heuristics of a choice are asked."""
    inside_s, _ = best_inside(key.model, n_bytes)
    return Instance(key.model.latency_s, key.model.gap_s(n_bytes), inside_s, home)


@lru_cache(maxsize=16)
def _schedule(name: str, instance: Instance) -> Schedule:
    """The heuristic's schedule, a pure function: equal on all ranks."""
    if name != "best":
        heuristic = HEURISTICS[name]
        if instance.n_clusters <= MOST_ALONE:
            return heuristic.pick(instance)
        return heuristic.pick_batch(Batch.of(instance)).schedule(0)
    if instance.n_clusters <= MOST_SEARCHED:
        return solve(instance, budget_steps=BEST_STEPS)
    quick = (_schedule(each, instance).transfers for each in QUICK_HEURISTICS)
    found = [make_schedule(reorder(transfers, instance), instance) for transfers in quick]
    return min(found, key=lambda schedule: schedule.makespan_s)


def _register_heuristic(heuristic: Heuristic) -> None:
    most = 1 << 30 if heuristic.name in QUICK_HEURISTICS else MANY_CLUSTERS
    if heuristic.name == "best":
        most = MOST_BEST_CLUSTERS
    register(
        "bcast",
        Algorithm(
            heuristic.name,
            heuristic.good_for,
            heuristic.source,
            lambda model, n_bytes, root: _scheduled(heuristic, model, n_bytes, root),
            0 if heuristic.name in ASKED_FOR_ONLY else most,
            family="schedule",
        ),
    )


for _heuristic in HEURISTICS.values():
    _register_heuristic(_heuristic)


@algorithm(
    "bcast",
    "inside",
    "one cluster: flat, chain, binary, binomial or k-chain, segmented",
    "Barchet-Estefanel & Mounié 2004 and 2007, Table 1",
)
def _inside_only(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """One cluster: every shape of the papers' tables."""
    if model.n_clusters > 1 or model.grid.n_ranks == 1:
        return []
    found = []
    for shape in inside_shapes(model):
        tree = GridTree(root, (), (shape,), (0,))
        candidate = tree_candidate("inside", model, n_bytes, [tree])
        segment = candidate.segment_bytes or n_bytes
        found.append(
            replace(candidate, closed_form_s=shape_closed_form_s(shape, model, n_bytes, segment))
        )
    return found
