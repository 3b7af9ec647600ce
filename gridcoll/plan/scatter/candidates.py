"""Ways to scatter over a grid, and to gather, which is the same backwards.

A cluster's blocks leave the root for it and go nowhere else first: a byte crosses between clusters
once at most. What differs is whether they go to its coordinator or to each rank, and how they are
handed on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from gridcoll.model.closed_forms import SCATTER_COSTS
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.gather.mirror import plan_gather
from gridcoll.plan.pacing import Pace, pace_of
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Algorithm, Candidate, register
from gridcoll.plan.scatter.prices import price_bulk, price_pipelined
from gridcoll.plan.scatter.trees import Subtrees, plan_scatter
from gridcoll.plan.trees import GridTree, RankTree

Turn = Callable[[Plan, str], Plan]
"""Makes the plan wanted of a scatter."""


def serving_order(model: GridModel, root: int, n_bytes: int) -> list[int]:
    """The other clusters as the root serves them: those with the longest way first."""
    home = model.grid.cluster_of[root]
    _, alone = model.gap_and_alone_s(np.array([float(n_bytes)]))
    others = [c for c in range(model.n_clusters) if c != home]
    return sorted(others, key=lambda c: (-float(alone[home, c, 0]), c))


def serving_ranks(model: GridModel, root: int, n_bytes: int, *, in_turn: bool = False) -> list[int]:
    """The other ranks as a root serves them that sends to each.

    ``in_turn``: one rank of every other cluster, then the next of each, so that thin links work at
    the same time. The root's own cluster comes last either way.
    """
    home = model.grid.cluster_of[root]
    clusters = [model.grid.clusters[c].ranks for c in serving_order(model, root, n_bytes)]
    if in_turn:
        turns = zip_longest(*clusters)
        clusters = [tuple(rank for rank in turn if rank is not None) for turn in turns]
    own = tuple(rank for rank in model.grid.clusters[home].ranks if rank != root)
    return [rank for ranks in (*clusters, own) for rank in ranks]


def _flat_tree(model: GridModel, n_bytes: int, root: int, in_turn: bool) -> RankTree:
    children: list[tuple[int, ...]] = [()] * model.grid.n_ranks
    children[root] = tuple(serving_ranks(model, root, n_bytes, in_turn=in_turn))
    return RankTree(root, tuple(children))


def _cluster_tree(shape: str, model: GridModel, n_bytes: int, root: int) -> RankTree:
    """From the root to the coordinators of other clusters, and ``shape`` inside each."""
    n, home = model.n_clusters, model.grid.cluster_of[root]
    transfers = tuple((home, c) for c in serving_order(model, root, n_bytes))
    return GridTree(root, transfers, (shape,) * n, (0,) * n).expand(model.grid)


def _flat(model: GridModel, n_bytes: int, root: int, turn: Turn) -> list[Candidate]:
    """Straight from the root to each rank, all at once."""
    return _straight("flat", "every block by itself", model, n_bytes, root, turn)


def _uneven(model: GridModel, n_bytes: int, root: int, turn: Turn) -> list[Candidate]:
    """The same of blocks whose sizes the root alone knows, and with them whether to pace."""
    label = "every block by itself; long ones one after another, unless flat is asked for"
    return _straight("flat", label, model, n_bytes, root, turn)


def _paced(model: GridModel, n_bytes: int, root: int, turn: Turn) -> list[Candidate]:
    """Straight from the root to each rank, one block after another."""
    pace = pace_of(model, root, n_bytes)
    if pace is None:
        return []
    return _straight("paced", "one block after another", model, n_bytes, root, turn, pace)


def _straight(
    name: str,
    label: str,
    model: GridModel,
    n_bytes: int,
    root: int,
    turn: Turn,
    pace: Pace | None = None,
) -> list[Candidate]:
    orders = [(False, "those with the longest way first")]
    if model.n_clusters > 2:
        orders.append((True, "clusters in turn"))
    found = []
    for in_turn, order in orders:
        tree = _flat_tree(model, n_bytes, root, in_turn)
        predicted_s = price_bulk(model, Subtrees(tree), n_bytes)
        found.append(_candidate(name, f"{label}, {order}", tree, predicted_s, turn, pace=pace))
    return found


def _by_cluster(
    name: str, label: str, shape: str, model: GridModel, n_bytes: int, root: int, turn: Turn
) -> list[Candidate]:
    """A message per cluster; ``shape`` inside."""
    tree = _cluster_tree(shape, model, n_bytes, root)
    predicted_s = price_bulk(model, Subtrees(tree), n_bytes)
    return [_candidate(name, f"a message per cluster, {label}", tree, predicted_s, turn)]


def _pipelined_chain(model: GridModel, n_bytes: int, root: int, turn: Turn) -> list[Candidate]:
    tree = _cluster_tree("chain", model, n_bytes, root)
    predicted_s = price_pipelined(model, root, serving_order(model, root, n_bytes), n_bytes)
    label = "block after block, through every cluster from rank to rank"
    return [_candidate("pipelined-chain", label, tree, predicted_s, turn, pipelined=True)]


def _candidate(
    name: str,
    label: str,
    tree: RankTree,
    predicted_s: float,
    turn: Turn,
    *,
    pace: Pace | None = None,
    pipelined: bool = False,
) -> Candidate:
    full_label = f"{name}: {label}"

    def build(n_units: int) -> Plan:
        plan = plan_scatter(tree, n_units, pipelined=pipelined, pace=pace, label=full_label)
        return turn(plan, full_label)

    return Candidate(name, label, predicted_s, build)


def _coordinators(model: GridModel, n_bytes: int, root: int, turn: Turn) -> list[Candidate]:
    """Only where there is something to do inside a cluster and something between two."""
    if not 1 < model.n_clusters < model.grid.n_ranks:
        return []
    label = "handed out by its coordinator"
    return _by_cluster("coordinators", label, "flat", model, n_bytes, root, turn)


def _chain(model: GridModel, n_bytes: int, root: int, turn: Turn) -> list[Candidate]:
    return _by_cluster("chain", "from rank to rank", "chain", model, n_bytes, root, turn)


def _binomial(model: GridModel, n_bytes: int, root: int, turn: Turn) -> list[Candidate]:
    label = "down a binomial tree"
    return _by_cluster("binomial", label, "binomial", model, n_bytes, root, turn)


@dataclass(frozen=True)
class Way:
    """A way to scatter, from which come an algorithm to scatter and one to gather."""

    name: str
    good_for: str
    source: str
    candidates: Callable[[GridModel, int, int, Turn], list[Candidate]]


WAYS = (
    Way("flat", "long blocks: no interface passes anything twice", "003 Table 2", _flat),
    Way(
        "coordinators",
        "short blocks for clusters of many ranks: fewest messages between clusters",
        "gridcoll",
        _coordinators,
    ),
    Way("chain", "to compare: every rank passes on all that is behind it", "003 Table 2", _chain),
    Way(
        "pipelined-chain",
        "long blocks where a link between clusters is slower than interfaces",
        "003 Table 2",
        _pipelined_chain,
    ),
    Way(
        "binomial",
        "short blocks: a logarithm of messages one after another",
        "003 Table 2",
        _binomial,
    ),
)


def _of_scatter(plan: Plan, label: str) -> Plan:
    return plan


def _register(collective: str, turn: Turn, way: Way, source: str) -> None:
    def candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
        if model.grid.n_ranks == 1:
            return []
        found = way.candidates(model, n_bytes, root, turn)
        if model.n_clusters > 1 or way.name not in SCATTER_COSTS:
            return found
        table_s = SCATTER_COSTS[way.name].seconds(model.link(0, 0), model.grid.n_ranks, n_bytes)
        return [replace(candidate, table_s=table_s) for candidate in found]

    register(collective, Algorithm(way.name, way.good_for, source, candidates))


# First, since it is predicted to take as long as the flat one, which it does in fact.
_PACED = Way(
    "paced",
    "long blocks for far clusters: what leaves first is there first, and shares no interface",
    "gridcoll",
    _paced,
)

for _way in (_PACED, *WAYS):
    _register("scatter", _of_scatter, _way, _way.source)
for _way in WAYS:
    _register("gather", plan_gather, _way, f"{_way.source}; backwards")
# Only the root knows the sizes of blocks: no rank in between could take part, nothing be chosen.
_UNEVEN = replace(WAYS[0], good_for="blocks of any sizes, which only the root knows all of")
_register("scatterv", _of_scatter, replace(_UNEVEN, candidates=_uneven), _UNEVEN.source)
_register("gatherv", plan_gather, _UNEVEN, f"{_UNEVEN.source}; backwards")
