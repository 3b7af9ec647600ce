"""The papers' strategies for one cluster, each by itself: shape, segments, protocol.

Over several clusters they are what a library does that knows nothing of the grid: the shape is laid
over all ranks in rank order from the root. Tried when asked for; among one cluster's ranks the best
of the trees at the best segment size is the candidate ``inside``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gridcoll.model.closed_forms import CLOSED_FORMS
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.collection import (
    plan_scatter_collection,
    price_scatter_collection,
)
from gridcoll.plan.bcast.rendezvous import plan_bcast_rendezvous
from gridcoll.plan.bcast.segments import best_segment, segments_label, table_s
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Algorithm, Candidate, register
from gridcoll.plan.tree_cost import SegmentCosts, price_ranks, price_rendezvous
from gridcoll.plan.trees import RankTree
from gridcoll.schedule.trees import find_shape

PREFIX = "plain-"
"""What settings put before a strategy's name: without it, ``flat`` is a tree of clusters."""

DEGREES = (2, 3, 4, 6, 8, 12, 16)
"""Of k-chains, those below the number of ranks are tried."""


@dataclass(frozen=True)
class Strategy:
    """A line of the tables as a tree: its shape, in segments or whole, asking first or not."""

    name: str
    good_for: str
    shape: str
    segmented: bool = False
    rendezvous: bool = False


TREES = (
    Strategy("flat", "a handful of ranks, short messages", "flat"),
    Strategy("flat-rendezvous", "flat, receivers without room", "flat", rendezvous=True),
    Strategy("segmented-flat", "flat, for comparison: segments gain nothing", "flat", True),
    Strategy("chain", "for comparison: every rank waits for the whole message", "chain"),
    Strategy("chain-rendezvous", "chain, receivers without room", "chain", rendezvous=True),
    Strategy("segmented-chain", "long messages: a pipeline", "chain", True),
    Strategy("binary", "middle sizes: constant degree", "binary"),
    Strategy("binomial", "short messages; what grid-unaware libraries do", "binomial"),
    Strategy("binomial-rendezvous", "binomial, receivers without room", "binomial", False, True),
    Strategy("segmented-binomial", "middle sizes: little depth, in a pipeline", "binomial", True),
)


def rank_order_tree(shape: str, n_ranks: int, root: int) -> RankTree:
    """``shape`` over all ranks in rank order from ``root``, and around."""
    ranks = [(root + vertex) % n_ranks for vertex in range(n_ranks)]
    children: list[tuple[int, ...]] = [()] * n_ranks
    for vertex, sends in enumerate(find_shape(shape).children(n_ranks)):
        children[ranks[vertex]] = tuple(ranks[child] for child in sends)
    return RankTree(root, tuple(children))


def _tree(strategy: Strategy, model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    if model.grid.n_ranks == 1:
        return []
    tree = rank_order_tree(strategy.shape, model.grid.n_ranks, root)
    if strategy.segmented:
        return [_segmented(strategy.name, strategy.shape, tree, model, n_bytes)]
    name = PREFIX + strategy.name
    label = f"{strategy.shape} in rank order{', asking first' if strategy.rendezvous else ''}"

    def build(n_units: int) -> Plan:
        if strategy.rendezvous:
            return plan_bcast_rendezvous(tree, n_units, f"{name}: {label}")
        return plan_bcast([tree], n_units, max(n_units, 1), f"{name}: {label}")

    predicted_s = _whole_s(strategy, model, tree, n_bytes)
    said_s = table_s(strategy.name, model, n_bytes)
    return [Candidate(name, label, predicted_s, build, table_s=said_s, segment_bytes=n_bytes)]


def _whole_s(strategy: Strategy, model: GridModel, tree: RankTree, n_bytes: int) -> float:
    """Seconds in one piece."""
    if strategy.rendezvous and n_bytes:
        return price_rendezvous(model, tree, n_bytes)
    costs = SegmentCosts(model, n_bytes, np.array([max(n_bytes, 1)]))
    return float(price_ranks(costs, tree).total_s[0])


def _segmented(
    strategy: str, shape: str, tree: RankTree, model: GridModel, n_bytes: int, degree: int = 2
) -> Candidate:
    """``tree`` at its best segment size."""
    segment, total_s = best_segment(model, n_bytes, lambda costs: price_ranks(costs, tree))
    name = PREFIX + strategy
    label = f"{shape} in rank order; {segments_label(n_bytes, segment)}"

    def build(n_units: int) -> Plan:
        return plan_bcast([tree], n_units, min(segment, max(n_units, 1)), f"{name}: {label}")

    said_s = table_s(strategy, model, n_bytes, segment, degree)
    return Candidate(name, label, total_s, build, table_s=said_s, segment_bytes=segment)


def _k_chains(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    n_ranks = model.grid.n_ranks
    return [
        _segmented("k-chain", shape, rank_order_tree(shape, n_ranks, root), model, n_bytes, degree)
        for degree in DEGREES
        if degree < n_ranks and (shape := f"{degree}-chain")
    ]


def _collection(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    n_ranks = model.grid.n_ranks
    if n_ranks == 1:
        return []
    ring = [(root + vertex) % n_ranks for vertex in range(n_ranks)]
    name, label = PREFIX + "scatter-collection", "shares down a binomial tree, then around a ring"

    def build(n_units: int) -> Plan:
        return plan_scatter_collection(ring, n_units, f"{name}: {label}")

    predicted_s = price_scatter_collection(model, ring, n_bytes)
    said_s = table_s("scatter-collection", model, n_bytes)
    return [Candidate(name, label, predicted_s, build, table_s=said_s)]


def _register(
    name: str, good_for: str, candidates: Callable[[GridModel, int, int], list[Candidate]]
) -> None:
    source = CLOSED_FORMS[name].source
    register("bcast", Algorithm(PREFIX + name, good_for, source, candidates, most_clusters=0))


for _strategy in TREES:
    _register(
        _strategy.name,
        _strategy.good_for,
        lambda model, n_bytes, root, strategy=_strategy: _tree(strategy, model, n_bytes, root),  # type: ignore[misc]
    )
_register("k-chain", "long messages among many ranks: shorter chains, a busier root", _k_chains)
_register("scatter-collection", "long messages among many ranks, each sending twice", _collection)
