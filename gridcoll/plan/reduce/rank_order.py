"""Reduce in rank order: the same bits from every plan and for every root."""

from gridcoll.plan.allreduce.rank_order import GOOD_FOR, SOURCE, reduce_in_rank_order
from gridcoll.plan.registry import algorithm

algorithm("reduce", "rank-order", GOOD_FOR, SOURCE, reproducible=True)(reduce_in_rank_order)
