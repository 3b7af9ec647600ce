"""The look-aheads of ECEF-LA and its variants, on many instances at once."""

from __future__ import annotations

import numpy as np

from gridcoll.schedule.batch import Batch, Integers
from gridcoll.schedule.batch_greedy import BatchProgress, Flags, LookAhead
from gridcoll.schedule.instance import Floats


class Extreme(LookAhead):
    """The least (or, with ``largest``, the largest) of g_jk + L_jk, plus T_k with ``ends``."""

    def __init__(self, batch: Batch, *, largest: bool = False, ends: bool = False) -> None:
        self.sign = -1.0 if largest else 1.0
        self.batch = batch
        self.ends = ends
        shape = batch.internal_s.shape
        self.ahead = np.zeros(shape)
        self.next_hop = np.zeros(shape, dtype=np.intp)
        waiting = np.ones(shape, dtype=bool)
        waiting[:, batch.root] = False
        self._look_up(waiting, waiting)

    def values(self, progress: BatchProgress) -> Floats:
        return self.ahead

    def reach(self, progress: BatchProgress, receiver: Integers) -> None:
        seen = (self.next_hop == receiver[:, None]) & progress.waiting
        self._look_up(seen, progress.waiting)

    def _look_up(self, wanted: Flags, waiting: Flags) -> None:
        at, j = np.nonzero(wanted)
        times = self.batch.cost_s[at, j]
        if self.ends:
            times = times + self.batch.internal_s[at]
        times = np.where(waiting[at], self.sign * times, np.inf)
        pairs = np.arange(len(at))
        times[pairs, j] = np.inf
        hop = times.argmin(axis=1)
        least = times[pairs, hop]
        self.next_hop[at, j] = hop
        self.ahead[at, j] = np.where(np.isfinite(least), self.sign * least, 0.0)


class Average(LookAhead):
    """The average of g_jk + L_jk over waiting k; with ``senders`` from all reached and j.

    Sums are kept by subtraction, so they may differ from the readable form's in the last bit.
    """

    def __init__(self, batch: Batch, *, senders: bool = False) -> None:
        self.batch = batch
        self.senders = senders
        root = batch.root
        self.out_s = np.zeros(batch.internal_s.shape)  # from each cluster to all that wait
        for k in range(batch.n_clusters):
            if k != root:
                self.out_s += batch.cost_s[:, :, k]
        self.in_s = batch.cost_s[:, root, :].copy()  # from all reached to each cluster
        self.n_waiting = batch.n_clusters - 1

    def values(self, progress: BatchProgress) -> Floats:
        others = self.n_waiting - 1
        if not others:
            return np.zeros_like(self.out_s)
        if not self.senders:
            return self.out_s / others
        reached = np.where(progress.waiting, 0.0, self.out_s).sum(axis=1)
        total: Floats = reached[:, None] - self.in_s + self.out_s
        return total / ((self.batch.n_clusters - self.n_waiting + 1) * others)

    def reach(self, progress: BatchProgress, receiver: Integers) -> None:
        self.out_s -= self.batch.cost_in_s[progress.rows, receiver]
        self.in_s += self.batch.cost_s[progress.rows, receiver]
        self.n_waiting -= 1
