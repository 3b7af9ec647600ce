"""BottomUp with a look-ahead, which paper 000 (§6) suggests and leaves open.

The look-ahead is ECEF-LA's: F_j = min over waiting k of g_jk + L_jk, small where j will be a good
sender. Its rule chooses the largest g_ij + L_ij + T_j - F_j over waiting j, each by its quickest
way: slow clusters first, and of two as slow the one that can pass the message on sooner.
"""

from __future__ import annotations

from functools import partial

from gridcoll.schedule.batch_greedy import run_batch_greedy
from gridcoll.schedule.bottom_up import slowest
from gridcoll.schedule.ecef import nearest
from gridcoll.schedule.greedy import run_greedy
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.look_ahead import Extreme
from gridcoll.schedule.schedule import Schedule


def bottom_up_la(instance: Instance) -> Schedule:
    """Max over waiting j of min over reached i of g_ij + L_ij + T_j - F_j."""
    return run_greedy(instance, partial(slowest, look_ahead=nearest))


bottom_up_la_batch = partial(run_batch_greedy, upwards=True, look_ahead=Extreme)
"""`bottom_up_la` on every instance."""
