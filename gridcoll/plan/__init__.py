"""What each rank does, as data; its readings; and the choice among plans."""

from gridcoll.plan import collectives
from gridcoll.plan.check import check_plan
from gridcoll.plan.choose import REGISTRIES, Candidate, Choice, choose
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
    "check_plan",
    "choose",
    "collectives",
    "dataflow",
]
