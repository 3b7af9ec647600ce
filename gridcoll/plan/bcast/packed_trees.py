"""Broadcast down packed trees, whose shares of the message fit interfaces and links.

`packed_candidates` is also used for reductions up such trees.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.segments import segments_label
from gridcoll.plan.multi_tree import plan_bcast_down
from gridcoll.plan.pacing import root_ahead_s
from gridcoll.plan.packed_trees import PackedTrees, best_packed, is_offered, label_of
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Candidate, algorithm

PACKED_TREES = "packed-trees"
GOOD_FOR = "long messages where interfaces, links or distances are unlike: slow ones pass on little"
SOURCE = "gridcoll; fractional packing of trees (Edmonds 1973; Beaumont et al. 2005)"


def packed_candidates(
    model: GridModel,
    n_bytes: int,
    root: int,
    write: Callable[[PackedTrees, int, int, str, float], Plan],
    suffix: str = "",
    upwards: bool = False,
) -> list[Candidate]:
    """Return one candidate, or none if packed trees are not offered.

    ``root`` is -1 for trees used up and down. ``write`` returns the plan, given the trees, the
    units of the message and of a segment, a label, and the seconds per unit. ``suffix`` ends the
    label. ``upwards``: the trees lead to the root, in a reduction.
    """
    found = best_packed(model, n_bytes, root, upwards) if is_offered(model, n_bytes) else None
    if found is None:
        return []
    trees, period_s = found.trees, found.period_s
    label = f"{label_of(found)}; {segments_label(n_bytes, found.segment_bytes)}{suffix}"

    def build(n_units: int) -> Plan:
        # There are as many segments as uses, whatever the length.
        segment = max(-(-n_units // len(trees.uses)), 1)
        return write(trees, n_units, segment, f"{PACKED_TREES}: {label}", period_s / segment)

    return [Candidate(PACKED_TREES, label, found.total_s, build, segment_bytes=found.segment_bytes)]


@algorithm("bcast", PACKED_TREES, GOOD_FOR, SOURCE)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    ahead_s = root_ahead_s(model, model.grid.cluster_of[root])
    return packed_candidates(model, n_bytes, root, partial(plan_bcast_down, ahead_s=ahead_s))
