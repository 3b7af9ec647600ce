"""Reduce up several trees: a broadcast down these trees, run backwards."""

from __future__ import annotations

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.multi_tree import GOOD_FOR, MULTI_TREE, SOURCE, is_offered, label_of
from gridcoll.plan.multi_tree import plan_reduce_up
from gridcoll.plan.multi_tree_cost import best_trees, segments_of
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Candidate, algorithm


@algorithm("reduce", MULTI_TREE, GOOD_FOR, f"{SOURCE}; backwards")
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    if not is_offered(model, n_bytes):
        return []
    found = best_trees(model, n_bytes, model.grid.cluster_of[root], root)
    label = f"{label_of(found, n_bytes)}; backwards"

    def build(n_units: int) -> Plan:
        segment, unit_s = segments_of(found, n_units, n_bytes)
        return plan_reduce_up(found.trees, n_units, segment, f"{MULTI_TREE}: {label}", unit_s)

    return [Candidate(MULTI_TREE, label, found.total_s, build, segment_bytes=found.segment_bytes)]
