"""Complete a schedule within a given time by scheduling critical paths first.

Clusters are taken in a given order, normally the slowest first. Each gets its earliest path from
the reached clusters, through unreached ones if that is faster, as long as every sender on the path
still ends its internal broadcast within the target time. Clusters on the path are reached too.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from gridcoll.schedule.accelerate import Buffer, Problem, Runner, helper


class Completed(NamedTuple):
    """The result: ``missed`` is the first cluster without a path in time, or -1."""

    transfers: list[tuple[int, int]]
    missed: int
    n_steps: int


def complete(
    run: Runner, problem: Problem, target_s: float, order: list[int], given: list[tuple[int, int]]
) -> Completed:
    """Try to find a schedule that starts with ``given`` and ends by ``target_s``.

    If ``given`` has several transfers to one cluster, only the first counts.
    """
    n = problem.n
    trial = _Trial(
        target_s=float(target_s),
        senders=run.integers(n),
        receivers=run.integers(n),
        n_sent=run.integers(1),
        ready=run.floats(n, inf),
        reached=run.integers(n),
        direct=run.floats(n),
        source=run.integers(n, -1),
        arrival=run.floats(n),
        before=run.integers(n),
        done=run.integers(n),
        path=run.integers(n),
    )
    given_flat = run.indices([cluster for pair in given for cluster in pair])
    missed, n_steps = run(_fill, problem, trial, run.indices(order), given_flat)
    if missed >= 0:
        return Completed([], missed, n_steps)
    pairs = [(int(trial.senders[k]), int(trial.receivers[k])) for k in range(n - 1)]
    return Completed(pairs, -1, n_steps)


class _Trial(NamedTuple):
    """A schedule under construction.

    ``ready`` is when a reached cluster may send next. ``direct`` is when an unreached cluster can
    get the message directly from a reached one, ``source`` (-1: not known, n: there is none).
    ``arrival``, ``before``, ``done`` and ``path`` belong to the path search in progress.
    """

    target_s: float
    senders: Buffer
    receivers: Buffer
    n_sent: Buffer
    ready: Buffer
    reached: Buffer
    direct: Buffer
    source: Buffer
    arrival: Buffer
    before: Buffer
    done: Buffer
    path: Buffer


def _fill(problem: Problem, trial: _Trial, order: Buffer, given: Buffer) -> tuple[int, int]:
    """Write the transfers; return the missed cluster, or -1, and the number of steps."""
    n, own, tail, ready = problem.n, problem.own, problem.tail, trial.ready
    ready[problem.root], trial.reached[problem.root] = 0.0, 1
    for k in range(0, len(given), 2):
        i, j = given[k], given[k + 1]
        if trial.reached[j] == 0:
            _send(problem, trial, i, j)
            if ready[j] + own[j] > trial.target_s or ready[i] + tail[i] > trial.target_s:
                return j, 0
    steps = 0
    for u in order:
        if trial.reached[u]:
            continue
        steps += _find_path(problem, trial, u)
        if not trial.arrival[u] + own[u] <= trial.target_s:
            return u, steps
        length, v = 0, u
        while trial.reached[v] == 0:
            trial.path[length] = v
            length += 1
            v = trial.before[v]
        for k in range(length - 1, -1, -1):
            _send(problem, trial, v, trial.path[k])
            v = trial.path[k]
        for k in range(length):
            _take_as_sender(problem, trial, trial.path[k])
        steps += n * length
    return -1, steps


@helper
def _send(problem: Problem, trial: _Trial, i: int, j: int) -> None:
    """Append a transfer. Clusters whose ``source`` is its sender must look it up again."""
    n, ready = problem.n, trial.ready
    ready[j], trial.reached[j] = ready[i] + problem.cost[i * n + j], 1
    ready[i] += problem.busy[i * n + j]
    trial.senders[trial.n_sent[0]], trial.receivers[trial.n_sent[0]] = i, j
    trial.n_sent[0] += 1
    for v in range(n):
        if trial.source[v] == i:
            trial.source[v] = -1


@helper
def _take_as_sender(problem: Problem, trial: _Trial, i: int) -> None:
    """Make ``i`` the source of unreached clusters that it can reach earlier."""
    n, ready = problem.n, trial.ready[i]
    for v in range(n):
        time = ready + problem.cost[i * n + v]
        in_time = ready + problem.busy[i * n + v] + problem.tail[i] <= trial.target_s
        if in_time and trial.reached[v] == 0 and trial.source[v] >= 0 and time < trial.direct[v]:
            trial.direct[v], trial.source[v] = time, i


@helper
def _look_up(problem: Problem, trial: _Trial, v: int) -> None:
    """Find the earliest arrival at ``v`` from a reached cluster that then still ends in time."""
    n, cost, busy, tail, ready = problem.n, problem.cost, problem.busy, problem.tail, trial.ready
    trial.direct[v], trial.source[v] = inf, n
    for i in range(n):
        if trial.reached[i] and ready[i] + busy[i * n + v] + tail[i] <= trial.target_s:
            time = ready[i] + cost[i * n + v]
            if time < trial.direct[v]:
                trial.direct[v], trial.source[v] = time, i


@helper
def _find_path(problem: Problem, trial: _Trial, u: int) -> int:
    """Write the earliest path to ``u`` to ``arrival`` and ``before``; return the steps done.

    Relays are considered in order of their arrival, until none could reach ``u`` earlier.
    """
    n, cost, busy, tail = problem.n, problem.cost, problem.busy, problem.tail
    target, arrival, before, done = trial.target_s, trial.arrival, trial.before, trial.done
    nearest, steps = inf, 0
    for v in range(n):
        done[v] = trial.reached[v]
        if trial.reached[v] == 0:
            if trial.source[v] < 0:
                _look_up(problem, trial, v)
                steps += n
            arrival[v], before[v] = trial.direct[v], trial.source[v]
            if v != u:
                nearest = min(nearest, cost[v * n + u])
    while True:
        w = -1
        for v in range(n):
            if done[v] == 0 and (w < 0 or arrival[v] < arrival[w]):
                w = v
        if w < 0 or w == u or arrival[w] + nearest >= arrival[u]:
            return steps
        done[w] = 1
        steps += n
        if arrival[w] + problem.own[w] <= target:
            for v in range(n):
                time = arrival[w] + cost[w * n + v]
                in_time = arrival[w] + busy[w * n + v] + tail[w] <= target
                if in_time and done[v] == 0 and time < arrival[v]:
                    arrival[v], before[v] = time, w
