"""The papers' strategies for one cluster, each as an algorithm: shape, segments, protocol.

Rendezvous means request, permission and message on every edge of a tree. Scatter-collection means
that each rank gets a share, and then the shares go around a ring.

The trees are also candidates of `inside` and of schedules. The algorithms here are for requests
only. A rendezvous makes a tree slower by every model, so it could never be chosen.
Scatter-collection is considered in one cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from msgspec import Struct

from gridcoll.model.closed_forms import CLOSED_FORMS
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.segments import best_segment, closed_form_s, segments_label
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Algorithm, Candidate, register
from gridcoll.plan.tree_cost import SegmentCosts, price_ranks, price_rendezvous
from gridcoll.plan.trees import RankTree
from gridcoll.schedule.trees import find_shape


def plan_bcast_rendezvous(tree: RankTree, n_units: int, label: str = "") -> Plan:
    """Broadcast ``n_units`` in one piece down ``tree``.

    A rank that has the message sends its first byte to all children at once, as a request, and
    sends the message to each child as soon as it has answered.
    """
    if not n_units:
        return plan_bcast([tree], 0, 1, label)
    message, first, request = (
        Chunk("output", 0, n_units),
        Chunk("output", 0, 1),
        Chunk("scratch", 0, 1),
    )

    def program_of(rank: int) -> Program:
        ops: list[Op] = []
        children = tree.children[rank]
        if rank != tree.root:
            parent = tree.parent[rank]
            ops += [Recv(parent, request, 0), Send(parent, request, 0), Recv(parent, message, 1)]
        ops += [Send(child, first, 0) for child in children]
        for place, child in enumerate(children, start=1):
            permission = Chunk("scratch", place, place + 1)
            ops += [Recv(child, permission, 0), Send(child, message, 1, permission)]
        return tuple(ops)

    scratch_units = tuple(1 + len(children) for children in tree.children)
    programs = Programs(len(tree.children), program_of)
    return Plan("bcast", label, n_units, tree.root, programs, scratch_units=scratch_units)


def _span(vertex: int, n: int) -> range:
    """Return the shares that a vertex of the scatter's binomial tree gets: those of its subtree."""
    return range(vertex, min(vertex + (vertex & -vertex), n)) if vertex else range(n)


def plan_scatter_collection(ring: Sequence[int], n_units: int, label: str = "") -> Plan:
    """Broadcast ``n_units`` from ``ring[0]``, a share per rank.

    Shares go down a binomial tree in halves, then around ``ring``. A rank does not receive shares
    again that it got from the tree, so no data is overwritten.
    """
    n = len(ring)
    bounds = [share * n_units // n for share in range(n + 1)]
    places = {rank: place for place, rank in enumerate(ring)}
    children = find_shape("binomial").children(n)

    def shares(span: range) -> Chunk:
        return Chunk("output", bounds[span.start], bounds[span.stop])

    def program_of(rank: int) -> Program:
        here = places[rank]
        mine, theirs = _span(here, n), _span((here + 1) % n, n)
        before, following = ring[here - 1], ring[(here + 1) % n]
        ops: list[Op] = []
        if here and shares(mine).size:
            ops.append(Recv(ring[here - (here & -here)], shares(mine), 0))
        ops += [
            Send(ring[child], shares(_span(child, n)), 0)
            for child in children[here]
            if shares(_span(child, n)).size
        ]
        latest: Chunk | None = None  # shares from the tree are sent after those received so far
        for step in range(n):
            share = (here - step) % n
            chunk = shares(range(share, share + 1))
            if not chunk.size:
                continue
            if share not in mine:
                ops.append(Recv(before, chunk, step))
                latest = chunk
            if share not in theirs:
                ops.append(Send(following, chunk, step + 1, latest if share in mine else None))
        return tuple(ops)

    return Plan("bcast", label, n_units, ring[0], Programs(n, program_of))


def price_scatter_collection(model: GridModel, ring: Sequence[int], n_bytes: int) -> float:
    """Return the seconds until the last rank has the last share, for shares of equal length.

    This simulates all messages, those of one step around the ring at once.
    """
    n = len(ring)
    place = np.arange(n)
    cluster = np.array([model.grid.cluster_of[rank] for rank in ring])
    n_shares = np.array([len(_span(v, n)) for v in range(n)])
    counts, size_at = np.unique(n_shares, return_inverse=True)
    gap_s, one_way_s = model.gap_and_one_way_s(counts * (n_bytes / n))
    have, free = _scatter(cluster, size_at, gap_s, one_way_s)
    got = have.copy()
    following = np.roll(cluster, -1)
    gap, one_way = gap_s[cluster, following, 0], one_way_s[cluster, following, 0]
    last = have.max()
    for step in range(n - 1):
        share = (place - step) % n
        sends = np.roll(~_holds(np.roll(share, 1), place, n_shares), -1)
        start = np.maximum(got, free)
        free = np.where(sends, start + gap, free)
        got = np.roll(np.where(sends, start + one_way, np.roll(have, -1)), 1)
        last = max(last, got.max())
    return float(last)


def _holds(share: np.ndarray, place: np.ndarray, n_shares: np.ndarray) -> np.ndarray:
    """Return whether each place of the ring got ``share`` from the tree."""
    return np.asarray((share >= place) & (share < place + n_shares))


def _scatter(
    cluster: np.ndarray, size_at: np.ndarray, gap_s: np.ndarray, one_way_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return when each place has its shares and when its interface is free again, (n,) each."""
    n = len(cluster)
    have, free = np.zeros(n), np.zeros(n)
    for v, children in enumerate(find_shape("binomial").children(n)):
        free[v] = have[v]
        for child in children:
            size = size_at[child]
            have[child] = free[v] + one_way_s[cluster[v], cluster[child], size]
            free[v] += gap_s[cluster[v], cluster[v], size]
    return have, free


PREFIX = "plain-"
"""Prefix of a strategy's name in settings. Without it, ``flat`` is a tree of clusters."""


DEGREES = (2, 3, 4, 6, 8, 12, 16)
"""Degrees of k-chains; those below the number of ranks are tried."""


class Strategy(Struct, frozen=True):
    """A tree of the papers' tables: its shape, and whether it has segments or a rendezvous."""

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
    """Return ``shape`` over all ranks, in rank order from ``root`` on and around."""
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
    formula_s = closed_form_s(strategy.name, model, n_bytes)
    return [
        Candidate(name, label, predicted_s, build, closed_form_s=formula_s, segment_bytes=n_bytes)
    ]


def _whole_s(strategy: Strategy, model: GridModel, tree: RankTree, n_bytes: int) -> float:
    """Return the seconds of a broadcast in one piece."""
    if strategy.rendezvous and n_bytes:
        return price_rendezvous(model, tree, n_bytes)
    costs = SegmentCosts(model, n_bytes, np.array([max(n_bytes, 1)]))
    return float(price_ranks(costs, tree).total_s[0])


def _segmented(
    strategy: str, shape: str, tree: RankTree, model: GridModel, n_bytes: int, degree: int = 2
) -> Candidate:
    """Return the candidate of ``tree`` at its best segment size."""
    segment, total_s = best_segment(model, n_bytes, lambda costs: price_ranks(costs, tree))
    name = PREFIX + strategy
    label = f"{shape} in rank order; {segments_label(n_bytes, segment)}"

    def build(n_units: int) -> Plan:
        return plan_bcast([tree], n_units, min(segment, max(n_units, 1)), f"{name}: {label}")

    formula_s = closed_form_s(strategy, model, n_bytes, segment, degree)
    return Candidate(name, label, total_s, build, closed_form_s=formula_s, segment_bytes=segment)


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
    plan = partial(plan_scatter_collection, ring)
    predicted_s = price_scatter_collection(model, ring, n_bytes)
    formula_s = closed_form_s("scatter-collection", model, n_bytes)
    return [Candidate.planned(name, label, predicted_s, plan, closed_form_s=formula_s)]


def _register(
    name: str,
    good_for: str,
    candidates: Callable[[GridModel, int, int], list[Candidate]],
    max_clusters: int = 0,
) -> None:
    source = CLOSED_FORMS[name].source
    register("bcast", Algorithm(PREFIX + name, good_for, source, candidates, max_clusters))


for _strategy in TREES:
    _register(
        _strategy.name,
        _strategy.good_for,
        lambda model, n_bytes, root, strategy=_strategy: _tree(strategy, model, n_bytes, root),  # type: ignore[misc]
    )


_register("k-chain", "long messages among many ranks: shorter chains, a busier root", _k_chains)


_register(
    "scatter-collection",
    "long messages among many ranks, each sending twice",
    _collection,
    max_clusters=1,
)
