"""The greedy heuristics on many instances at once, in O(n) per step and instance.

The best sender and the look-ahead of every waiting cluster are stored. They are computed again only
after that sender has sent, or after the cluster of the look-ahead was reached.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from gridcoll.schedule.batch import Batch, BatchSchedules, Integers, price_batch
from gridcoll.schedule.greedy import RULES, Rule, mixed_rule
from gridcoll.schedule.instance import Floats

Flags = npt.NDArray[np.bool_]


class BatchProgress:
    """Partly scheduled broadcasts. The first axis of every array is the instance."""

    def __init__(self, batch: Batch, edge_s: Floats, with_ready: bool) -> None:
        b, n = batch.internal_s.shape
        self.batch = batch
        self.edge_s = edge_s
        self.with_ready = with_ready
        self.rows = np.arange(b)
        self.waiting = np.ones((b, n), dtype=bool)
        self.waiting[:, batch.root] = False
        self.ready_s = np.full((b, n), np.inf)
        """When each reached cluster can send next; infinite for waiting clusters."""
        self.ready_s[:, batch.root] = 0.0
        self.best_s = edge_s[:, batch.root, :].copy()
        self.source = np.full((b, n), batch.root, dtype=np.intp)
        """The least edge into each waiting cluster, and the reached cluster that it comes from."""

    def choose(self, score: Floats) -> tuple[Integers, Integers]:
        """Return senders and receivers of least score; ties go to the least sender and receiver."""
        score = np.where(self.waiting, score, np.inf)
        receiver = score.argmin(axis=1)
        tied = score == score[self.rows, receiver][:, None]
        for row in np.flatnonzero(np.count_nonzero(tied, axis=1) > 1):
            places = np.flatnonzero(tied[row])
            receiver[row] = places[self.source[row, places].argmin()]
        return self.source[self.rows, receiver], receiver

    def send(self, sender: Integers, receiver: Integers) -> None:
        """Add one transfer per instance, and update what it changes."""
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
        """Find the best sender again for the clusters marked in ``stale``."""
        at, receiver = np.nonzero(stale)
        times = self.ready_s[at] + self.batch.cost_in_s[at, receiver]
        source = times.argmin(axis=1)
        self.source[at, receiver] = source
        self.best_s[at, receiver] = times[np.arange(len(at)), source]


class ExtremeLookAhead:
    """F_j for every waiting j by a rule: the least or the largest of g_jk + L_jk (+ T_k)."""

    def __init__(self, rule: Rule, batch: Batch) -> None:
        self.sign = float(rule.look_ahead)
        self.batch = batch
        self.with_internal = rule.with_internal
        shape = batch.internal_s.shape
        self.ahead = np.zeros(shape)
        self.next_hop = np.zeros(shape, dtype=np.intp)
        waiting = np.ones(shape, dtype=bool)
        waiting[:, batch.root] = False
        self._look_up(waiting, waiting)

    def values(self, progress: BatchProgress) -> Floats:
        """Return F, (b, n). Entries of reached clusters have no meaning."""
        return self.ahead

    def reach(self, progress: BatchProgress, receiver: Integers) -> None:
        """Update F after one receiver per instance was reached."""
        stale = (self.next_hop == receiver[:, None]) & progress.waiting
        self._look_up(stale, progress.waiting)

    def _look_up(self, wanted: Flags, waiting: Flags) -> None:
        at, j = np.nonzero(wanted)
        times = self.batch.cost_s[at, j]
        if self.with_internal:
            times = times + self.batch.internal_s[at]
        times = np.where(waiting[at], self.sign * times, np.inf)
        pairs = np.arange(len(at))
        times[pairs, j] = np.inf
        hop = times.argmin(axis=1)
        least = times[pairs, hop]
        self.next_hop[at, j] = hop
        self.ahead[at, j] = np.where(np.isfinite(least), self.sign * least, 0.0)


class AverageLookAhead:
    """F_j as the average of g_jk + L_jk over waiting k.

    With ``senders``, the average is over waiting k and over senders: all reached clusters and j.
    Sums are updated by subtraction, so they may differ from a plain sum in the last bit.
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


def run_batch_greedy(
    rule: Rule, batch: Batch, *, average: Callable[[Batch], AverageLookAhead] | None = None
) -> BatchSchedules:
    """Pick transfers by ``rule`` until every cluster is reached.

    ``average`` is the look-ahead to use if the rule has none.
    """
    ahead: ExtremeLookAhead | AverageLookAhead | None = average(batch) if average else None
    if rule.look_ahead:
        ahead = ExtremeLookAhead(rule, batch)
    edge_s = batch.latency_s if rule.latency else batch.cost_s
    progress = BatchProgress(batch, edge_s, rule.ready)
    n = batch.n_clusters
    senders = np.zeros((batch.n_instances, n - 1), dtype=np.intp)
    receivers = np.zeros_like(senders)
    for step in range(n - 1):
        score = progress.best_s
        if rule.largest_first:
            score = -(score + batch.internal_s)
        if ahead:
            score = score + ahead.values(progress)
        sender, receiver = progress.choose(score)
        senders[:, step], receivers[:, step] = sender, receiver
        progress.send(sender, receiver)
        if ahead:
            ahead.reach(progress, receiver)
    return price_batch(batch, senders, receivers)


ecef_la_avg = partial(run_batch_greedy, RULES["ecef"], average=AverageLookAhead)
"""F_j is the average over waiting k of g_jk + L_jk (Bhat's "latency" is the whole transfer)."""

ecef_la_avg_senders = partial(
    run_batch_greedy, RULES["ecef"], average=partial(AverageLookAhead, senders=True)
)
"""F_j is the average of g_ik + L_ik over i, which is j or a reached cluster, and waiting k."""


def flat_batch(batch: Batch) -> BatchSchedules:
    """`greedy.flat` on every instance."""
    order = np.delete(np.arange(batch.n_clusters), batch.root)
    receivers = np.broadcast_to(order, (batch.n_instances, len(order)))
    return price_batch(batch, np.full_like(receivers, batch.root), receivers)


def mixed_batch(batch: Batch) -> BatchSchedules:
    """`greedy.mixed` on every instance."""
    return run_batch_greedy(mixed_rule(batch.n_clusters), batch)
