"""Every subset: the yardstick of the other searches."""

from __future__ import annotations

import numpy as np

from gridcoll.errors import UsageError
from gridcoll.model.plogp import FloatArray
from gridcoll.placement.cost import Found, IterationCost, Tally, found

MAX_CLUSTERS = 26  # 67 million subsets, a few seconds
LOW_CLUSTERS = 14  # tables of 2^14 subsets stay in the cache


def exhaustive(cost: IterationCost, rng: np.random.Generator) -> Found:
    """All ``2^C - 1`` subsets (paper 004, §3.1.1). Raises `UsageError` above `MAX_CLUSTERS`."""
    return best_but(cost, None)


def best_but(cost: IterationCost, excluded: tuple[int, ...] | None) -> Found:
    """The best subset other than ``excluded``; ties go to the lowest cluster indices.

    Raises `UsageError` when the grid has more than `MAX_CLUSTERS` clusters.
    """
    n = cost.n_clusters
    if n > MAX_CLUSTERS:
        raise UsageError(
            f"search 'exhaustive': {n} clusters make 2^{n} subsets, at most {MAX_CLUSTERS} "
            "clusters are searched; 'branch-and-bound' proves an optimum on more"
        )
    walk = _Walk(cost, -1 if excluded is None else sum(1 << i for i in excluded))
    walk.descend(walk.n_low, 0, walk.low)
    mask = np.array([walk.best >> i & 1 for i in range(n)], dtype=bool)
    return found(cost, mask, (1 << n) - 1, proven=True)


class _Walk:
    """All subsets of the first clusters in one table, combined with each subset of the rest."""

    def __init__(self, cost: IterationCost, excluded: int) -> None:
        self._cost = cost
        self._excluded = excluded
        self.n_low = min(cost.n_clusters, LOW_CLUSTERS)
        self.low = self._table()
        # What each later cluster's longest latency to each low subset is.
        self._reach = [self._reaches(k) for k in range(self.n_low, cost.n_clusters)]
        self.best = 0
        self._best_s = np.inf

    def _table(self) -> Tally:
        """The tallies of all subsets of the low clusters; entry s holds cluster i iff bit i is."""
        cost = self._cost
        tally = cost.tally(np.zeros((1, cost.n_clusters), dtype=bool))
        for k in range(self.n_low):
            with_k = _add(cost, tally, k, self._reaches(k))
            tally = Tally(
                *(np.concatenate(pair, axis=-1) for pair in zip(tally, with_k, strict=True))
            )
        return tally

    def _reaches(self, k: int) -> FloatArray:
        reach = np.zeros(1)
        for i in range(min(k, self.n_low)):
            reach = np.concatenate([reach, np.maximum(reach, self._cost.resources.latency_s[k, i])])
        return reach

    def descend(self, k: int, high: int, tally: Tally) -> None:
        """Decide cluster ``k`` and those after it; ``high`` has the bits of those before it."""
        if k == self._cost.n_clusters:
            self._evaluate(high, tally)
            return
        self.descend(k + 1, high, tally)
        before = [i for i in range(self.n_low, k) if high >> i & 1]
        reach = np.maximum(
            self._reach[k - self.n_low],
            self._cost.resources.latency_s[k, before].max(initial=0.0),
        )
        self.descend(k + 1, high | 1 << k, _add(self._cost, tally, k, reach))

    def _evaluate(self, high: int, tally: Tally) -> None:
        times = self._cost.closed_times(tally)
        if self._excluded >> self.n_low << self.n_low == high:
            times[self._excluded - high] = np.inf
        best = int(times.argmin())
        if self._cost.is_closed:
            self._keep(high + best, float(times[best]))
            return
        # With a price from outside the table holds lower bounds: price only what could still win.
        for low in times.argsort(kind="stable"):
            if times[low] >= self._best_s:
                return
            subset = high + int(low)
            self._keep(subset, float(times[low]) + self._cost.extra_allreduce_s(_members(subset)))

    def _keep(self, subset: int, time_s: float) -> None:
        if time_s < self._best_s:
            self.best, self._best_s = subset, time_s


def _members(subset: int) -> tuple[int, ...]:
    return tuple(i for i in range(subset.bit_length()) if subset >> i & 1)


def _add(cost: IterationCost, tally: Tally, k: int, reach: FloatArray) -> Tally:
    """The tallies with cluster ``k`` added; ``reach`` is its longest latency to each subset."""
    diagonal = cost.resources.latency_s[k, k]
    return Tally(
        tally.n_clusters + 1,
        tally.n_hosts + cost.resources.n_hosts[k],
        tally.power + cost.power[k],
        np.maximum(tally.peaks, cost.peaks[:, k, None]),
        np.maximum(np.maximum(tally.latency_s, reach), diagonal),
    )
