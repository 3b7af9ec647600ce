"""Reduce in rank order: the same bits from every plan and for every root."""

from gridcoll.plan.allreduce.rank_order import GOOD_FOR, SOURCE, reduce_in_rank_order
from gridcoll.plan.registry import Algorithm, register

register(
    "reduce", Algorithm("rank-order", GOOD_FOR, SOURCE, reduce_in_rank_order, reproducible=True)
)
