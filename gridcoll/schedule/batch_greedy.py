"""The greedy heuristics on many instances at once.

The same choices as the readable forms (tests compare them), at O(n) per step and instance instead
of O(n²): for every waiting cluster its quickest sender and its look-ahead are kept, and looked up
again only when that sender has sent, or the cluster the look-ahead saw has been reached.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from gridcoll.schedule.batch import Batch, BatchSchedules, Integers, price_batch
from gridcoll.schedule.instance import Floats

Flags = npt.NDArray[np.bool_]


class BatchProgress:
    """Broadcasts half scheduled; every array has the instance first."""

    def __init__(self, batch: Batch, edge_s: Floats, with_ready: bool) -> None:
        b, n = batch.internal_s.shape
        self.batch = batch
        self.edge_s = edge_s
        self.with_ready = with_ready
        self.rows = np.arange(b)
        self.waiting = np.ones((b, n), dtype=bool)
        self.waiting[:, batch.root] = False
        self.ready_s = np.full((b, n), np.inf)
        """When each reached cluster can send next; infinite for the waiting."""
        self.ready_s[:, batch.root] = 0.0
        self.best_s = edge_s[:, batch.root, :].copy()
        self.source = np.full((b, n), batch.root, dtype=np.intp)
        """The least edge into each waiting cluster, and the reached cluster it comes from."""

    def choose(self, score: Floats) -> tuple[Integers, Integers]:
        """Senders and receivers of least score; ties to the smallest sender, then receiver."""
        score = np.where(self.waiting, score, np.inf)
        receiver = score.argmin(axis=1)
        tied = score == score[self.rows, receiver][:, None]
        for row in np.flatnonzero(np.count_nonzero(tied, axis=1) > 1):
            places = np.flatnonzero(tied[row])
            receiver[row] = places[self.source[row, places].argmin()]
        return self.source[self.rows, receiver], receiver

    def send(self, sender: Integers, receiver: Integers) -> None:
        """Commit to one transfer per instance, and renew what it changed."""
        rows, batch = self.rows, self.batch
        start = self.ready_s[rows, sender]
        arrival = start + batch.cost_s[rows, sender, receiver]
        self.ready_s[rows, receiver] = arrival
        self.ready_s[rows, sender] = start + batch.busy_s[rows, sender, receiver]
        self.waiting[rows, receiver] = False
        stale = (self.source == sender[:, None]) & self.waiting if self.with_ready else None
        edge = self.edge_s[rows, receiver]
        if self.with_ready:
            edge = edge + arrival[:, None]
        better = edge < self.best_s
        better |= (edge == self.best_s) & (receiver[:, None] < self.source)
        np.copyto(self.best_s, edge, where=better)
        np.copyto(self.source, np.broadcast_to(receiver[:, None], better.shape), where=better)
        if stale is not None:
            self._look_up(stale)

    def _look_up(self, stale: Flags) -> None:
        at, receiver = np.nonzero(stale)
        times = self.ready_s[at] + self.batch.cost_in_s[at, receiver]
        source = times.argmin(axis=1)
        self.source[at, receiver] = source
        self.best_s[at, receiver] = times[np.arange(len(at)), source]


class LookAhead(ABC):
    """F_j for every waiting j, kept up to date."""

    @abstractmethod
    def values(self, progress: BatchProgress) -> Floats:
        """F, (b, n); entries of reached clusters mean nothing."""

    @abstractmethod
    def reach(self, progress: BatchProgress, receiver: Integers) -> None:
        """Take note that the receivers no longer wait."""


def run_batch_greedy(
    batch: Batch,
    *,
    edge_s: Floats | None = None,
    with_ready: bool = False,
    upwards: bool = False,
    look_ahead: Callable[[Batch], LookAhead] | None = None,
) -> BatchSchedules:
    """Pick the least edge (plus ready time, plus look-ahead) until every cluster is reached.

    ``edge_s`` defaults to the cost; with ``upwards`` the largest edge plus T (less look-ahead) is
    picked instead.
    """
    ahead = look_ahead(batch) if look_ahead else None
    progress = BatchProgress(batch, batch.cost_s if edge_s is None else edge_s, with_ready)
    n = batch.n_clusters
    senders = np.zeros((batch.n_instances, n - 1), dtype=np.intp)
    receivers = np.zeros_like(senders)
    for step in range(n - 1):
        score = progress.best_s
        if upwards:
            score = -(score + batch.internal_s)
        if ahead:
            score = score + ahead.values(progress)
        sender, receiver = progress.choose(score)
        senders[:, step], receivers[:, step] = sender, receiver
        progress.send(sender, receiver)
        if ahead:
            ahead.reach(progress, receiver)
    return price_batch(batch, senders, receivers)
