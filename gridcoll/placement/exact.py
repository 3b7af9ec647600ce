"""The optimum: by trying every subset, or by branch and bound if there are too many subsets.

Each subset has a longest latency d. The optimum is found by solving, for each latency d of the
grid: which subset is the best of those whose pairs are all within d, priced as if its longest
latency were d? This price is exact if the longest latency is d. If it is less, the price is too
high, but a smaller d gives the exact price. Once d is fixed, adding a cluster can raise the time
only through the maxima of `IterationCost.peaks`. This gives

- a bound: the sums over all clusters still allowed, with the maxima of those already inside;
- a shortcut: a cluster is taken at once if its peaks are all below those maxima and it is within d
  of everything still allowed.

Subsets of one cluster exchange nothing with others, which the bound ignores; they are tried first.
The nodes of the search are rows of arrays, so that many are bounded at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.model.plogp import FloatArray
from gridcoll.placement.cost import BoolArray, IterationCost, SubsetResult, Tally, result_of
from gridcoll.placement.local import annealing_grouping
from gridcoll.placement.resources import IntArray, as_mask

MAX_CLUSTERS = 26  # 67 million subsets, a few seconds
LOW_CLUSTERS = 14  # tables of 2^14 subsets stay in the cache


def exhaustive(cost: IterationCost, rng: np.random.Generator) -> SubsetResult:
    """All ``2^C - 1`` subsets (paper 004, §3.1.1). Raises `UsageError` above `MAX_CLUSTERS`."""
    return best_but(cost, None)


def best_but(cost: IterationCost, excluded: tuple[int, ...] | None) -> SubsetResult:
    """Return the best subset other than ``excluded``; ties go to the lowest cluster indices.

    Raises `UsageError` if the grid has more than `MAX_CLUSTERS` clusters.
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
    return result_of(cost, mask, (1 << n) - 1, proven=True)


class _Walk:
    """Walks over all subsets: a table of the first clusters, with each subset of the others."""

    def __init__(self, cost: IterationCost, excluded: int) -> None:
        self._cost = cost
        self._excluded = excluded
        self.n_low = min(cost.n_clusters, LOW_CLUSTERS)
        self.low = self._table()
        # The longest latency from each later cluster to each subset of the low ones.
        self._reach = [self._reaches(k) for k in range(self.n_low, cost.n_clusters)]
        self.best = 0
        self._best_s = np.inf

    def _table(self) -> Tally:
        """Return tallies of all subsets of low clusters; entry s has cluster i if bit i is set."""
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
        """Decide on cluster ``k`` and those after it; ``high`` has the bits of those before it."""
        if k == self._cost.n_clusters:
            self._evaluate(high, tally)
            return
        self.descend(k + 1, high, tally)
        before = [i for i in range(self.n_low, k) if high >> i & 1]
        reach = np.maximum(
            self._reach[k - self.n_low], self._cost.resources.latency_s[k, before].max(initial=0.0)
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
        # With prices from outside, the table holds lower bounds: price only what may still win.
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
    """Return the tallies with cluster ``k`` added; ``reach`` is its longest latency to each."""
    diagonal = cost.resources.latency_s[k, k]
    return Tally(
        tally.n_clusters + 1,
        tally.n_hosts + cost.resources.n_hosts[k],
        tally.power + cost.power[k],
        np.maximum(tally.peaks, cost.peaks[:, k, None]),
        np.maximum(np.maximum(tally.latency_s, reach), diagonal),
    )


MAX_NODES = 3_000_000  # about ten seconds; then the search ends without a proof
BATCH_NODES = 20_000  # limits memory: at most one batch per level of the search is held
PRICE_NODES = 2000  # a price from outside takes as long as this many bounds
_MARGIN = 1e-12  # relative; sums over one subset in different orders differ by less


def branch_and_bound(cost: IterationCost, rng: np.random.Generator) -> SubsetResult:
    """Return the optimum; it is ``proven`` unless `MAX_NODES` bounds were too few."""
    start = _start(cost, rng)
    search = _Search(cost, start)
    search.try_singles()
    components = sorted(
        (
            (search.component_bound(component), number, component)
            for number, component in enumerate(_components(cost))
        ),
        key=lambda entry: entry[:2],
    )
    for bound_s, _, component in components:
        if not search.run(component, bound_s):
            return result_of(cost, search.best, search.n_nodes + start.n_evaluated)
    return result_of(cost, search.best, search.n_nodes + start.n_evaluated, proven=True)


def _start(cost: IterationCost, rng: np.random.Generator) -> SubsetResult:
    """Return a good subset to begin with: without one, bounds exclude nothing."""
    if cost.is_closed:
        return annealing_grouping(cost, rng)
    # Thousands of prices from outside would take longer than the search itself.
    near = annealing_grouping(cost.with_closed_allreduce(), rng)
    return result_of(cost, as_mask(near.clusters, cost.n_clusters), near.n_evaluated)


class _Component(Struct, frozen=True):
    """Clusters connected by latencies up to ``latency_s``; ``far`` marks the pairs beyond it."""

    latency_s: float
    members: BoolArray
    far: BoolArray


def _components(cost: IterationCost) -> Iterator[_Component]:
    """Yield a component for each latency and each connected part that it extends."""
    latency_s = cost.resources.latency_s
    for limit_s in np.unique(latency_s):
        near = latency_s <= limit_s
        alone = ~near.diagonal()
        near[alone, :] = near[:, alone] = False
        at_limit = near & (latency_s == limit_s)
        seen = np.zeros(cost.n_clusters, dtype=bool)
        for first in np.flatnonzero(at_limit.any(axis=1)):
            if seen[first]:
                continue
            members = near[first].copy()
            while (wider := near[members].any(axis=0)).sum() > members.sum():
                members = wider
            seen |= members
            if members.sum() > 1:
                yield _Component(float(limit_s), members, ~near)


class _Nodes(Struct, frozen=True):
    """Nodes of one component: clusters that are ``inside``, and ``still_open``; both (N, C)."""

    inside: BoolArray
    still_open: BoolArray

    def __getitem__(self, rows: IntArray | BoolArray | slice) -> _Nodes:
        return _Nodes(self.inside[rows], self.still_open[rows])


class _Search:
    def __init__(self, cost: IterationCost, start: SubsetResult) -> None:
        self._cost = cost
        self.best: BoolArray = as_mask(start.clusters, cost.n_clusters)
        self._best_s = start.iteration_s
        self._weights = np.stack(
            [np.ones(cost.n_clusters), cost.resources.n_hosts, cost.power], axis=1
        )
        self.n_nodes = 0

    def try_singles(self) -> None:
        self._try(np.eye(self._cost.n_clusters, dtype=bool))

    def component_bound(self, component: _Component) -> float:
        root = _Nodes(np.zeros_like(component.members)[None, :], component.members[None, :])
        return float(self._bounds(root, component)[0])

    def run(self, component: _Component, bound_s: float) -> bool:
        """Search ``component``. Return False if the nodes ran out."""
        if bound_s >= self._threshold():
            return True
        power = np.where(component.members, self._cost.power, -1.0)
        order = np.argsort(-power, kind="stable")[: int(component.members.sum())]
        root = _Nodes(np.zeros_like(component.members)[None, :], component.members[None, :])
        stack = [(0, root)]
        while stack:
            position, nodes = stack.pop()
            nodes = nodes[np.flatnonzero(self._bounds(nodes, component) < self._threshold())]
            n_open = nodes.still_open.sum(axis=1)
            self._try(nodes.inside[n_open == 0])
            nodes = nodes[np.flatnonzero(n_open)]
            if self.n_nodes > MAX_NODES:
                return False
            if len(nodes.inside) == 0:
                continue
            children = self._branch(nodes, int(order[position]), component)
            stack.extend(
                (position + 1, children[first : first + BATCH_NODES])
                for first in range(0, len(children.inside), BATCH_NODES)
            )
        return True

    def _threshold(self) -> float:
        return self._best_s * (1.0 - _MARGIN)

    def _branch(self, nodes: _Nodes, cluster: int, component: _Component) -> _Nodes:
        """Decide on ``cluster`` in nodes where it is open; other nodes are kept as they are."""
        asked = nodes.still_open[:, cluster]
        decided, asking = nodes[~asked], nodes[asked]
        without = asking.still_open.copy()
        without[:, cluster] = False
        inside = asking.inside.copy()
        inside[:, cluster] = True
        with_it = self._take_free(_Nodes(inside, without & ~component.far[cluster]), component)
        return _Nodes(
            np.concatenate([with_it.inside, asking.inside, decided.inside]),
            np.concatenate([with_it.still_open, without, decided.still_open]),
        )

    def _take_free(self, nodes: _Nodes, component: _Component) -> _Nodes:
        """Take every open cluster that costs nothing: below the peaks and within reach of all."""
        if not self._cost.is_closed:  # an outside price may rise with any cluster
            return nodes
        free = nodes.still_open.copy()
        for row in self._cost.peaks:
            top = np.where(nodes.inside, row, 0.0).max(axis=1)
            free &= row <= top[:, None]
        allowed = nodes.inside | nodes.still_open
        free &= (allowed @ component.far.astype(np.float64)) == 0.0
        return _Nodes(nodes.inside | free, nodes.still_open & ~free)

    def _bounds(self, nodes: _Nodes, component: _Component) -> FloatArray:
        """Return (N,) lower bounds in seconds for subsets of two or more clusters of each node."""
        self.n_nodes += len(nodes.inside)
        allowed = nodes.inside | nodes.still_open
        sums = allowed.astype(np.float64) @ self._weights
        # A node with nothing inside yet pays at least the smallest peak of its open clusters.
        empty = ~nodes.inside.any(axis=1)
        peaks = []
        for row in self._cost.peaks:
            top = np.where(nodes.inside, row, 0.0).max(axis=1)
            top[empty] = np.where(allowed[empty], row, np.inf).min(axis=1, initial=np.inf)
            peaks.append(top)
        n_clusters = np.rint(sums[:, 0]).astype(np.int64)
        tally = Tally(
            n_clusters,
            np.rint(sums[:, 1]).astype(np.int64),
            sums[:, 2],
            np.array(peaks),
            np.full(len(allowed), component.latency_s),
        )
        enough = n_clusters >= 2
        with np.errstate(invalid="ignore"):
            return np.where(enough, self._cost.closed_times(tally), np.inf)

    def _try(self, masks: BoolArray) -> None:
        if len(masks) == 0:
            return
        closed_s = self._cost.closed_times(self._cost.tally(masks))
        self.n_nodes += len(masks)
        for row in closed_s.argsort(kind="stable"):
            if closed_s[row] >= self._threshold() or self.n_nodes > MAX_NODES:
                return
            if not self._cost.is_closed:
                self.n_nodes += PRICE_NODES
            time_s = float(self._cost.priced(closed_s[row : row + 1], masks[row : row + 1])[0])
            if time_s < self._threshold():
                self._best_s, self.best = time_s, masks[row].copy()
