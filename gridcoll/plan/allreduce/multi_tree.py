"""Allreduce up several trees and down again, with roots in the cluster nearest to all others."""

from __future__ import annotations

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.multi_tree import GOOD_FOR, MULTI_TREE, SOURCE, is_offered, label_of
from gridcoll.plan.multi_tree import plan_allreduce_up_down
from gridcoll.plan.multi_tree_cost import best_trees, nearest_to_all, segments_of
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Candidate, algorithm


@algorithm("allreduce", MULTI_TREE, GOOD_FOR, SOURCE)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    if not is_offered(model, n_bytes):
        return []
    found = best_trees(model, n_bytes, nearest_to_all(model), -1, both_ways=True)
    label = f"{label_of(found, n_bytes)}; up and down"

    def build(n_units: int) -> Plan:
        segment, unit_s = segments_of(found, n_units, n_bytes)
        name = f"{MULTI_TREE}: {label}"
        return plan_allreduce_up_down(found.trees, n_units, segment, name, unit_s)

    return [Candidate(MULTI_TREE, label, found.total_s, build, segment_bytes=found.segment_bytes)]
