"""Many instances at once, for studies. Arrays have one more axis in front."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from gridcoll.errors import UsageError
from gridcoll.schedule.instance import Accounting, Floats, Instance
from gridcoll.schedule.schedule import Schedule, Transfer

Integers = npt.NDArray[np.intp]


class Batch(Struct, frozen=True, eq=False, dict=True):
    """``b`` instances of equal size. The diagonals of the matrices must be 0.

    Raises `UsageError` if the shapes do not match.
    """

    latency_s: Floats
    gap_s: Floats
    internal_s: Floats
    root: int = 0
    accounting: Accounting = field(default_factory=Accounting)

    def __post_init__(self) -> None:
        if self.internal_s.ndim != 2:
            raise UsageError(f"internal_s: must be b x n, got shape {self.internal_s.shape}")
        b, n = self.internal_s.shape
        for name in ("latency_s", "gap_s"):
            shape = getattr(self, name).shape
            if shape != (b, n, n):
                raise UsageError(f"{name}: must be {b} x {n} x {n}, got shape {shape}")
        if not 0 <= self.root < n:
            raise UsageError(f"root: must be one of clusters 0..{n - 1}, got {self.root}")

    @classmethod
    def of(cls, one: Instance) -> Batch:
        """Return a batch of one instance."""
        times = one.latency_s[None], one.gap_s[None], one.internal_s[None]
        return cls(*times, one.root, one.accounting)

    @property
    def n_instances(self) -> int:
        return len(self.internal_s)

    @property
    def n_clusters(self) -> int:
        return int(self.internal_s.shape[1])

    @cached_property
    def cost_s(self) -> Floats:
        """``gap_s + latency_s``."""
        return self.gap_s + self.latency_s

    @cached_property
    def cost_in_s(self) -> Floats:
        """`cost_s` with the receiver first: a copy, so that one receiver's row is contiguous."""
        return np.ascontiguousarray(self.cost_s.transpose(0, 2, 1))

    @property
    def busy_s(self) -> Floats:
        """How long each send keeps its sender busy."""
        return self.gap_s if self.accounting.busy == "gap" else self.cost_s

    def instance(self, index: int) -> Instance:
        """Return one instance."""
        times = self.latency_s[index], self.gap_s[index], self.internal_s[index]
        return Instance(*times, self.root, self.accounting)


class BatchSchedules(Struct, frozen=True, eq=False):
    """One schedule per instance of a `Batch`."""

    root: int
    senders: Integers
    receivers: Integers
    """(b, n - 1) arrays: the transfers, in order."""
    makespan_s: Floats
    lower_bound_s: Floats

    def schedule(self, index: int) -> Schedule:
        """Return one schedule."""
        pairs = zip(self.senders[index], self.receivers[index], strict=True)
        return Schedule(
            self.senders.shape[1] + 1,
            self.root,
            tuple(Transfer(int(i), int(j)) for i, j in pairs),
            float(self.makespan_s[index]),
            float(self.lower_bound_s[index]),
        )


def price_batch(batch: Batch, senders: Integers, receivers: Integers) -> BatchSchedules:
    """Return schedules of the given transfers with their makespans, one row per instance."""
    rows = np.arange(batch.n_instances)
    ready = np.zeros(batch.internal_s.shape)
    arrival = np.zeros(batch.internal_s.shape)
    for i, j in zip(senders.T, receivers.T, strict=True):
        start = ready[rows, i]
        ready[rows, j] = arrival[rows, j] = start + batch.cost_s[rows, i, j]
        ready[rows, i] = start + batch.busy_s[rows, i, j]
    begin = ready if batch.accounting.internal == "after-last-send" else arrival
    makespan = (begin + batch.internal_s).max(axis=1)
    return BatchSchedules(batch.root, senders, receivers, makespan, np.zeros_like(makespan))


def for_one_instance(
    pick_batch: Callable[[Batch], BatchSchedules],
) -> Callable[[Instance], Schedule]:
    """Return a heuristic for one instance, made from its batched form."""
    return lambda instance: pick_batch(Batch.of(instance)).schedule(0)


def one_after_another(pick: Callable[[Instance], Schedule]) -> Callable[[Batch], BatchSchedules]:
    """Return a batched form of a heuristic that handles the instances one after another."""

    def pick_batch(batch: Batch) -> BatchSchedules:
        found = [pick(batch.instance(index)) for index in range(batch.n_instances)]
        transfers = np.array([schedule.transfers for schedule in found], dtype=np.intp)
        transfers = transfers.reshape(len(found), batch.n_clusters - 1, 2)
        return BatchSchedules(
            batch.root,
            transfers[..., 0],
            transfers[..., 1],
            np.array([schedule.makespan_s for schedule in found]),
            np.array([schedule.lower_bound_s for schedule in found]),
        )

    return pick_batch
