"""BottomUp with a look-ahead, which paper 000 (§6) suggests and leaves open.

The look-ahead is ECEF-LA's: F_j = min over waiting k of g_jk + L_jk, small where j will be a good
sender. Its rule chooses the largest g_ij + L_ij + T_j - F_j over waiting j, each by its quickest
way: slow clusters first, and of two as slow the one that can pass the message on sooner.
"""

from __future__ import annotations

from gridcoll.schedule.batch import Batch, BatchSchedules
from gridcoll.schedule.batch_greedy import run_batch_greedy
from gridcoll.schedule.greedy import Choice, Progress, run_greedy
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.look_ahead import Extreme
from gridcoll.schedule.schedule import Schedule


def bottom_up_la(instance: Instance) -> Schedule:
    """Max over waiting j of min over reached i of g_ij + L_ij + T_j - F_j."""
    return run_greedy(instance, _choose)


def _choose(progress: Progress) -> Choice:
    cost, own = progress.instance.cost_rows, progress.instance.internals
    keys = []
    for j in progress.waiting:
        nearest, sender = min((cost[i][j], i) for i in progress.reached)
        ahead = min((cost[j][k] for k in progress.waiting if k != j), default=0.0)
        keys.append((ahead - (nearest + own[j]), sender, j))
    _, sender, receiver = min(keys)
    return sender, receiver


def bottom_up_la_batch(batch: Batch) -> BatchSchedules:
    """`bottom_up_la` on every instance."""
    return run_batch_greedy(batch, upwards=True, look_ahead=Extreme(batch))
