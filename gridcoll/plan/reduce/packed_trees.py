"""Reduce up packed trees, whose shares of the message fit interfaces and links."""

from __future__ import annotations

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.packed_trees import GOOD_FOR, PACKED_TREES, SOURCE, packed_candidates
from gridcoll.plan.multi_tree import plan_reduce_up
from gridcoll.plan.registry import Candidate, algorithm


@algorithm("reduce", PACKED_TREES, GOOD_FOR, f"{SOURCE}; backwards")
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    return packed_candidates(model, n_bytes, root, plan_reduce_up, "; backwards", upwards=True)
