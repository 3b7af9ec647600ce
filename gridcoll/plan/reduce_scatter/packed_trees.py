"""Reduce-scatter up a tree per owner, as an allgather goes down them."""

from __future__ import annotations

from gridcoll.plan.allgather.packed_trees import GOOD_FOR, SOURCE, packed_candidates
from gridcoll.plan.bcast.packed_trees import PACKED_TREES
from gridcoll.plan.reduce_scatter.mirror import plan_reduce_scatter
from gridcoll.plan.registry import Algorithm, register

register(
    "reduce_scatter",
    Algorithm(
        PACKED_TREES,
        GOOD_FOR,
        f"{SOURCE}; backwards",
        lambda model, n_bytes, root: packed_candidates(
            model, n_bytes, plan_reduce_scatter, upwards=True
        ),
    ),
)
