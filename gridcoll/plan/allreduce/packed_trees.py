"""Allreduce up and down trees, each with as much of the message as interfaces and links can carry.

For messages of middle sizes, trees have several roots, which exchange partial results
(`plan.meeting_trees`).
"""

from __future__ import annotations

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.bcast.packed_trees import PACKED_TREES, SOURCE, packed_candidates
from gridcoll.plan.multi_tree import plan_allreduce_up_down
from gridcoll.plan.registry import Candidate, algorithm

GOOD_FOR = "from 8 KiB on where interfaces, links or distances are unlike: slow ones pass on little"


@algorithm("allreduce", PACKED_TREES, GOOD_FOR, SOURCE)
def _candidates(model: GridModel, n_bytes: int, _root: int) -> list[Candidate]:
    return packed_candidates(model, n_bytes, -1, plan_allreduce_up_down, "; up and down")
