"""The order of transfers between clusters: the papers' heuristics, newer ones, and the optimum."""

from gridcoll.schedule.anytime import best, warm_up
from gridcoll.schedule.batch import Batch, BatchSchedules
from gridcoll.schedule.instance import Accounting, Instance
from gridcoll.schedule.registry import HEURISTICS, Heuristic, find_heuristic
from gridcoll.schedule.schedule import (
    Schedule,
    Timeline,
    Transfer,
    children,
    make_schedule,
    parents,
    time_transfers,
    timeline,
)

__all__ = [
    "HEURISTICS",
    "Accounting",
    "Batch",
    "BatchSchedules",
    "Heuristic",
    "Instance",
    "Schedule",
    "Timeline",
    "Transfer",
    "best",
    "children",
    "find_heuristic",
    "make_schedule",
    "parents",
    "time_transfers",
    "timeline",
    "warm_up",
]
