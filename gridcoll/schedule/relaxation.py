"""A lower bound of the makespan, nearly always equal to the optimum, by relaxation.

Only some clusters (the terminals, normally the slowest) must be reached; the others may relay or be
left out. Every schedule, reduced to the branches that lead to terminals, is such a tree, so the
fastest tree is a lower bound. It is found by a Dreyfus-Wagner recursion over subsets of terminals:

    f(v, {}) = T_v
    f(v, S) = min over first child c and the part C of S it serves of
              max(g_vc + L_vc + f(c, C without c), g_vc + f(v, S without C))

A relay that two branches share is treated as two relays, which only lowers the bound. If every
cluster is a terminal, there are no such relays, and the value is the optimum itself.

Entries that cannot be part of a tree faster than ``upper`` are dropped: v cannot have the message
before the length of its shortest path from the root.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import NamedTuple

from gridcoll.schedule.accelerate import Buffer, Problem, Runner, helper


class Relaxed(NamedTuple):
    """The fastest relaxed tree."""

    bound_s: float
    """Its time: no schedule is faster. Infinite if no tree is faster than the given upper bound."""
    transfers: list[tuple[int, int]]
    """Its transfers, each after the one that reaches its sender; empty if ``bound_s`` is infinite.
    """
    shared: list[int]
    """Relays that occur more than once, ascending. If there are none, the tree is part of a
    schedule."""
    n_steps: int
    """Elementary steps done."""
    finished: bool
    """False if the step limit was reached; ``bound_s`` is then 0."""


def earliest_arrivals(run: Runner, problem: Problem) -> Buffer:
    """Return the length of the shortest path from the root to each cluster.

    No schedule reaches a cluster earlier.
    """
    reach = run.floats(problem.n, inf)
    run(_dijkstra, problem, reach, run.integers(problem.n))
    return reach


def _dijkstra(problem: Problem, reach: Buffer, done: Buffer) -> None:
    n, cost = problem.n, problem.cost
    reach[problem.root] = 0.0
    for _ in range(n):
        u = -1
        for v in range(n):
            if done[v] == 0 and (u < 0 or reach[v] < reach[u]):
                u = v
        done[u] = 1
        for v in range(n):
            if reach[u] + cost[u * n + v] < reach[v]:
                reach[v] = reach[u] + cost[u * n + v]


def relax(
    run: Runner,
    problem: Problem,
    reach: Buffer,
    terminals: list[int],
    upper_s: float,
    max_steps: int,
) -> Relaxed:
    """Return the fastest tree that reaches ``terminals``, if it is faster than ``upper_s``.

    ``reach`` is the result of `earliest_arrivals`. For k terminals, time grows as n² 3^k and memory
    as n 2^k.
    """
    n, n_subsets = problem.n, 1 << len(terminals)
    bit = run.integers(n)
    for place, terminal in enumerate(terminals):
        bit[terminal] = 1 << place
    tables = _Tables(
        upper_s=float(upper_s),
        reach=reach,
        terminals=run.indices(terminals),
        bit=bit,
        nearest=run.floats(n, inf),
        soonest=run.floats(n, inf),
        value=run.floats(n * n_subsets, inf),
        first=run.integers(n * n_subsets),
        part=run.integers(n * n_subsets),
        candidate=run.integers(n * n_subsets),
        below=run.floats(n * n_subsets, inf),
        served=run.floats(n * n_subsets, inf),
        n_candidates=run.integers(n_subsets),
        done=run.integers(n),
        popped=run.integers(n),
    )
    n_steps = run(_recursion, problem, tables, max_steps)
    if n_steps < 0:
        return Relaxed(0.0, [], [], max_steps, False)
    bound = float(tables.value[(n_subsets - 1) * n + problem.root])
    if bound == inf:
        return Relaxed(bound, [], [], n_steps, True)
    bound = max(bound, float(problem.lift[problem.root]))
    transfers = _walk(problem, tables, n_subsets - 1)
    count = Counter(receiver for _, receiver in transfers)
    shared = sorted(v for v, times in count.items() if times > 1)
    return Relaxed(bound, transfers, shared, n_steps, True)


class _Tables(NamedTuple):
    """The tables of the recursion. Tables over subsets have entry (S, v) at ``S * n + v``.

    ``bit`` is the bit of a terminal, 0 for other clusters. ``nearest`` and ``soonest`` are the
    least cost and busy time of a cluster's transfers. ``value`` is f; the first child in its tree
    is ``first`` and serves ``part``. ``candidate`` lists the ``n_candidates`` children that may
    serve a subset, the fastest first, and ``below`` their times; ``served`` has the same times by
    child.
    """

    upper_s: float
    reach: Buffer
    terminals: Buffer
    bit: Buffer
    nearest: Buffer
    soonest: Buffer
    value: Buffer
    first: Buffer
    part: Buffer
    candidate: Buffer
    below: Buffer
    served: Buffer
    n_candidates: Buffer
    done: Buffer
    popped: Buffer


def _recursion(problem: Problem, tables: _Tables, max_steps: int) -> int:
    """Fill the tables; return the steps done, or -1 if they were more than ``max_steps``."""
    n = problem.n
    for v in range(n):
        tables.value[v] = problem.tail[v]
        for c in range(n):
            if c != v:
                tables.nearest[v] = min(tables.nearest[v], problem.cost[v * n + c])
                tables.soonest[v] = min(tables.soonest[v], problem.busy[v * n + c])
    steps = 0
    for S in range(1, 1 << len(tables.terminals)):
        for v in range(n):
            if not tables.bit[v] & S:
                steps += _split(problem, tables, S, v)
        n_popped = _relay(problem, tables, S)
        steps += n * n_popped
        _rank(problem, tables, S, n_popped)
        if steps > max_steps:
            return -1
    return steps


@helper
def _split(problem: Problem, tables: _Tables, S: int, v: int) -> int:
    """Compute entry (S, v) from smaller subsets: a terminal serves all of S, or S is split."""
    n, cost, busy = problem.n, problem.cost, problem.busy
    value, candidate, below = tables.value, tables.candidate, tables.below
    steps, nearest = 0, tables.nearest[v]
    best, child, taken = tables.upper_s - tables.reach[v], -1, 0
    for place in range(len(tables.terminals)):
        if S >> place & 1:
            c = tables.terminals[place]
            time = max(value[(S ^ (1 << place)) * n + c], problem.lift[c]) + cost[v * n + c]
            time = max(time, busy[v * n + c] + problem.tail[v])
            if time < best:
                best, child, taken = time, c, S
    C = (S - 1) & S
    while C:  # the first child serves C, later ones the rest
        steps += 1
        after = value[(S ^ C) * n + v]
        soonest = after + tables.soonest[v]
        quickest = below[C * n] + nearest
        if max(soonest, quickest) >= best:
            pass
        elif quickest > soonest:  # the child's time dominates: try the fastest child first
            for place in range(C * n, C * n + tables.n_candidates[C]):
                if below[place] + nearest >= best:
                    break
                steps += 1
                c = candidate[place]
                time = max(below[place] + cost[v * n + c], busy[v * n + c] + after)
                if time < best and c != v:
                    best, child, taken = time, c, C
        else:  # v's later sends dominate: try the child that keeps v busy the shortest first
            for place in range(v * (n - 1), (v + 1) * (n - 1)):
                c = problem.near[place]
                if busy[v * n + c] + after >= best:
                    break
                steps += 1
                time = max(tables.served[C * n + c] + cost[v * n + c], busy[v * n + c] + after)
                if time < best:
                    best, child, taken = time, c, C
        C = (C - 1) & S
    if child >= 0:
        entry = S * n + v
        value[entry], tables.first[entry], tables.part[entry] = best, child, taken
    return steps


@helper
def _relay(problem: Problem, tables: _Tables, S: int) -> int:
    """Let one relay serve all of S, fastest relays first; return the number of relays tried."""
    n, root, cost_in, busy_in = problem.n, problem.root, problem.cost_in, problem.busy_in
    value, bit, done = tables.value, tables.bit, tables.done
    row, n_popped = S * n, 0
    for v in range(n):
        done[v] = 1 if bit[v] or v == root else 0
    while True:
        u = -1
        for v in range(n):
            if done[v] == 0 and (u < 0 or value[row + v] < value[row + u]):
                u = v
        if u < 0 or value[row + u] == inf:
            return n_popped
        done[u] = 1
        tables.popped[n_popped] = u
        n_popped += 1
        served = max(value[row + u], problem.lift[u])
        for v in range(n):
            if v != u and not bit[v] & S:
                time = max(served + cost_in[u * n + v], busy_in[u * n + v] + problem.tail[v])
                if time < value[row + v] and time < tables.upper_s - tables.reach[v]:
                    entry = row + v
                    value[entry], tables.first[entry], tables.part[entry] = time, u, S


@helper
def _rank(problem: Problem, tables: _Tables, S: int, n_popped: int) -> None:
    """List the children that may serve S, fastest first: the relays tried and S's terminals."""
    n, candidate, below = problem.n, tables.candidate, tables.below
    for place in range(len(tables.terminals)):
        if S >> place & 1:
            tables.popped[n_popped] = tables.terminals[place]
            n_popped += 1
    row, count = S * n, 0
    for k in range(n_popped):
        c = tables.popped[k]
        time = max(tables.value[(S ^ tables.bit[c]) * n + c], problem.lift[c])
        if tables.reach[c] + time < tables.upper_s:
            place = row + count
            while place > row and below[place - 1] > time:
                candidate[place], below[place] = candidate[place - 1], below[place - 1]
                place -= 1
            candidate[place], below[place] = c, time
            tables.served[row + c] = time
            count += 1
    tables.n_candidates[S] = count


def _walk(problem: Problem, tables: _Tables, full: int) -> list[tuple[int, int]]:
    """Return the transfers of the tree that serves ``full`` from the root."""
    transfers = []
    stack = [(problem.root, full)]
    while stack:
        v, S = stack.pop()
        while S:
            entry = S * problem.n + v
            c, C = int(tables.first[entry]), int(tables.part[entry])
            transfers.append((v, c))
            stack.append((c, C & ~int(tables.bit[c])))
            S &= ~C
    return transfers
