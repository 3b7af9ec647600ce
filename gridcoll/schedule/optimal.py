"""The exact optimum, by recursion over subsets."""

from __future__ import annotations

from gridcoll.schedule.instance import Instance
from gridcoll.schedule.schedule import Schedule
from gridcoll.schedule.timeline import make_schedule

INFINITY = float("inf")


def optimal(instance: Instance) -> Schedule:
    """A schedule with the least makespan, proven (`Schedule.lower_bound_s` equals it).

    f(v, S) is the least time from v's arrival until v and all of S are done, S being served from v:
    the minimum over its first child c and the part C of S that c serves of
    max(g_vc + L_vc + f(c, C), g_vc + f(v, rest of S)), with f(v, {}) = T_v.
    """
    own, cost, busy = instance.internals, instance.cost_rows, instance.busy_rows
    n = instance.n_clusters
    full = (1 << n) - 1
    value = [[INFINITY] * (full + 1) for _ in range(n)]
    choice = [[(0, 0)] * (full + 1) for _ in range(n)]
    early = instance.accounting.internal == "from-arrival"
    for v in range(n):
        value[v][0] = 0.0 if early else own[v]
    for served in range(1, full + 1):
        for v in range(n):
            if served >> v & 1 or (v != instance.root and served >> instance.root & 1):
                continue
            for c in range(n):
                if not served >> c & 1:
                    continue
                rest = served & ~(1 << c)
                part = rest
                while True:
                    below = value[c][part]
                    if early and own[c] > below:
                        below = own[c]
                    a = cost[v][c] + below
                    b = busy[v][c] + value[v][rest ^ part]
                    end = a if a > b else b
                    if end < value[v][served]:
                        value[v][served] = end
                        choice[v][served] = (c, part)
                    if not part:
                        break
                    part = (part - 1) & rest
    transfers: list[tuple[int, int]] = []
    todo = [(instance.root, full & ~(1 << instance.root))]
    while todo:
        v, served = todo.pop()
        if served:
            c, part = choice[v][served]
            transfers.append((v, c))
            todo.append((c, part))
            todo.append((v, served & ~part & ~(1 << c)))
    schedule = make_schedule(transfers, instance)
    return make_schedule(transfers, instance, schedule.makespan_s)
