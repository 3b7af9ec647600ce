"""The collectives: how each is stated and planned, and the algorithms to choose among.

A file of candidates registers them when imported; a new one is one more name here.
"""

from gridcoll.plan.collectives import (
    allgather_candidates,
    allreduce_candidates,
    allreduce_everyone,
    alltoall_candidates,
    alltoall_links,
    bcast_candidates,
    bcast_several,
    bcast_strategies,
    rank_order_candidates,
    reduce_candidates,
    scatter_candidates,
)

__all__ = [
    "allgather_candidates",
    "allreduce_candidates",
    "allreduce_everyone",
    "alltoall_candidates",
    "alltoall_links",
    "bcast_candidates",
    "bcast_several",
    "bcast_strategies",
    "rank_order_candidates",
    "reduce_candidates",
    "scatter_candidates",
]
