"""Times of all neighbours of a subset at once: what the local searches and the report live on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gridcoll.model.plogp import FloatArray
from gridcoll.placement.cost import BoolArray, IterationCost, Tally
from gridcoll.placement.resources import as_mask


def flip_times(cost: IterationCost, mask: BoolArray) -> FloatArray:
    """(C,) seconds of an iteration after adding, or dropping, each cluster of ``mask`` (C,).

    ``inf`` where nothing would be left.
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
    # Whatever is dropped, a longest pair that keeps both ends keeps its latency.
    inside = latency_s[chosen][:, chosen]
    for end in set(divmod(int(inside.argmax()), len(chosen))):
        row, column = inside[end].copy(), inside[:, end].copy()
        inside[end] = inside[:, end] = 0.0
        after[chosen[end]] = inside.max()
        inside[end], inside[:, end] = row, column
    return after


class Growth:
    """Many subsets grown side by side, each by one cluster or one group at a time.

    ``moves`` are what may be added; row n of ``masks`` is the n-th subset.
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
        """(N, M) seconds after each move on each subset; ``inf`` where it adds nothing."""
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
        """(3, N, M) clusters, hosts and power of each move that its subset has already."""
        weighted = self.masks[None, :, :] * self._weights.T[:, None, :]
        overlaps: FloatArray = weighted @ self._moves.T.astype(float)
        return overlaps

    def step(self) -> bool:
        """Make each subset's best move where it saves time; whether any subset moved.

        Ties go to the lowest move. Subsets that cannot improve stay.
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
