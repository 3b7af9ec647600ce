"""Early Completion Edge First and its look-aheads.

All choose the pair that minimises RT_i + g_ij + L_ij + F_j (paper 000, §4.3, §4.4, §5.1, §5.2;
paper 002, equations 4 to 7). F_j says how useful receiver j would be afterwards; it looks at the
clusters still waiting but for j itself, and is 0 when none is left.
"""

from __future__ import annotations

from functools import partial

from gridcoll.schedule.batch_greedy import run_batch_greedy
from gridcoll.schedule.greedy import Choice, LookAhead, Progress, run_greedy
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.look_ahead import Average, Extreme
from gridcoll.schedule.schedule import Schedule


def ecef(instance: Instance) -> Schedule:
    """F_j = 0: the receiver that can have the message first."""
    return _run(instance, lambda progress, j: 0.0)


def ecef_la(instance: Instance) -> Schedule:
    """F_j = min over waiting k of g_jk + L_jk."""
    return _run(instance, nearest)


def ecef_la_avg(instance: Instance) -> Schedule:
    """F_j = the average over waiting k of g_jk + L_jk (Bhat's "latency" is the whole transfer)."""
    return _run(instance, _average)


def ecef_la_avg_senders(instance: Instance) -> Schedule:
    """F_j = the average of g_ik + L_ik over reached i and j itself, and waiting k."""
    return _run(instance, _average_from_all)


def ecef_la_min_t(instance: Instance) -> Schedule:
    """F_j = min over waiting k of g_jk + L_jk + T_k (the papers' ECEF-LAt)."""
    return _run(instance, _nearest_end)


def ecef_la_max_t(instance: Instance) -> Schedule:
    """F_j = max over waiting k of g_jk + L_jk + T_k (the papers' ECEF-LAT)."""
    return _run(instance, _farthest_end)


def _run(instance: Instance, look_ahead: LookAhead) -> Schedule:
    def choose(progress: Progress) -> Choice:
        keys = []
        for j in progress.waiting:
            arrival, sender = progress.earliest(j)
            keys.append((arrival + look_ahead(progress, j), sender, j))
        _, sender, receiver = min(keys)
        return sender, receiver

    return run_greedy(instance, choose)


def nearest(progress: Progress, j: int) -> float:
    """The look-ahead of ECEF-LA."""
    row = progress.instance.cost_rows[j]
    return min((row[k] for k in progress.waiting if k != j), default=0.0)


def _average(progress: Progress, j: int) -> float:
    row = progress.instance.cost_rows[j]
    others = [row[k] for k in progress.waiting if k != j]
    return sum(others) / len(others) if others else 0.0


def _average_from_all(progress: Progress, j: int) -> float:
    cost = progress.instance.cost_rows
    others = [k for k in progress.waiting if k != j]
    senders = [*progress.reached, j]
    if not others:
        return 0.0
    return sum(cost[i][k] for i in senders for k in others) / (len(senders) * len(others))


def _nearest_end(progress: Progress, j: int) -> float:
    row, own = progress.instance.cost_rows[j], progress.instance.internals
    return min((row[k] + own[k] for k in progress.waiting if k != j), default=0.0)


def _farthest_end(progress: Progress, j: int) -> float:
    row, own = progress.instance.cost_rows[j], progress.instance.internals
    return max((row[k] + own[k] for k in progress.waiting if k != j), default=0.0)


# The same on many instances at once.
ecef_batch = partial(run_batch_greedy, with_ready=True)
ecef_la_batch = partial(ecef_batch, look_ahead=Extreme)
ecef_la_avg_batch = partial(ecef_batch, look_ahead=Average)
ecef_la_avg_senders_batch = partial(ecef_batch, look_ahead=partial(Average, senders=True))
ecef_la_min_t_batch = partial(ecef_batch, look_ahead=partial(Extreme, ends=True))
ecef_la_max_t_batch = partial(ecef_batch, look_ahead=partial(Extreme, largest=True, ends=True))
