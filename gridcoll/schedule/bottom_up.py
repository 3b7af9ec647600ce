"""BottomUp: the slowest cluster first, by its quickest way (paper 000, §5.3)."""

from __future__ import annotations

from functools import partial

from gridcoll.schedule.batch_greedy import run_batch_greedy
from gridcoll.schedule.greedy import Choice, LookAhead, Progress, run_greedy
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.schedule import Schedule


def slowest(progress: Progress, look_ahead: LookAhead = lambda *_: 0.0) -> Choice:
    """The waiting j of largest g_ij + L_ij + T_j, less the look-ahead, by its quickest way."""
    cost, own = progress.instance.cost_rows, progress.instance.internals
    keys = []
    for j in progress.waiting:
        nearest, sender = min((cost[i][j], i) for i in progress.reached)
        keys.append((look_ahead(progress, j) - (nearest + own[j]), sender, j))
    _, sender, receiver = min(keys)
    return sender, receiver


def bottom_up(instance: Instance) -> Schedule:
    """Max over waiting j of min over reached i of g_ij + L_ij + T_j.

    As the paper prints it: when the sender will be ready (RT_i) does not count. With RT_i the mean
    makespan for 10 clusters with the parameters of its Table 2 is 1.3 % longer.
    """
    return run_greedy(instance, slowest)


bottom_up_batch = partial(run_batch_greedy, upwards=True)
"""`bottom_up` on every instance."""
