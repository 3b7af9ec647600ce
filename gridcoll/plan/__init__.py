"""What each rank does, as data; its readings; and the choice among plans."""

from gridcoll.plan.check import check_plan
from gridcoll.plan.choose import REGISTRIES, Candidate, Choice, choose
from gridcoll.plan.collectives import (
    allreduce_candidates,
    alltoall_candidates,
    bcast_candidates,
    reduce_candidates,
)
from gridcoll.plan.dataflow import Dataflow, dataflow
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send
from gridcoll.plan.plan import Plan, Program, Programs

__all__ = [
    "REGISTRIES",
    "Candidate",
    "Choice",
    "Chunk",
    "Copy",
    "Dataflow",
    "Op",
    "Plan",
    "Program",
    "Programs",
    "Recv",
    "Reduce",
    "Send",
    "allreduce_candidates",
    "alltoall_candidates",
    "bcast_candidates",
    "check_plan",
    "choose",
    "dataflow",
    "reduce_candidates",
]
