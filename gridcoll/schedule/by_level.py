"""A schedule on each level of a grid: between sites, then between the clusters of each.

Paper 000's Table 1 (after Karonis) sends to the farthest level first, by flat trees; paper 003
leaves more than two levels to the future. Levels are found by latency (`find_levels`), and on each
the groups are scheduled by ECEF. Other heuristics schedule all clusters at once and may use what
every level offers, so that the optimum is among theirs: this one is to compare with.
"""

from __future__ import annotations

import numpy as np

from gridcoll.schedule.greedy import RULES, greedy
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.schedule import Schedule, Transfer, time_transfers
from gridcoll.topology.levels import Groups, find_levels


def by_level(instance: Instance) -> Schedule:
    """ECEF between the groups of each level, from the widest down."""
    n = instance.n_clusters
    latency_s = (instance.latency_s + instance.latency_s.T) / 2
    partitions: list[Groups] = [tuple((cluster,) for cluster in range(n)), *find_levels(latency_s)]
    transfers: list[Transfer] = []
    holders = [(tuple(range(n)), instance.root)]
    for groups in reversed(partitions):
        below: list[tuple[tuple[int, ...], int]] = []
        for members, holder in holders:
            inner = [group for group in groups if group[0] in members]
            heads = [
                holder if holder in group else min(group, key=lambda c: instance.cost_s[holder, c])
                for group in inner
            ]
            transfers += _between(instance, heads, holder)
            below += zip(inner, heads, strict=True)
        holders = below
    timeline = time_transfers(transfers, instance)
    return Schedule(n, instance.root, tuple(transfers), timeline.makespan_s)


def _between(instance: Instance, heads: list[int], holder: int) -> list[Transfer]:
    """From ``holder`` to all of ``heads``, which it is one of."""
    some = np.ix_(heads, heads)
    alone = Instance(
        instance.latency_s[some], instance.gap_s[some], np.zeros(len(heads)), heads.index(holder),
        instance.accounting,
    )  # fmt: skip
    return [Transfer(heads[s], heads[r]) for s, r in greedy(RULES["ecef"], alone).transfers]
