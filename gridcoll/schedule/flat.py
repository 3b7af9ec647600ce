"""Flat tree: the root sends to all, in index order (paper 000, §4.1; ECO and MagPIe)."""

from __future__ import annotations

import numpy as np

from gridcoll.schedule.batch import Batch, BatchSchedules, price_batch
from gridcoll.schedule.greedy import Choice, Progress, run_greedy
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.schedule import Schedule


def flat(instance: Instance) -> Schedule:
    """The root sends to all other clusters, lowest index first."""
    return run_greedy(instance, _choose)


def _choose(progress: Progress) -> Choice:
    return progress.instance.root, progress.waiting[0]


def flat_batch(batch: Batch) -> BatchSchedules:
    """`flat` on every instance."""
    order = np.delete(np.arange(batch.n_clusters), batch.root)
    receivers = np.broadcast_to(order, (batch.n_instances, len(order)))
    return price_batch(batch, np.full_like(receivers, batch.root), receivers)
