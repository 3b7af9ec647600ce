"""The greedy heuristics: rules that pick one transfer after another, and a kernel that obeys them.

The papers' A and B are the clusters that have the message and those that wait; RT_i is when cluster
i can send next. A rule scores the pairs of a reached i and a waiting j, and the least score wins;
ties go to the smallest sender, then to the smallest receiver. Look-aheads F_j say how useful j
would be afterwards: over the clusters still waiting but for j itself, 0 when none is left.

The kernel keeps, for every waiting cluster, its best sender and its look-ahead, and renews only
those that the last transfer changed, so that 500 clusters take milliseconds. `batch_greedy` obeys
the same rules on many instances at once. Tests hold both to forms that read as the papers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gridcoll.schedule.accelerate import Buffer, Problem, Runner
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.schedule import Schedule, Transfer, make_schedule, time_transfers
from gridcoll.topology.levels import Groups, find_levels

INFINITY = float("inf")

SEVEN = ("flat", "fef", "ecef", "ecef-la", "ecef-la-min-t", "ecef-la-max-t", "bottom-up")
"""The heuristics that Barchet-Steffenel and Mounié 2006 compare."""


class Rule(NamedTuple):
    """What a heuristic looks at."""

    ready: bool = False
    """Whether senders' ready times count."""
    latency: bool = False
    """Whether edges are latencies, rather than gaps and latencies."""
    upwards: bool = False
    """Whether the largest edge + T wins."""
    look: int = 0
    """+1 or -1 for a look-ahead that is the least or the largest g_jk + L_jk, 0 for none."""
    ends: bool = False
    """Whether the look-ahead counts T_k."""


RULES = {
    # L_ij (paper 000, §4.2): gaps and waiting senders are not seen, its known weakness.
    "fef": Rule(latency=True),
    # RT_i + g_ij + L_ij + F_j (paper 000, §4.3, §4.4, §5.1, §5.2; paper 002, equations 4 to 7).
    "ecef": Rule(ready=True),
    "ecef-la": Rule(ready=True, look=1),
    "ecef-la-min-t": Rule(ready=True, look=1, ends=True),
    "ecef-la-max-t": Rule(ready=True, look=-1, ends=True),
    # The largest g_ij + L_ij + T_j, by the quickest way to each j (paper 000, §5.3). As the paper
    # prints it, RT_i does not count: with it the mean makespan for 10 clusters with the parameters
    # of its Table 2 is 1.3 % longer.
    "bottom-up": Rule(upwards=True),
    # The largest g_ij + L_ij + T_j - F_j: paper 000 (§6) suggests a look-ahead and leaves it open.
    # Slow clusters first, and of two as slow the one that can pass the message on sooner.
    "bottom-up-la": Rule(upwards=True, look=1),
}

FEW_CLUSTERS = 10
"""Paper 000 calls up to 10 clusters a reduced number; it gives no other threshold."""


def mixed_rule(n_clusters: int) -> Rule:
    """The papers' recommendation (paper 000, §6): ECEF-LA for few clusters, ECEF-LAT beyond."""
    return RULES["ecef-la" if n_clusters <= FEW_CLUSTERS else "ecef-la-max-t"]


def flat(instance: Instance) -> Schedule:
    """The root sends to all others, lowest index first (paper 000, §4.1; ECO and MagPIe)."""
    return make_schedule(_flat(instance.n_clusters, instance.root), instance)


def _flat(n: int, root: int) -> list[tuple[int, int]]:
    return [(root, j) for j in range(n) if j != root]


def greedy(rule: Rule, instance: Instance) -> Schedule:
    """Transfers by ``rule`` until every cluster is reached."""
    run = Runner(None)
    return make_schedule(_transfers(rule, run, run.problem(instance)), instance)


def mixed(instance: Instance) -> Schedule:
    """`greedy` by `mixed_rule`."""
    return greedy(mixed_rule(instance.n_clusters), instance)


def run_seven(run: Runner, problem: Problem) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """The name of each of the papers' seven and its transfers."""
    yield "flat", _flat(problem.n, problem.root)
    for name in SEVEN[1:]:
        yield name, _transfers(RULES[name], run, problem)


def _transfers(rule: Rule, run: Runner, problem: Problem) -> list[tuple[int, int]]:
    n = problem.n
    senders, receivers = run.integers(n), run.integers(n)
    run(
        _greedy, problem, *rule, senders, receivers, run.floats(n), run.integers(n),
        run.floats(n, INFINITY), run.integers(n, -1), run.floats(n), run.integers(n, -1),
    )  # fmt: skip
    return [(int(senders[k]), int(receivers[k])) for k in range(n - 1)]


def _greedy(
    problem: Problem,
    with_ready: bool,
    with_latency: bool,
    upwards: bool,
    look: int,
    ends: bool,
    senders: Buffer,
    receivers: Buffer,
    ready: Buffer,
    reached: Buffer,
    best: Buffer,
    source: Buffer,
    ahead: Buffer,
    next_hop: Buffer,
) -> None:
    """Write the transfers. ``best`` and ``source``: quickest edge in; ``ahead``: F, at next_hop."""
    n, cost, busy, own = problem.n, problem.cost, problem.busy, problem.own
    edge = problem.latency if with_latency else cost
    reached[problem.root] = 1
    newest, last = problem.root, -1
    for step in range(n - 1):
        chosen, chosen_score = -1, INFINITY
        for j in range(n):
            if reached[j]:
                continue
            time = ready[newest] + edge[newest * n + j] if with_ready else edge[newest * n + j]
            if source[j] == last and with_ready:  # its sender is busy longer now: look again
                best[j] = INFINITY
                for i in range(n):
                    if reached[i] and ready[i] + cost[i * n + j] < best[j]:
                        best[j], source[j] = ready[i] + cost[i * n + j], i
            elif time < best[j] or (time == best[j] and newest < source[j]):
                best[j], source[j] = time, newest
            if look != 0 and (next_hop[j] < 0 or next_hop[j] == newest):
                least, next_hop[j] = INFINITY, -1
                for k in range(n):
                    if reached[k] == 0 and k != j:
                        time = look * (cost[j * n + k] + own[k] if ends else cost[j * n + k])
                        if time < least:
                            least, next_hop[j] = time, k
                ahead[j] = look * least if next_hop[j] >= 0 else 0.0
            score = ahead[j] - (best[j] + own[j]) if upwards else best[j] + ahead[j]
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
    """ECEF between the groups of each level, from the widest down.

    Between sites, then between the clusters of each. Paper 000's Table 1 (after Karonis) sends to
    the farthest level first, by flat trees; paper 003 leaves more than two levels to the future.
    Levels are found by latency (`find_levels`). Other heuristics schedule all clusters at once and
    may use what every level offers, so that the optimum is among theirs: this one is to compare
    with.
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
    """From ``holder`` to all of ``heads``, which it is one of."""
    some = np.ix_(heads, heads)
    alone = Instance(
        instance.latency_s[some], instance.gap_s[some], np.zeros(len(heads)), heads.index(holder),
        instance.accounting,
    )  # fmt: skip
    return [Transfer(heads[s], heads[r]) for s, r in greedy(RULES["ecef"], alone).transfers]
