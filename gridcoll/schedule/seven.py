"""The papers' seven heuristics as one kernel, for the search that must not lose to them.

The readable forms are in `flat`, `fef`, `ecef` and `bottom_up`; this one keeps, for every waiting
cluster, its best sender and its look-ahead, and renews only those that the last transfer changed,
so that 500 clusters take milliseconds. Tests hold it to the readable forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gridcoll.schedule.accelerate import Buffer, Problem, Runner

INFINITY = float("inf")


class _Rule(NamedTuple):
    """What a heuristic looks at.

    ``ready``: whether senders' ready times count; ``latency``: whether edges are latencies;
    ``upwards``: whether the largest edge + T wins; ``look`` is +1 or -1 for a look-ahead that is
    the least or the largest, 0 for none; ``ends``: whether the look-ahead counts T.
    """

    ready: bool
    latency: bool = False
    upwards: bool = False
    look: int = 0
    ends: bool = False


_RULES = {
    "fef": _Rule(ready=False, latency=True),
    "ecef": _Rule(ready=True),
    "ecef-la": _Rule(ready=True, look=1),
    "ecef-la-min-t": _Rule(ready=True, look=1, ends=True),
    "ecef-la-max-t": _Rule(ready=True, look=-1, ends=True),
    "bottom-up": _Rule(ready=False, upwards=True),
}

SEVEN = ("flat", *_RULES)
"""The heuristics the papers compare."""


def run_seven(run: Runner, problem: Problem) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Each heuristic's name and transfers."""
    n = problem.n
    yield "flat", [(problem.root, j) for j in range(n) if j != problem.root]
    for name, rule in _RULES.items():
        senders, receivers = run.integers(n), run.integers(n)
        run(
            _greedy, problem, *rule, senders, receivers, run.floats(n), run.integers(n),
            run.floats(n, INFINITY), run.integers(n, -1), run.floats(n), run.integers(n, -1),
        )  # fmt: skip
        yield name, [(int(senders[k]), int(receivers[k])) for k in range(n - 1)]


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
            score = -(best[j] + own[j]) if upwards else best[j] + ahead[j]
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
