"""Ways to broadcast over a grid: the papers' schedules, and what pipelining makes possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import lcm

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.choose import Algorithm, Candidate, register
from gridcoll.plan.collectives.bcast import plan_bcast
from gridcoll.plan.gridtree import GridTree
from gridcoll.plan.plan import Plan
from gridcoll.plan.predict import SegmentCosts, TreePrice, price_tree
from gridcoll.plan.predict_several import load_of, price_several
from gridcoll.schedule import HEURISTICS, Heuristic, Schedule
from gridcoll.schedule.batch import Batch
from gridcoll.schedule.trees import SHAPES
from gridcoll.topology.units import format_size

SMALLEST_SEGMENT = 1024
N_LEAST_SEGMENTS = 8
"""Several trees need this many of the smallest segments to share out."""

N_SCALAR_CLUSTERS = 16
MOST_CLUSTERS_ALL = 24
"""With more clusters, only the quick heuristics are tried unasked, and no trees by the dozen."""

QUICK_HEURISTICS = ("fef", "ecef", "ecef-la-max-t")

MOST_LANES = 16
MOST_STARS = 24
GAIN_WORTH_LANES = 1.15
"""Several flows must carry this much more than one for lanes to be tried."""

INSIDE_SHAPES = tuple(name for name in SHAPES if name != "fan")

_STEPS = np.array([0.7, 0.84, 1.0, 1.19, 1.41])


def segment_sizes(n_bytes: int) -> np.ndarray:
    """The papers' first pass: ``m / 2^i`` down to the smallest sensible segment."""
    sizes = [max(n_bytes, 1)]
    while sizes[-1] // 2 >= SMALLEST_SEGMENT:
        sizes.append(-(-sizes[-1] // 2))
    return np.array(sizes)


@lru_cache(maxsize=64)
def _costs(model_key: _ModelKey, n_bytes: int, sizes: tuple[int, ...]) -> SegmentCosts:
    return SegmentCosts(model_key.model, n_bytes, np.array(sizes))


class _ModelKey:
    """A model as a key, by identity: hashing its numbers would cost more than pricing."""

    def __init__(self, model: GridModel) -> None:
        self.model = model

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ModelKey) and other.model is self.model


def _first_pass(model: GridModel, n_bytes: int) -> SegmentCosts:
    return _costs(_ModelKey(model), n_bytes, tuple(int(s) for s in segment_sizes(n_bytes)))


@lru_cache(maxsize=64)
def _inside(key: _ModelKey, n_bytes: int) -> np.ndarray:
    """Internal broadcasts by cluster, shape and first-pass segment size, (C, shapes, S)."""
    return _first_pass(key.model, n_bytes).inside_s(INSIDE_SHAPES)


def _tree_label(tree: GridTree, model: GridModel) -> str:
    names = [cluster.name for cluster in model.grid.clusters]
    hops = ", ".join(f"{names[s]}→{names[r]}" for s, r in tree.transfers)
    shapes = sorted(
        {s for s, c in zip(tree.shapes, model.grid.clusters, strict=True) if len(c) > 1}
    )
    inside = f"{'/'.join(shapes)} inside" if shapes else ""
    return "; ".join(part for part in (hops, inside) if part)


def _best_segment(
    model: GridModel, n_bytes: int, price: Callable[[SegmentCosts], TreePrice]
) -> tuple[int, float]:
    """Segment size and predicted time: the halving pass, then hill climbing around its best."""
    costs = _first_pass(model, n_bytes)
    totals = price(costs).total_s
    best = int(np.argmin(totals))
    size, total = int(costs.segment_bytes[best]), float(totals[best])
    most = 1 if model.n_clusters > MOST_CLUSTERS_ALL else 20
    for _ in range(most if len(costs.segment_bytes) > 1 else 0):
        around = np.clip((size * _STEPS).astype(int), SMALLEST_SEGMENT, n_bytes)
        near = SegmentCosts(model, n_bytes, around)
        totals = price(near).total_s
        best = int(np.argmin(totals))
        if totals[best] >= total * (1 - 1e-6):
            break
        size, total = int(around[best]), float(totals[best])
    return size, total


def _candidate(
    name: str,
    model: GridModel,
    n_bytes: int,
    trees: Sequence[GridTree],
    stored_s: float | None = None,
) -> Candidate:
    """``trees`` at their best segment size."""
    root_cluster = model.grid.cluster_of[trees[0].root]
    tree = trees[0]
    if len(trees) == 1:

        def price(costs: SegmentCosts) -> TreePrice:
            return price_tree(costs, root_cluster, tree.transfers, tree.shapes, tree.relays)
    else:
        load = load_of(trees, model.grid)

        def price(costs: SegmentCosts) -> TreePrice:
            return price_several(costs, root_cluster, trees, load)

    segment, total = _best_segment(model, n_bytes, price)
    several = f"{len(trees)} trees as " if len(trees) > 1 else ""
    label = f"{several}{_tree_label(tree, model)}; {_segments_label(n_bytes, segment)}"

    def build(n_units: int) -> Plan:
        size = min(segment, max(n_units, 1))
        ranks = [each.expand(model.grid) for each in trees]
        return plan_bcast(ranks, n_units, size, f"{name}: {label}")

    return Candidate(name, label, total, build, stored_s, segment)


def _segments_label(n_bytes: int, segment: int) -> str:
    return "one segment" if segment >= n_bytes else f"{format_size(segment)} segments"


def _scheduled(heuristic: Heuristic, model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """The heuristic's tree, with each cluster's best internal shape, at the best segment size.

    The heuristic sees the papers' instance: L, g(m) and the best internal broadcast of the whole
    message. Its store-and-forward makespan is kept for comparison.
    """
    if model.n_clusters == 1:
        return []
    root_cluster = model.grid.cluster_of[root]
    inside = _inside(_ModelKey(model), n_bytes)
    schedule = _schedule(
        heuristic, model.latency_s, model.gap_s(n_bytes), inside.min(axis=(1, 2)), root_cluster
    )
    transfers = tuple((int(s), int(r)) for s, r in schedule.transfers)
    by_shape = inside.min(axis=2).argmin(axis=1)
    shapes = tuple(INSIDE_SHAPES[k] for k in by_shape)
    tree = GridTree(root, transfers, shapes, (0,) * model.n_clusters)
    return [_candidate(heuristic.name, model, n_bytes, [tree], schedule.makespan_s)]


def _schedule(
    heuristic: Heuristic,
    latency_s: np.ndarray,
    gap_s: np.ndarray,
    internal_s: np.ndarray,
    root: int,
) -> Schedule:
    """The heuristic's schedule; for many clusters by its vectorised form, which is its equal."""
    if len(internal_s) <= N_SCALAR_CLUSTERS:
        return heuristic(latency_s, gap_s, internal_s, root)
    outside = ~np.eye(len(internal_s), dtype=bool)
    batch = Batch((latency_s * outside)[None], (gap_s * outside)[None], internal_s[None], root)
    return heuristic.pick_batch(batch).schedule(0)


def _inside_only(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """One cluster: every shape of the papers' tables."""
    if model.n_clusters > 1 or model.grid.n_ranks == 1:
        return []
    return [
        _candidate("inside", model, n_bytes, [GridTree(root, (), (shape,), (0,))])
        for shape in INSIDE_SHAPES
    ]


def shortest_path(cost: np.ndarray, start: int) -> tuple[int, ...]:
    """Visit all of ``cost``'s vertices from ``start``: exact to nine vertices, greedy beyond."""
    n = len(cost)
    if n > 9:
        path, left = [start], np.array(cost, dtype=float)
        for _ in range(n - 1):
            left[:, path[-1]] = np.inf
            path.append(int(np.argmin(left[path[-1]])))
        return tuple(path)
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {
        (1 << start, start): (0.0, (start,))
    }
    for _ in range(n - 1):
        longer: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        for (seen, last), (length, path_so_far) in best.items():
            for v in range(n):
                if not seen >> v & 1:
                    key = (seen | 1 << v, v)
                    offer = (length + float(cost[last, v]), (*path_so_far, v))
                    if key not in longer or offer < longer[key]:
                        longer[key] = offer
        best = longer
    return min(best.values())[1]


def _chain(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """A chain over all ranks in cluster order: no rank sends anything twice."""
    if model.grid.n_ranks == 1:
        return []
    root_cluster = model.grid.cluster_of[root]
    orders = {
        shortest_path(model.latency_s, root_cluster),
        shortest_path(model.latency_s + model.gap_s(n_bytes), root_cluster),
    }
    return [
        _candidate("chain", model, n_bytes, [_chain_tree(model, root, order)])
        for order in sorted(orders)
    ]


def _chain_tree(model: GridModel, root: int, order: Sequence[int], lane: int = 0) -> GridTree:
    return _chains(model, root, tuple(pairwise(order)), lane)


def _chains(
    model: GridModel, root: int, transfers: tuple[tuple[int, int], ...], lane: int
) -> GridTree:
    """A chain inside every cluster, whose last rank relays."""
    clusters = model.grid.clusters
    relays = tuple(len(cluster) - 1 for cluster in clusters)
    return GridTree(root, transfers, ("chain",) * len(clusters), relays, lane)


def _lanes(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Several chains that enter and leave every cluster at other ranks: more flows per WAN link.

    As many lanes as are predicted to pay, where together they carry more than one flow.
    """
    if model.n_clusters == 1 or n_bytes < N_LEAST_SEGMENTS * SMALLEST_SEGMENT:
        return []
    source = model.grid.cluster_of[root]
    large = float(1 << 20)
    one_flow = large / model.gap_s(large)
    order = shortest_path(model.latency_s, source)
    hops = list(pairwise(order))
    if all(model.link_bytes_per_s[hop] < GAIN_WORTH_LANES * one_flow[hop] for hop in hops):
        return []
    n_ends = max(len(model.grid.clusters[source]) - 1, 1)
    most = min(MOST_LANES, n_ends * max(len(model.grid.clusters[c]) for c in order[1:]))
    tried = [
        _candidate(
            "lanes", model, n_bytes, [_chain_tree(model, root, order, k) for k in range(n_lanes)]
        )
        for n_lanes in (2, 3, 4, 6, 8, 12, 16)
        if n_lanes <= most
    ]
    return [min(tried, key=lambda c: c.predicted_s or 0.0)] if tried else []


def _stars(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Trees of few hops: each segment enters a cluster at another rank, which sends it to all.

    A chain passes through every rank in turn. Here every rank is the entry of some segments and
    sends those to its whole cluster, so that a segment is two hops from the next cluster; all
    interfaces are as busy as in a chain.
    """
    sizes = [len(cluster) for cluster in model.grid.clusters]
    source = model.grid.cluster_of[root]
    if max(sizes) < 3 or n_bytes < N_LEAST_SEGMENTS * SMALLEST_SEGMENT:
        return []
    order = shortest_path(model.latency_s, source)
    shapes = tuple("fan" if c == source else "flat" for c in range(len(sizes)))
    relays = tuple(min(1, size - 1) for size in sizes)
    transfers = tuple(pairwise(order))
    n_ends = max(sizes[source] - 1, 1)
    even = lcm(n_ends, *(sizes[c] for c in order[1:]))
    counts = {n for n in (n_ends, 2 * n_ends, even, max(sizes)) if 2 <= n <= MOST_STARS}
    tried = [
        _candidate(
            "stars",
            model,
            n_bytes,
            [GridTree(root, transfers, shapes, relays, lane) for lane in range(n)],
        )
        for n in sorted(counts)
    ]
    return [min(tried, key=lambda c: c.predicted_s or 0.0)] if tried else []


def _split(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """A tree per cluster: the root sends each its share, and it sends that to all others.

    All links between clusters work at once, each carrying one share instead of the whole; the
    thing to do where links, not interfaces, are thin.
    """
    source = model.grid.cluster_of[root]
    others = [c for c in shortest_path(model.latency_s, source) if c != source]
    if len(others) < 2 or n_bytes < N_LEAST_SEGMENTS * SMALLEST_SEGMENT:
        return []
    trees = [
        _chains(model, root, ((source, first), *((first, c) for c in others if c != first)), lane)
        for lane, first in enumerate(others)
    ]
    return [_candidate("split", model, n_bytes, trees)]


def _register_heuristic(heuristic: Heuristic) -> None:
    register(
        "bcast",
        Algorithm(
            heuristic.name,
            heuristic.good_for,
            heuristic.source,
            lambda model, n_bytes, root: _scheduled(heuristic, model, n_bytes, root),
            1 << 30 if heuristic.name in QUICK_HEURISTICS else MOST_CLUSTERS_ALL,
        ),
    )


register(
    "bcast",
    Algorithm(
        "chain",
        "long messages: a pipeline over all ranks, cluster by cluster",
        "gridcoll; inside a cluster 003 Table 1",
        _chain,
    ),
)
register(
    "bcast",
    Algorithm(
        "lanes",
        "long messages over links that one flow cannot fill",
        "gridcoll",
        _lanes,
        MOST_CLUSTERS_ALL,
    ),
)
register(
    "bcast",
    Algorithm(
        "stars",
        "middle sizes: a chain's throughput over fewer hops",
        "gridcoll; inside a cluster a pipelined scatter/collection (002 Table 1)",
        _stars,
        MOST_CLUSTERS_ALL,
    ),
)
register(
    "bcast",
    Algorithm(
        "split",
        "long messages where links between clusters are thinner than interfaces",
        "gridcoll; scatter and allgather between clusters, as 002 Table 1 inside one",
        _split,
        MOST_CLUSTERS_ALL,
    ),
)
for _heuristic in HEURISTICS.values():
    if _heuristic.name not in ("optimal", "best", "mixed"):
        _register_heuristic(_heuristic)
register(
    "bcast",
    Algorithm(
        "inside",
        "one cluster: flat, chain, binary, binomial or k-chain, segmented",
        "002 and 003, Table 1",
        _inside_only,
    ),
)
