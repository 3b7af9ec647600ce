"""Fastest Edge First (Bhat et al. 2003; paper 000, §4.2)."""

from __future__ import annotations

from gridcoll.schedule.batch import Batch, BatchSchedules
from gridcoll.schedule.batch_greedy import run_batch_greedy
from gridcoll.schedule.greedy import Choice, Progress, run_greedy
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.schedule import Schedule


def fef(instance: Instance) -> Schedule:
    """The smallest latency between a reached and a waiting cluster, whenever the sender is free.

    The edge weight is the latency alone, as paper 000 says; gaps and waiting senders are not seen,
    which is the heuristic's known weakness.
    """
    return run_greedy(instance, _choose)


def _choose(progress: Progress) -> Choice:
    latency = progress.instance.latency_rows
    _, sender, receiver = min(
        (latency[i][j], i, j) for i in progress.reached for j in progress.waiting
    )
    return sender, receiver


def fef_batch(batch: Batch) -> BatchSchedules:
    """`fef` on every instance."""
    return run_batch_greedy(batch, edge_s=batch.latency_s)
