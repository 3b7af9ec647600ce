"""The greedy heuristics as the papers print them: slow, and read beside the text (000, §4 and §5).

A and B are the clusters that have the message and those that wait; RT_i is when i can send next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gridcoll.schedule import Instance
from gridcoll.schedule.greedy import FEW_CLUSTERS

Pair = tuple[int, int]


class Progress:
    """A broadcast half scheduled."""

    def __init__(self, instance: Instance) -> None:
        n, self.root = instance.n_clusters, instance.root
        self.g_and_l, self.busy = instance.cost_rows, instance.busy_rows
        self.latency, self.t = instance.latency_s.tolist(), instance.internals
        self.a, self.b = [self.root], [j for j in range(n) if j != self.root]
        self.rt = [0.0] * n

    def send(self, i: int, j: int) -> None:
        self.rt[j] = self.rt[i] + self.g_and_l[i][j]
        self.rt[i] += self.busy[i][j]
        self.b.remove(j)
        self.a.append(j)


LookAhead = Callable[[Progress, int], float]


def none(now: Progress, j: int) -> float:
    return 0.0


def least(now: Progress, j: int) -> float:
    return min((now.g_and_l[j][k] for k in now.b if k != j), default=0.0)


def average(now: Progress, j: int) -> float:
    others = [now.g_and_l[j][k] for k in now.b if k != j]
    return sum(others) / len(others) if others else 0.0


def average_from_all(now: Progress, j: int) -> float:
    others = [now.g_and_l[i][k] for i in sorted([*now.a, j]) for k in now.b if k != j]
    return sum(others) / len(others) if others else 0.0


def least_end(now: Progress, j: int) -> float:
    return min((now.g_and_l[j][k] + now.t[k] for k in now.b if k != j), default=0.0)


def largest_end(now: Progress, j: int) -> float:
    return max((now.g_and_l[j][k] + now.t[k] for k in now.b if k != j), default=0.0)


def flat(now: Progress) -> Pair:
    return now.root, now.b[0]


def fef(now: Progress) -> Pair:
    return min((now.latency[i][j], i, j) for i in now.a for j in now.b)[1:]


def ecef(now: Progress, f: LookAhead = none) -> Pair:
    keys = []
    for j in now.b:
        arrival, i = min((now.rt[i] + now.g_and_l[i][j], i) for i in now.a)
        keys.append((arrival + f(now, j), i, j))
    return min(keys)[1:]


def bottom_up(now: Progress, f: LookAhead = none) -> Pair:
    keys = []
    for j in now.b:
        way, i = min((now.g_and_l[i][j], i) for i in now.a)
        keys.append((f(now, j) - (way + now.t[j]), i, j))
    return min(keys)[1:]


FORMS: dict[str, Callable[[Progress], Pair]] = {
    "flat": flat,
    "fef": fef,
    "ecef": ecef,
    "ecef-la": partial(ecef, f=least),
    "ecef-la-avg": partial(ecef, f=average),
    "ecef-la-avg-senders": partial(ecef, f=average_from_all),
    "ecef-la-min-t": partial(ecef, f=least_end),
    "ecef-la-max-t": partial(ecef, f=largest_end),
    "bottom-up": bottom_up,
    "bottom-up-la": partial(bottom_up, f=least),
}


def transfers_of(name: str, instance: Instance) -> tuple[Pair, ...]:
    """What the heuristic called ``name`` sends, in order."""
    if name == "mixed":
        name = "ecef-la" if instance.n_clusters <= FEW_CLUSTERS else "ecef-la-max-t"
    now, found = Progress(instance), list[Pair]()
    while now.b:
        found.append(FORMS[name](now))
        now.send(*found[-1])
    return tuple(found)
