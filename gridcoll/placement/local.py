"""Local searches: greedy, grouping, annealing and random subsets.

The times of all neighbours of a subset are computed at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gridcoll.model.plogp import FloatArray
from gridcoll.placement.cost import BoolArray, IterationCost, SubsetResult, Tally, result_of
from gridcoll.placement.resources import as_mask


def flip_times(cost: IterationCost, mask: BoolArray) -> FloatArray:
    """Return (C,) seconds of an iteration after adding or dropping each cluster of ``mask`` (C,).

    They are ``inf`` where no cluster would be left.
    """
    times = cost.closed_times(_flip_tally(cost, mask))
    if cost.is_closed:
        return times
    return cost.priced(times, mask ^ np.eye(cost.n_clusters, dtype=bool))


def _flip_tally(cost: IterationCost, mask: BoolArray) -> Tally:
    sign = np.where(mask, -1, 1)
    inside = np.where(mask, cost.peaks, 0.0)
    if cost.n_clusters > 1:
        second, top = np.partition(inside, -2, axis=1)[:, -2:, None].transpose(1, 0, 2)
    else:
        second, top = np.zeros_like(inside), inside
    leaves_second = mask & (cost.peaks >= top)
    power = cost.power[mask].sum() + sign * cost.power
    return Tally(
        n_clusters=np.count_nonzero(mask) + sign,
        n_hosts=cost.resources.n_hosts[mask].sum() + sign * cost.resources.n_hosts,
        power=np.maximum(power, 0.0),  # dropping the last cluster must not leave a rounding error
        peaks=np.where(leaves_second, second, np.maximum(top, cost.peaks)),
        latency_s=_flip_latency(cost.resources.latency_s, mask),
    )


def _flip_latency(latency_s: FloatArray, mask: BoolArray) -> FloatArray:
    chosen = np.flatnonzero(mask)
    if len(chosen) == 0:
        return latency_s.diagonal().copy()
    far = latency_s[chosen].max(axis=0)
    longest = far[chosen].max()
    after: FloatArray = np.where(
        mask, longest, np.maximum(np.maximum(far, latency_s.diagonal()), longest)
    )
    # Only dropping an end of a longest pair can lower the longest latency.
    inside = latency_s[chosen][:, chosen]
    for end in set(divmod(int(inside.argmax()), len(chosen))):
        row, column = inside[end].copy(), inside[:, end].copy()
        inside[end] = inside[:, end] = 0.0
        after[chosen[end]] = inside.max()
        inside[end], inside[:, end] = row, column
    return after


class Growth:
    """Many subsets that grow side by side, each by one cluster or one group at a time.

    ``moves`` are the groups of clusters that may be added; row n of ``masks`` is the n-th subset.
    """

    def __init__(
        self, cost: IterationCost, masks: BoolArray, moves: Sequence[tuple[int, ...]]
    ) -> None:
        self._cost = cost
        self._moves = np.array([as_mask(move, cost.n_clusters) for move in moves])
        self._move_tally = cost.tally(self._moves)
        self._members = np.concatenate([np.array(move) for move in moves])
        self._starts = np.cumsum([0] + [len(move) for move in moves[:-1]])
        ones = np.ones(cost.n_clusters)
        self._weights = np.stack([ones, cost.resources.n_hosts, cost.power], axis=1)
        latency_s = cost.resources.latency_s
        self._reach_of_move = np.array([latency_s[list(move)].max(axis=0) for move in moves])
        self.masks = masks.copy()
        self.times = cost.times(masks)
        self._tally = cost.tally(masks)
        self._reach = np.array([latency_s[mask].max(axis=0, initial=0.0) for mask in masks])

    def candidates(self) -> FloatArray:
        """Return (N, M) seconds after each move on each subset; ``inf`` if it adds nothing."""
        cost, move, now = self._cost, self._move_tally, self._tally
        overlap = self._overlaps()
        n_clusters = now.n_clusters[:, None] + move.n_clusters - np.rint(overlap[0]).astype(int)
        n_hosts = now.n_hosts[:, None] + move.n_hosts - np.rint(overlap[1]).astype(int)
        across = np.maximum.reduceat(self._reach[:, self._members], self._starts, axis=1)
        tally = Tally(
            n_clusters,
            n_hosts,
            now.power[:, None] + move.power - overlap[2],
            np.maximum(now.peaks[:, :, None], move.peaks[:, None, :]),
            np.maximum(np.maximum(now.latency_s[:, None], move.latency_s), across),
        )
        times = cost.closed_times(tally)
        adds = n_clusters > now.n_clusters[:, None]
        if not cost.is_closed:
            for n, m in np.argwhere(adds):
                times[n, m] = cost.priced(
                    times[n, m : m + 1], (self.masks[n] | self._moves[m])[None, :]
                )[0]
        return np.where(adds, times, np.inf)

    def _overlaps(self) -> FloatArray:
        """Return (3, N, M) clusters, hosts and power of each move that a subset has already."""
        weighted = self.masks[None, :, :] * self._weights.T[:, None, :]
        overlaps: FloatArray = weighted @ self._moves.T.astype(float)
        return overlaps

    def step(self) -> bool:
        """Make the best move of each subset if it saves time. Return whether any subset moved.

        Ties go to the lowest move. Subsets that cannot improve are kept.
        """
        candidates = self.candidates()
        best = candidates.argmin(axis=1)
        best_s = candidates[np.arange(len(best)), best]
        moved = np.flatnonzero(best_s < self.times)
        if len(moved) == 0:
            return False
        chosen = best[moved]
        self.masks[moved] |= self._moves[chosen]
        self.times[moved] = best_s[moved]
        self._reach[moved] = np.maximum(self._reach[moved], self._reach_of_move[chosen])
        grown = self._cost.tally(self.masks[moved])
        for field, value in zip(self._tally, grown, strict=True):
            field[..., moved] = value
        return True


def greedy(cost: IterationCost, rng: np.random.Generator) -> SubsetResult:
    """Add one cluster at a time (paper 004, §3.1.3)."""
    return _grow(cost, _singles(cost))


def grouping(cost: IterationCost, rng: np.random.Generator) -> SubsetResult:
    """Add one cluster, or all clusters of a site or region, at a time (paper 004, §3.1.4)."""
    return _grow(cost, _singles(cost) + cost.resources.groups())


def _singles(cost: IterationCost) -> tuple[tuple[int, ...], ...]:
    return tuple((i,) for i in range(cost.n_clusters))


def _grow(cost: IterationCost, moves: tuple[tuple[int, ...], ...]) -> SubsetResult:
    growth = Growth(cost, np.eye(cost.n_clusters, dtype=bool), moves)
    n_evaluated = cost.n_clusters
    moving = True
    while moving:
        n_evaluated += cost.n_clusters * len(moves)
        moving = growth.step()
    best = int(growth.times.argmin())
    return result_of(cost, growth.masks[best], n_evaluated)


# The paper gives no parameters. Its annealing takes about a third of the time of a thousand random
# subsets on 8 and on 12 clusters (Tables 1 and 3); that is some 300 evaluations.
MIN_STEPS = 300
STEPS_PER_CLUSTER = 25
FIRST_TEMPERATURE = 0.3  # of the time at the start
LAST_TEMPERATURE = 0.001


def annealing(cost: IterationCost, rng: np.random.Generator) -> SubsetResult:
    """Anneal from an empty set (paper 004, §3.1.5)."""
    return _anneal(cost, rng, SubsetResult((), np.inf, 0))


def annealing_greedy(cost: IterationCost, rng: np.random.Generator) -> SubsetResult:
    """Anneal from the result of `greedy`."""
    return _anneal(cost, rng, greedy(cost, rng))


def annealing_grouping(cost: IterationCost, rng: np.random.Generator) -> SubsetResult:
    """Anneal from the result of `grouping`."""
    return _anneal(cost, rng, grouping(cost, rng))


def _anneal(cost: IterationCost, rng: np.random.Generator, start: SubsetResult) -> SubsetResult:
    """Flip one random cluster per step, accepted by Metropolis's rule; return the best subset seen.

    The times of all flips are computed after each accepted one, so a refused step costs nothing.
    The chain is the same as if each step were evaluated by itself.
    """
    n_steps = max(MIN_STEPS, STEPS_PER_CLUSTER * cost.n_clusters)
    picks = rng.integers(cost.n_clusters, size=n_steps)
    cooling = np.geomspace(FIRST_TEMPERATURE, LAST_TEMPERATURE, n_steps)
    tolerance = -cooling * np.log1p(-rng.random(n_steps))  # accepted losses, relative
    mask = as_mask(start.clusters, cost.n_clusters)
    now_s = best_s = start.iteration_s
    best = mask.copy()
    scale_s = now_s
    n_evaluated = start.n_evaluated
    step = 0
    while step < n_steps:
        times = flip_times(cost, mask)
        n_evaluated += cost.n_clusters
        if not np.isfinite(scale_s):
            scale_s = float(times[np.isfinite(times)].min())
        losses = times[picks[step:]] - (now_s if np.isfinite(now_s) else times[picks[step:]])
        accepted = losses <= tolerance[step:] * scale_s
        ahead = int(accepted.argmax())
        if not accepted[ahead]:
            break
        step += ahead + 1
        flipped = picks[step - 1]
        mask[flipped] = not mask[flipped]
        now_s = float(times[flipped])
        if now_s < best_s:
            best_s, best = now_s, mask.copy()
    return result_of(cost, best, n_evaluated)


N_TRIES = 1000


def random_subset(cost: IterationCost, rng: np.random.Generator) -> SubsetResult:
    """Return one random subset (paper 004, §3.1.2)."""
    return _best_of(cost, rng, 1)


def random_1k(cost: IterationCost, rng: np.random.Generator) -> SubsetResult:
    """Return the best of a thousand random subsets (paper 004, §3.1.2)."""
    return _best_of(cost, rng, N_TRIES)


def _best_of(cost: IterationCost, rng: np.random.Generator, n_tries: int) -> SubsetResult:
    masks = _draw(rng, n_tries, cost.n_clusters)
    best = int(cost.times(masks).argmin())
    return result_of(cost, masks[best], n_tries)


def _draw(rng: np.random.Generator, n_tries: int, n_clusters: int) -> BoolArray:
    """Draw subsets with each cluster in or out with equal chance; an empty one gets one cluster."""
    masks = rng.random((n_tries, n_clusters)) < 0.5
    empty = np.flatnonzero(~masks.any(axis=1))
    masks[empty, rng.integers(n_clusters, size=len(empty))] = True
    return masks
