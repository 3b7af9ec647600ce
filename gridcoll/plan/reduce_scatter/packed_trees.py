"""Reduce-scatter up one tree per owner: an allgather down these trees, run backwards."""

from __future__ import annotations

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.allgather.packed_trees import GOOD_FOR, SOURCE, packed_candidates
from gridcoll.plan.bcast.packed_trees import PACKED_TREES
from gridcoll.plan.reduce_scatter.mirror import plan_reduce_scatter
from gridcoll.plan.registry import Candidate, algorithm


@algorithm("reduce_scatter", PACKED_TREES, GOOD_FOR, f"{SOURCE}; backwards")
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    return packed_candidates(model, n_bytes, plan_reduce_scatter, upwards=True)
