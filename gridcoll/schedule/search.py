"""The search behind `best` and `optimal`: narrow the gap from both sides.

From below, `relax` finds the fastest tree to a few terminals: no schedule beats that. From above,
`complete` grows that tree, or an empty one, into a whole schedule within a target time. Where the
tree uses a relay twice, or a cluster finds no path in time, those become terminals too and the
bound rises; with every cluster a terminal, the tree is the optimum. The cluster that misses a
target is served earlier in the next attempt, and targets between the bounds are tried.
"""

from __future__ import annotations

import heapq
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from gridcoll.schedule.accelerate import Runner
from gridcoll.schedule.completion import complete
from gridcoll.schedule.greedy import run_seven
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.relaxation import earliest_arrivals, relax
from gridcoll.schedule.schedule import Schedule, make_schedule, time_transfers

Transfers = list[tuple[int, int]]

FIRST_TERMINALS = 5
CLOSE = 0.04
"""Bounds nearer than this: the tree is nearly a schedule, and what keeps it from one matters."""
MAX_ENTRIES = 1 << 22
"""Of the recursion's tables: n 2^k beyond this is not tried (five tables of 8 bytes each)."""
INFINITY = float("inf")
CLUSTERS_PER_HEAD = 40
"""Of that many clusters ECEF picks one before the slowest come first. Many clusters need many
senders early, whoever they are: 500 end 0.7 % earlier so; for 50 it hardly matters."""
TIGHT = 1e-9
"""Relative difference at which bounds are taken to have met."""


FAITH_S = 2e-3
"""For how long the first guess at the speed weighs as much as what is measured."""
GROWTH = 2.3
"""How much longer the recursion takes with one more terminal, as a rule."""


class Budget:
    """What may still be spent: elementary steps, or as many as fit into the time left.

    How many fit is a guess to begin with, and learnt from the steps done.
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
        self.done = (steps_per_s * FAITH_S, FAITH_S)  # steps and seconds, the guess among them

    def steps(self) -> int:
        """Steps that may be done now."""
        if self.end is None:
            return int(min(self.left, 1 << 62))
        n_steps, seconds = self.done
        return int(max(0.0, self.end - self.clock()) * n_steps / seconds)

    def spend(self, n_steps: int, seconds: float) -> None:
        """Take note of steps done."""
        self.left -= n_steps
        self.done = (self.done[0] + n_steps, self.done[1] + seconds)


class Search:
    """One search. `transfers` are the best so far, `upper_s` their makespan, `lower_s` the bound.

    ``head`` is how ECEF begins.
    """

    def __init__(self, instance: Instance, run: Runner, budget: Budget) -> None:
        self.instance = instance
        self.runner = run
        self.budget = budget
        self.problem = run.problem(instance)
        self.lower_s = 0.0
        self.upper_s = INFINITY
        self.transfers: Transfers = []
        self.head: Transfers = []
        own = instance.internals
        others = (v for v in range(instance.n_clusters) if v != instance.root)
        self.slowest_first = sorted(others, key=lambda v: (-own[v], v))

    def run(self) -> Schedule:
        """Search until the bounds meet or the budget is spent."""
        for name, transfers in run_seven(self.runner, self.problem):
            self._offer(transfers)
            if name == "ecef":
                self.head = transfers[: self.problem.n // CLUSTERS_PER_HEAD]
        self._narrow()
        return make_schedule(self.transfers, self.instance, min(self.lower_s, self.upper_s))

    def try_everything(self) -> None:
        """Run each kernel once, so that all are loaded."""
        reach = earliest_arrivals(self.runner, self.problem)
        relax(self.runner, self.problem, reach, self.slowest_first[:2], self.upper_s * 2, 1 << 62)
        complete(self.runner, self.problem, self.upper_s, self.slowest_first, [])

    @property
    def _met(self) -> bool:
        return self.upper_s <= self.lower_s * (1 + TIGHT)

    def _offer(self, transfers: Transfers) -> None:
        transfers = reorder(transfers, self.instance)
        makespan = time_transfers(transfers, self.instance).makespan_s
        if makespan < self.upper_s:
            self.upper_s, self.transfers = makespan, transfers

    def _narrow(self) -> None:
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
                if tree:  # nothing was relaxed: it is the optimum
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
        """What the tree got wrong, once the bounds are close; before that, the next slowest."""
        close = self.upper_s < self.lower_s * (1 + CLOSE)
        obstacles = [*shared, *(v for v, _ in missed.most_common())] if close else []
        wanted = [v for v in [*obstacles, *self.slowest_first] if v not in terminals]
        return wanted[: max(1, min(2, len(shared)))] if close else wanted[:1]

    def _approach(self, tree: Transfers, n_steps: int) -> Counter[int]:
        """Try for the lower bound itself, then for targets between the bounds.

        The latter takes about as long as ``n_steps``; what it misses, `_polish` has time for.
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
        stop: float = -INFINITY,
    ) -> bool:
        """Whether a schedule within ``target_s`` was found; ``missed`` counts what was in the way.

        First from ``tree``, then from `head`, until no more than ``stop`` steps are left.
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
        target_s *= 1 + TIGHT / 10
        found = complete(self.runner, self.problem, target_s, order, given)
        # reading the result back costs about as much as 20 steps per cluster
        n_steps = found.n_steps + 20 * self.problem.n
        self.budget.spend(n_steps, self.budget.clock() - begin)
        if found.missed >= 0:
            return found.missed
        self._offer(found.transfers)
        return None

    def _polish(self, tree: Transfers) -> None:
        """Spend what is left on shuffled orders, nearer and nearer to the best so far."""
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
    """A lower bound from counting: how soon so many clusters can have the message at all.

    The k slowest clusters need k + 1 holders, and the last of them is still to broadcast. Holders
    multiply at best as if every transfer were the cheapest there is (the postal model's optimal
    tree, Bar-Noy & Kipnis 1992). Tight where clusters are alike, which is where
    `gridcoll.schedule.relaxation` is not.
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
    """The same tree with every sender's transfers in the order that ends earliest.

    First the child for which most remains once the sender is free again: latency plus the child's
    own completion. (Jackson's rule for jobs with delivery times; swapping two neighbours that break
    it never helps.) Ties go to the smallest child.
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
    """From the cluster's arrival until it and all it serves are done."""
    free, end = 0.0, 0.0 if late else own
    for key, child in queue:
        free += busy[child]
        end = max(end, free - key)
    return max(end, free + own) if late else end
