"""The search behind `best` and `optimal`: it narrows the gap between two bounds.

For the lower bound, `relax` finds the fastest tree to a few terminals: no schedule is faster. For
the upper bound, `complete` extends that tree, or an empty one, to a whole schedule within a target
time. A relay that the tree uses twice, and a cluster that has no path in time, become terminals
too, and the lower bound rises. If every cluster is a terminal, the tree is the optimum. A cluster
that misses a target is served earlier in the next attempt. Targets between the bounds are tried.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from math import inf

import numpy as np

from gridcoll.schedule.accelerate import Runner
from gridcoll.schedule.completion import complete
from gridcoll.schedule.greedy import run_seven
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.relaxation import earliest_arrivals, relax
from gridcoll.schedule.schedule import Schedule, make_schedule, time_transfers

Transfers = list[tuple[int, int]]

FIRST_TERMINALS = 5
NEARLY_MET = 0.04
"""If bounds differ by less than this fraction, the tree is nearly a schedule. Clusters that prevent
it from being one then become terminals."""
MAX_ENTRIES = 1 << 22
"""Largest size n 2^k of the recursion's tables (five tables of 8 bytes per entry)."""
CLUSTERS_PER_HEAD = 40
"""ECEF picks one transfer for this many clusters before the slowest clusters come first. Many
clusters need many senders early: 500 end 0.7 % earlier this way; for 50 it hardly matters."""
MET_TOLERANCE = 1e-9
"""Relative difference at which bounds count as equal."""


PRIOR_WEIGHT_S = 2e-3
"""The first guess at the speed weighs as much as a measurement of this length."""
GROWTH = 2.3
"""Typical factor by which the recursion takes longer with one more terminal."""


class Budget:
    """The remaining budget: a number of elementary steps, or as many as fit into the time left.

    The number that fits is a guess at first, and is then estimated from the steps done.
    """

    def __init__(
        self,
        budget_s: float | None,
        budget_steps: float,
        steps_per_s: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.clock = clock
        self.end = None if budget_s is None else clock() + budget_s
        self.left = budget_steps
        self.done = (steps_per_s * PRIOR_WEIGHT_S, PRIOR_WEIGHT_S)  # steps, seconds: with the guess

    def steps(self) -> int:
        """Return how many steps may still be done."""
        if self.end is None:
            return int(min(self.left, 1 << 62))
        n_steps, seconds = self.done
        return int(max(0.0, self.end - self.clock()) * n_steps / seconds)

    def spend(self, n_steps: int, seconds: float) -> None:
        """Record steps done."""
        self.left -= n_steps
        self.done = (self.done[0] + n_steps, self.done[1] + seconds)


class Search:
    """One search. `transfers` are the best so far, `upper_s` their makespan, `lower_s` the bound.

    ``head`` are the first transfers of ECEF.
    """

    def __init__(self, instance: Instance, run: Runner, budget: Budget) -> None:
        self.instance = instance
        self.runner = run
        self.budget = budget
        self.problem = run.problem(instance)
        self.lower_s = 0.0
        self.upper_s = inf
        self.transfers: Transfers = []
        self.head: Transfers = []
        own = instance.internals
        others = (v for v in range(instance.n_clusters) if v != instance.root)
        self.slowest_first = sorted(others, key=lambda v: (-own[v], v))

    def run(self) -> Schedule:
        """Search until the bounds meet or the budget is spent; return the best schedule."""
        for name, transfers in run_seven(self.runner, self.problem):
            self._offer(transfers)
            if name == "ecef":
                self.head = transfers[: self.problem.n // CLUSTERS_PER_HEAD]
        self._narrow()
        return make_schedule(self.transfers, self.instance, min(self.lower_s, self.upper_s))

    def run_each_kernel(self) -> None:
        """Run each kernel once, so that all are loaded."""
        reach = earliest_arrivals(self.runner, self.problem)
        relax(self.runner, self.problem, reach, self.slowest_first[:2], self.upper_s * 2, 1 << 62)
        complete(self.runner, self.problem, self.upper_s, self.slowest_first, [])

    @property
    def _met(self) -> bool:
        return self.upper_s <= self.lower_s * (1 + MET_TOLERANCE)

    def _offer(self, transfers: Transfers) -> None:
        """Reorder ``transfers``, and take them if they are faster than the best so far."""
        transfers = reorder(transfers, self.instance)
        makespan = time_transfers(transfers, self.instance).makespan_s
        if makespan < self.upper_s:
            self.upper_s, self.transfers = makespan, transfers

    def _narrow(self) -> None:
        """Improve both bounds until they meet or the budget is spent."""
        reach = earliest_arrivals(self.runner, self.problem)
        ends = (reach[v] + own for v, own in enumerate(self.instance.internals))
        self.lower_s = min(self.upper_s, max(growth_bound_s(self.instance), *ends))
        terminals = self.slowest_first[:FIRST_TERMINALS]
        tree: Transfers = []
        while not self._met and self.budget.steps() > 0:
            begin = self.budget.clock()
            relaxed = relax(
                self.runner, self.problem, reach, terminals, self.upper_s, self.budget.steps()
            )
            self.budget.spend(relaxed.n_steps, self.budget.clock() - begin)
            if not relaxed.finished:
                if tree or len(terminals) == 1:
                    break
                terminals = terminals[: len(terminals) // 2]
                continue
            self.lower_s = max(self.lower_s, min(relaxed.bound_s, self.upper_s))
            tree = relaxed.transfers
            if len(terminals) == self.problem.n - 1:
                if tree:  # every cluster was a terminal: it is the optimum
                    self._offer(tree)
                return
            missed = self._approach(tree, relaxed.n_steps)
            more = self._more_terminals(terminals, relaxed.shared, missed)
            terminals = terminals + more
            too_long = relaxed.n_steps * GROWTH ** len(more) > self.budget.steps()
            if too_long or self.problem.n << len(terminals) > MAX_ENTRIES:
                break
        self._polish(tree)

    def _more_terminals(
        self, terminals: list[int], shared: list[int], missed: Counter[int]
    ) -> list[int]:
        """Return new terminals: obstacles if the bounds nearly meet, else the next slowest."""
        nearly_met = self.upper_s < self.lower_s * (1 + NEARLY_MET)
        obstacles = [*shared, *(v for v, _ in missed.most_common())] if nearly_met else []
        wanted = [v for v in [*obstacles, *self.slowest_first] if v not in terminals]
        return wanted[: max(1, min(2, len(shared)))] if nearly_met else wanted[:1]

    def _approach(self, tree: Transfers, n_steps: int) -> Counter[int]:
        """Try to reach the lower bound itself, then targets between the bounds.

        The second part ends after about ``n_steps``; `_polish` spends the rest of the budget.
        Return how often each cluster prevented a schedule in the first part.
        """
        missed: Counter[int] = Counter()
        low, high = self.lower_s, self.upper_s
        self._attempt(self.lower_s, tree, 12, missed)
        stop = self.budget.left - n_steps
        while not self._met and self.budget.steps() > 0 and self.budget.left > stop:
            if high - low < 1e-3 * low:
                break
            target = low + (high - low) / 2
            if self._attempt(target, tree, 16, Counter(), stop):
                high = self.upper_s
            else:
                low = target
        return missed

    def _attempt(
        self,
        target_s: float,
        tree: Transfers,
        tries: int,
        missed: Counter[int],
        stop: float = -inf,
    ) -> bool:
        """Look for a schedule within ``target_s``; return whether one was found.

        Start from ``tree``, then from `head`; stop when at most ``stop`` steps are left. ``missed``
        counts the clusters that prevented a schedule.
        """
        for given in (tree, self.head):
            order = list(self.slowest_first)
            for _ in range(tries):
                obstacle = self._complete(target_s, order, given)
                if obstacle is None:
                    return True
                missed[obstacle] += 1
                place = order.index(obstacle)
                if not place or self.budget.steps() <= 0 or self.budget.left <= stop:
                    break
                order.insert(0, order.pop(place))
        return False

    def _complete(self, target_s: float, order: list[int], given: Transfers) -> int | None:
        """Offer the schedule that `complete` finds, or return the cluster it missed."""
        begin = self.budget.clock()
        target_s *= 1 + MET_TOLERANCE / 10
        found = complete(self.runner, self.problem, target_s, order, given)
        # To read the result costs about as much as 20 steps per cluster.
        n_steps = found.n_steps + 20 * self.problem.n
        self.budget.spend(n_steps, self.budget.clock() - begin)
        if found.missed >= 0:
            return found.missed
        self._offer(found.transfers)
        return None

    def _polish(self, tree: Transfers) -> None:
        """Spend the rest of the budget on shuffled orders; targets approach the best so far."""
        shuffle = random.Random(0)
        own = self.instance.internals
        share = 0.5
        while not self._met and self.budget.steps() > 0:
            target = self.lower_s + share * (self.upper_s - self.lower_s)
            keys = [-own_s * (1 + shuffle.uniform(-0.1, 0.1)) for own_s in own]
            order = sorted(self.slowest_first, key=lambda v, keys=keys: (keys[v], v))  # type: ignore[misc]
            given = shuffle.choice((tree, self.head, []))
            if self._complete(target, order, given) is not None:
                share = share + (1 - share) / 8 if share < 0.95 else 0.5


def growth_bound_s(instance: Instance) -> float:
    """Return a lower bound from counting how soon a number of clusters can have the message.

    When the k slowest clusters have it, there are k + 1 holders, and the last one still has to
    broadcast internally. At best, the number of holders grows as if every transfer were the
    cheapest one (the optimal tree of the postal model, Bar-Noy & Kipnis 1992). The bound is tight
    if clusters are alike, where that of `gridcoll.schedule.relaxation` is not.
    """
    n, root = instance.n_clusters, instance.root
    if n == 1:
        return instance.internals[root]
    between = ~np.eye(n, dtype=bool)
    cost, busy = float(instance.cost_s[between].min()), float(instance.busy_s[between].min())
    bound = instance.internals[root]
    slowest_first = sorted(
        (own for v, own in enumerate(instance.internals) if v != root), reverse=True
    )
    arrivals = [cost]  # of each holder's next transfer
    for own in slowest_first:
        soonest = heapq.heappop(arrivals)
        bound = max(bound, soonest + own)
        heapq.heappush(arrivals, soonest + busy)
        heapq.heappush(arrivals, soonest + cost)
    return bound


def reorder(transfers: Iterable[tuple[int, int]], instance: Instance) -> list[tuple[int, int]]:
    """Return the same tree with every sender's transfers in the order that ends earliest.

    The child with the most remaining time comes first: from when the sender is free again, its
    latency plus its own completion. (Jackson's rule for jobs with delivery times; swapping two
    neighbours to break the rule never helps.) Ties go to the smallest child.
    """
    order = list(transfers)
    cost, busy, own = instance.cost_rows, instance.busy_rows, instance.internals
    late = instance.accounting.internal == "after-last-send"
    sends: dict[int, list[tuple[int, int]]] = {}
    after: dict[int, list[tuple[float, int]]] = {}
    for sender, receiver in reversed(order):  # receivers' own sends come later, hence first here
        queue = sorted(after.pop(receiver, []))
        sends[receiver] = [(receiver, child) for _, child in queue]
        remaining = _completion(receiver, queue, busy[receiver], own[receiver], late)
        key = busy[sender][receiver] - cost[sender][receiver] - remaining
        after.setdefault(sender, []).append((key, receiver))
    root = instance.root
    sends[root] = [(root, child) for _, child in sorted(after.get(root, []))]
    result = list(sends[root])
    for _, receiver in result:  # grows while it is read: breadth first
        result.extend(sends[receiver])
    return result


def _completion(
    cluster: int, queue: list[tuple[float, int]], busy: list[float], own: float, late: bool
) -> float:
    """Return the time from the cluster's arrival until it and all clusters below it are done."""
    free, end = 0.0, 0.0 if late else own
    for key, child in queue:
        free += busy[child]
        end = max(end, free - key)
    return max(end, free + own) if late else end
