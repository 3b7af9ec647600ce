"""The greedy heuristics: rules that pick one transfer after another, and a kernel for all rules.

The papers' sets A and B are the clusters that have the message and those that wait for it; RT_i is
when cluster i can send next. A rule scores each pair of a reached i and a waiting j, and the least
score wins. Ties go to the smallest sender, then to the smallest receiver. A look-ahead F_j says how
useful j would be as a sender. It considers the clusters still waiting except j; without any, it is
0.

The kernel stores the best sender and the look-ahead of every waiting cluster, and updates only
those that the last transfer changed, so that 500 clusters take milliseconds. `batch_greedy` applies
the same rules to many instances at once. Tests compare both with versions written as in the papers.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

import numpy as np

from gridcoll.schedule.accelerate import Buffer, Problem, Runner
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.schedule import Schedule, Transfer, make_schedule, time_transfers
from gridcoll.topology.levels import Groups, find_levels

SEVEN = ("flat", "fef", "ecef", "ecef-la", "ecef-la-min-t", "ecef-la-max-t", "bottom-up")
"""The heuristics that Barchet-Steffenel and Mounié 2006 compare."""


class Rule(NamedTuple):
    """The terms in the score of a heuristic."""

    ready: bool = False
    """Whether the ready times of senders count."""
    latency: bool = False
    """Whether an edge costs its latency only, not gap plus latency."""
    largest_first: bool = False
    """Whether the largest edge + T wins."""
    look_ahead: int = 0
    """The look-ahead: +1 for the least g_jk + L_jk, -1 for the largest, 0 for none."""
    with_internal: bool = False
    """Whether the look-ahead counts T_k."""


RULES = {
    # L_ij (paper 000, §4.2). Its known weakness: it ignores gaps and the ready times of senders.
    "fef": Rule(latency=True),
    # RT_i + g_ij + L_ij + F_j (paper 000, §4.3, §4.4, §5.1, §5.2; paper 002, equations 4 to 7).
    "ecef": Rule(ready=True),
    "ecef-la": Rule(ready=True, look_ahead=1),
    "ecef-la-min-t": Rule(ready=True, look_ahead=1, with_internal=True),
    "ecef-la-max-t": Rule(ready=True, look_ahead=-1, with_internal=True),
    # The largest g_ij + L_ij + T_j, by the fastest edge to each j (paper 000, §5.3). As printed in
    # the paper, RT_i does not count. If it did, the mean makespan for 10 clusters with the
    # parameters of its Table 2 would be 1.3 % longer.
    "bottom-up": Rule(largest_first=True),
    # The largest g_ij + L_ij + T_j - F_j: paper 000 (§6) suggests a look-ahead but defines none.
    # Slow clusters come first; of two equally slow ones, the one that can relay sooner.
    "bottom-up-la": Rule(largest_first=True, look_ahead=1),
}

FEW_CLUSTERS = 10
"""Paper 000 calls up to 10 clusters a reduced number. It gives no other threshold."""


def mixed_rule(n_clusters: int) -> Rule:
    """Return the recommended rule (paper 000, §6): ECEF-LA for few clusters, ECEF-LAT for more."""
    return RULES["ecef-la" if n_clusters <= FEW_CLUSTERS else "ecef-la-max-t"]


def flat(instance: Instance) -> Schedule:
    """The root sends to all others, lowest index first (paper 000, §4.1; ECO and MagPIe)."""
    return make_schedule(_flat(instance.n_clusters, instance.root), instance)


def _flat(n: int, root: int) -> list[tuple[int, int]]:
    return [(root, j) for j in range(n) if j != root]


def greedy(rule: Rule, instance: Instance) -> Schedule:
    """Pick transfers by ``rule`` until every cluster is reached."""
    run = Runner(None)
    return make_schedule(_transfers(rule, run, run.problem(instance)), instance)


def mixed(instance: Instance) -> Schedule:
    """Return the schedule of `greedy` with `mixed_rule`."""
    return greedy(mixed_rule(instance.n_clusters), instance)


def run_seven(run: Runner, problem: Problem) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield the name and the transfers of each of the papers' seven heuristics."""
    yield "flat", _flat(problem.n, problem.root)
    for name in SEVEN[1:]:
        yield name, _transfers(RULES[name], run, problem)


def _transfers(rule: Rule, run: Runner, problem: Problem) -> list[tuple[int, int]]:
    n = problem.n
    senders, receivers = run.integers(n), run.integers(n)
    run(
        _greedy, problem, *rule, senders, receivers, run.floats(n), run.integers(n),
        run.floats(n, inf), run.integers(n, -1), run.floats(n), run.integers(n, -1),
    )  # fmt: skip
    return [(int(senders[k]), int(receivers[k])) for k in range(n - 1)]


def _greedy(
    problem: Problem,
    with_ready: bool,
    with_latency: bool,
    largest_first: bool,
    look_ahead: int,
    with_internal: bool,
    senders: Buffer,
    receivers: Buffer,
    ready: Buffer,
    reached: Buffer,
    best: Buffer,
    source: Buffer,
    ahead: Buffer,
    next_hop: Buffer,
) -> None:
    """Write the transfers.

    ``best`` and ``source`` are the best edge into each waiting cluster and its sender. ``ahead``
    and ``next_hop`` are F and the cluster that gives it.
    """
    n, cost, busy, own = problem.n, problem.cost, problem.busy, problem.own
    edge = problem.latency if with_latency else cost
    reached[problem.root] = 1
    newest, last = problem.root, -1
    for step in range(n - 1):
        chosen, chosen_score = -1, inf
        for j in range(n):
            if reached[j]:
                continue
            time = ready[newest] + edge[newest * n + j] if with_ready else edge[newest * n + j]
            if source[j] == last and with_ready:  # its sender has sent again: find the best anew
                best[j] = inf
                for i in range(n):
                    if reached[i] and ready[i] + cost[i * n + j] < best[j]:
                        best[j], source[j] = ready[i] + cost[i * n + j], i
            elif time < best[j] or (time == best[j] and newest < source[j]):
                best[j], source[j] = time, newest
            if look_ahead != 0 and (next_hop[j] < 0 or next_hop[j] == newest):
                least, next_hop[j] = inf, -1
                for k in range(n):
                    if reached[k] == 0 and k != j:
                        time = look_ahead * (
                            cost[j * n + k] + own[k] if with_internal else cost[j * n + k]
                        )
                        if time < least:
                            least, next_hop[j] = time, k
                ahead[j] = look_ahead * least if next_hop[j] >= 0 else 0.0
            score = ahead[j] - (best[j] + own[j]) if largest_first else best[j] + ahead[j]
            if (
                chosen < 0
                or score < chosen_score
                or (score == chosen_score and source[j] < source[chosen])
            ):
                chosen, chosen_score = j, score
        last = source[chosen]
        senders[step], receivers[step] = last, chosen
        ready[chosen] = ready[last] + cost[last * n + chosen]
        ready[last] += busy[last * n + chosen]
        reached[chosen] = 1
        newest = chosen


def by_level(instance: Instance) -> Schedule:
    """Use ECEF between the groups of each level, from the widest level down.

    For example, first between sites, then between the clusters of each site. Paper 000's Table 1
    (after Karonis) sends to the farthest level first, by flat trees; paper 003 leaves more than two
    levels to future work. Levels are found by latency (`find_levels`). This heuristic serves as a
    comparison: others schedule all clusters at once, and so may also find the optimum.
    """
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
    """Return transfers from ``holder``, one of ``heads``, to all others of them."""
    index = np.ix_(heads, heads)
    level = Instance(
        instance.latency_s[index], instance.gap_s[index], np.zeros(len(heads)), heads.index(holder),
        instance.accounting,
    )  # fmt: skip
    return [Transfer(heads[s], heads[r]) for s, r in greedy(RULES["ecef"], level).transfers]
