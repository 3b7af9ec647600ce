"""Candidates of trees at their best segment size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np

from gridcoll.constants import LINK_PACE, TIE_FACTOR
from gridcoll.model.closed_forms import CLOSED_FORMS, Call
from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.pacing import paced_by_links, root_ahead_s, thin_links
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Candidate
from gridcoll.plan.tree_cost import SegmentCosts, TreePrice, load_of, price_several, price_tree
from gridcoll.plan.trees import LARGEST_SEGMENT, SMALLEST_SEGMENT, GridTree
from gridcoll.schedule.trees import SHAPES
from gridcoll.topology.units import format_size

MANY_CLUSTERS = 16
"""With more clusters than this, the choice itself must be kept cheap."""


INSIDE_SHAPES = tuple(name for name in SHAPES if name != "fan")
"""Shapes inside clusters."""

MORE_CHAINS = ("4-chain", "6-chain", "8-chain")
"""Shapes also tried inside clusters if there are few clusters: they are the fastest for short
messages among many ranks."""

TINIEST_SEGMENT = 64
"""Bytes of the smallest segment ever tried: about as many as the headers of its packet."""

WORTH_HALVING = 0.8
"""Segments are halved below `SMALLEST_SEGMENT` while the half takes less than this fraction of the
time."""

BUSY_ALL_THE_TIME = 0.9
"""Something is busy for more than this fraction of the time only if a message is so long that the
way to the last rank hardly matters, nor does a pace."""

_STEPS = np.array([0.7, 0.84, 1.0, 1.19, 1.41])
"""Factors of the segment size that are tried in a step of hill climbing."""


def segment_sizes(n_bytes: int, least_bytes: int = SMALLEST_SEGMENT) -> np.ndarray:
    """Return the sizes of the papers' first pass: ``m / 2^i`` down to ``least_bytes``."""
    sizes = [max(n_bytes, 1)]
    while sizes[-1] // 2 >= least_bytes:
        sizes.append(-(-sizes[-1] // 2))
    return np.array([size for size in sizes if size <= LARGEST_SEGMENT])


@lru_cache(maxsize=64)
def _least_segment(key: ModelKey) -> int:
    """Return the bytes of the smallest segment to try.

    They are less than `SMALLEST_SEGMENT` if, in a measured model, even shorter segments spend most
    of their time on the wire of the slowest link. A declared model does not know what such short
    messages cost.
    """
    model, least = key.model, SMALLEST_SEGMENT
    if model.origin != "measured":
        return least
    while least // 2 >= TINIEST_SEGMENT:
        gap_s, half_s = model.gap_s(least), model.gap_s(least // 2)
        slowest = np.unravel_index(gap_s.argmax(), gap_s.shape)
        if half_s[slowest] >= WORTH_HALVING * gap_s[slowest]:
            break
        least //= 2
    return least


@lru_cache(maxsize=64)
def _costs(model_key: ModelKey, n_bytes: int, sizes: tuple[int, ...]) -> SegmentCosts:
    return SegmentCosts(model_key.model, n_bytes, np.array(sizes))


def _first_pass(model: GridModel, n_bytes: int) -> SegmentCosts:
    key = ModelKey(model)
    return _costs(key, n_bytes, tuple(int(s) for s in segment_sizes(n_bytes, _least_segment(key))))


def inside_shapes(model: GridModel) -> tuple[str, ...]:
    """Return the shapes that are tried inside the clusters of ``model``."""
    return INSIDE_SHAPES if model.n_clusters > MANY_CLUSTERS else (*INSIDE_SHAPES, *MORE_CHAINS)


@lru_cache(maxsize=64)
def best_inside(key: ModelKey, n_bytes: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the time of each cluster's best internal broadcast, (C,), and its shape.

    The segments are those of the first pass.
    """
    shapes = inside_shapes(key.model)
    by_shape = _first_pass(key.model, n_bytes).inside_s(shapes).min(axis=2)
    return by_shape.min(axis=1), tuple(shapes[k] for k in by_shape.argmin(axis=1))


def _tree_label(tree: GridTree, model: GridModel) -> str:
    names = [cluster.name for cluster in model.grid.clusters]
    hops = ", ".join(f"{names[s]}→{names[r]}" for s, r in tree.transfers)
    shapes = sorted(
        {s for s, c in zip(tree.shapes, model.grid.clusters, strict=True) if len(c) > 1}
    )
    inside = f"{'/'.join(shapes)} inside" if shapes else ""
    return "; ".join(part for part in (hops, inside) if part)


def _several_label(trees: Sequence[GridTree]) -> str:
    n_turns = list(Counter(trees).values())
    if len(n_turns) == 1:
        return ""
    uneven = f" in turns of {':'.join(map(str, n_turns))}" if len(set(n_turns)) > 1 else ""
    return f"{len(n_turns)} trees{uneven} as "


def best_segment(
    model: GridModel, n_bytes: int, price: Callable[[SegmentCosts], TreePrice], as_good: float = 1.0
) -> tuple[int, float]:
    """Return segment size and predicted time: the halving pass, then hill climbing from its best.

    If larger first-pass sizes take at most ``as_good`` times the least time, the largest of them is
    returned.
    """
    costs = _first_pass(model, n_bytes)
    halved = price(costs).total_s
    best = int(np.argmin(halved))
    size, total = int(costs.segment_bytes[best]), float(halved[best])
    most = 1 if model.n_clusters > MANY_CLUSTERS else 20
    least, largest = _least_segment(ModelKey(model)), min(n_bytes, LARGEST_SEGMENT)
    for _ in range(most if len(costs.segment_bytes) > 1 else 0):
        around = np.clip((size * _STEPS).astype(int), least, largest)
        near = SegmentCosts(model, n_bytes, around)
        totals = price(near).total_s
        best = int(np.argmin(totals))
        if totals[best] >= total * (1 - 1e-6):
            break
        size, total = int(around[best]), float(totals[best])
    for larger, larger_s in zip(costs.segment_bytes, halved, strict=True):
        if larger > size and larger_s <= as_good * total:
            return int(larger), float(larger_s)
    return size, total


@lru_cache(maxsize=256)
def _best_segment_of(
    key: ModelKey,
    n_bytes: int,
    transfers: tuple[tuple[int, int], ...],
    shapes: tuple[str, ...],
    relays: tuple[int, ...],
) -> tuple[int, float, float]:
    """Return `best_segment` of one tree, and how long its busiest part is busy with the message.

    It is cached: many heuristics and roots share a tree.
    """

    def price(costs: SegmentCosts) -> TreePrice:
        return price_tree(costs, transfers, shapes, relays)

    segment, total_s = best_segment(key.model, n_bytes, price, TIE_FACTOR)
    period_s = float(price(SegmentCosts(key.model, n_bytes, np.array([segment]))).period_s[0])
    return segment, total_s, period_s * n_bytes / max(segment, 1)


def tree_candidate(
    name: str,
    model: GridModel,
    n_bytes: int,
    trees: Sequence[GridTree],
    store_and_forward_s: float | None = None,
    *,
    paced: bool = False,
) -> Candidate:
    """Return the candidate of ``trees`` at their best segment size.

    With ``paced``, sends are no faster than links carry them. This is for trees in which a rank
    that sends to another cluster sends little else. Of other single trees, the root sends no faster
    than the busiest link or interface passes segments on, if there are thin links: their queues
    would drop packets of a long message.
    """
    tree, busy_s = trees[0], 0.0
    if len(trees) == 1:
        segment, total, busy_s = _best_segment_of(
            ModelKey(model), n_bytes, tree.transfers, tree.shapes, tree.relays
        )
    else:
        load = load_of(trees, model.grid)

        def price(costs: SegmentCosts) -> TreePrice:
            return price_several(costs, trees, load)

        segment, total = best_segment(model, n_bytes, price, TIE_FACTOR)
    label = f"{_several_label(trees)}{_tree_label(tree, model)}; {segments_label(n_bytes, segment)}"

    def build(n_units: int) -> Plan:
        size = min(segment, max(n_units, 1))
        expanded = {each: each.expand(model.grid) for each in dict.fromkeys(trees)}
        ranks = [expanded[each] for each in trees]
        unit_s = ahead_s = 0.0
        if not paced and busy_s > BUSY_ALL_THE_TIME * total and thin_links(model).any():
            unit_s = LINK_PACE * busy_s / max(n_units, 1)
            ahead_s = root_ahead_s(model, model.grid.cluster_of[tree.root])
        plan = plan_bcast(ranks, n_units, size, f"{name}: {label}", unit_s, ahead_s)
        return paced_by_links(plan, model) if paced else plan

    return Candidate(name, label, total, build, store_and_forward_s, segment)


def segments_label(n_bytes: int, segment: int) -> str:
    return "one segment" if segment >= n_bytes else f"{format_size(segment)} segments"


def closed_form_s(
    name: str, model: GridModel, n_bytes: int, segment: int = 0, degree: int = 2
) -> float | None:
    """Return the time of strategy ``name`` by the papers' closed form, which is for one cluster.

    Returns None for several clusters.
    """
    if model.n_clusters > 1:
        return None
    size = segment or max(n_bytes, 1)
    call = Call(model.link(0, 0), model.grid.n_ranks, n_bytes, size, degree)
    return CLOSED_FORMS[name].cost_s(call)


def shape_closed_form_s(shape: str, model: GridModel, n_bytes: int, segment: int) -> float | None:
    """Return the time of ``shape``, segmented or not, by closed form; None if there is none."""
    head, _, tail = shape.rpartition("-")
    if tail == "chain" and head:
        return closed_form_s("k-chain", model, n_bytes, segment, int(head))
    name = shape if segment >= n_bytes else f"segmented-{shape}"
    return closed_form_s(name, model, n_bytes, segment) if name in CLOSED_FORMS else None
