"""Plans of collective calls as plain data, and functions that check, price and choose them."""

from gridcoll.plan.check import check_plan
from gridcoll.plan.choice import Choice
from gridcoll.plan.choose import choose, rerooted
from gridcoll.plan.dataflow import Dataflow, dataflow
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import REGISTRIES, Candidate, load_all

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
    "dataflow",
    "rerooted",
]

load_all()
