"""Broadcasts over a grid by one tree: the papers' schedules, and the chain of chains."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from msgspec.structs import replace

from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.plan.bcast.segments import (
    MANY_CLUSTERS,
    best_inside,
    inside_shapes,
    shape_closed_form_s,
    tree_candidate,
)
from gridcoll.plan.registry import ANY_NUMBER, Algorithm, Candidate, algorithm, register
from gridcoll.plan.trees import GridTree, chain_tree
from gridcoll.schedule import HEURISTICS, Heuristic, Instance, Schedule
from gridcoll.schedule.anytime import solve
from gridcoll.schedule.batch import Batch
from gridcoll.schedule.paths import shortest_path
from gridcoll.schedule.schedule import make_schedule
from gridcoll.schedule.search import reorder

MOST_UNBATCHED = 64
"""Up to so many clusters, a heuristic is faster on an instance than on a batch of one instance,
which gives the same result."""

QUICK_HEURISTICS = ("fef", "ecef", "ecef-la-max-t")
"""Heuristics that are tried for any number of clusters."""

ON_REQUEST_ONLY = ("mixed", "optimal")
"""Heuristics that are not tried unless requested: ``mixed`` equals one of the others; ``optimal``
may take long, and ``best`` usually finds the optimum."""

MOST_BEST_CLUSTERS = 100
"""``best`` is tried for at most so many clusters."""

MOST_SEARCHED = 50
"""``best`` searches for at most so many clusters. With more, the papers' seven heuristics alone
would take most of the time that a choice may take. Then ``best`` is the best of `QUICK_HEURISTICS`
after the transfers of each sender were put in order."""

BEST_STEPS = 200_000
"""Limit of steps of the search: below 50 ms in plain Python, a tenth of that compiled. The result
is never worse than the papers' seven, and proven optimal for a dozen clusters and more."""


@algorithm(
    "bcast",
    "chain",
    "long messages: a pipeline over all ranks, cluster by cluster",
    "gridcoll; inside a cluster Barchet-Estefanel & Mounié 2004, Table 1",
)
def _chain(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return chains over all ranks, cluster by cluster, in which no rank sends anything twice."""
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
    """Return the heuristic's tree, with the best shape inside each cluster and the best segments.

    The heuristic is given the papers' instance: L, g(m) and the best internal broadcast of the
    whole message. Its store-and-forward makespan is kept for comparison.
    """
    if model.n_clusters == 1:
        return []
    key = ModelKey(model)
    _, shapes = best_inside(key, n_bytes)
    instance = _instance(key, n_bytes, model.grid.cluster_of[root])
    schedule = _schedule(heuristic.name, instance)
    transfers = tuple((int(s), int(r)) for s, r in schedule.transfers)
    tree = GridTree(root, transfers, shapes, (0,) * model.n_clusters)
    return [tree_candidate(heuristic.name, model, n_bytes, [tree], schedule.makespan_s)]


@lru_cache(maxsize=4)
def _instance(key: ModelKey, n_bytes: int, home: int) -> Instance:
    """Return the instance that is given to all heuristics of a choice."""
    inside_s, _ = best_inside(key, n_bytes)
    return Instance(key.model.latency_s, key.model.gap_s(n_bytes), inside_s, home)


@lru_cache(maxsize=16)
def _schedule(name: str, instance: Instance) -> Schedule:
    """Return the schedule of a heuristic. This is a pure function: all ranks get the same."""
    if name != "best":
        heuristic = HEURISTICS[name]
        if instance.n_clusters <= MOST_UNBATCHED:
            return heuristic.pick(instance)
        return heuristic.pick_batch(Batch.of(instance)).schedule(0)
    if instance.n_clusters <= MOST_SEARCHED:
        return solve(instance, budget_steps=BEST_STEPS)
    quick = (_schedule(each, instance).transfers for each in QUICK_HEURISTICS)
    found = [make_schedule(reorder(transfers, instance), instance) for transfers in quick]
    return min(found, key=lambda schedule: schedule.makespan_s)


def _register_heuristic(heuristic: Heuristic) -> None:
    most = ANY_NUMBER if heuristic.name in QUICK_HEURISTICS else MANY_CLUSTERS
    if heuristic.name == "best":
        most = MOST_BEST_CLUSTERS
    register(
        "bcast",
        Algorithm(
            heuristic.name,
            heuristic.good_for,
            heuristic.source,
            lambda model, n_bytes, root: _scheduled(heuristic, model, n_bytes, root),
            0 if heuristic.name in ON_REQUEST_ONLY else most,
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
    """Return every shape of the papers' tables, for one cluster."""
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
