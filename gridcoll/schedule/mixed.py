"""The papers' recommendation by cluster count (paper 000, §6)."""

from __future__ import annotations

from gridcoll.schedule.batch import Batch, BatchSchedules
from gridcoll.schedule.ecef import ecef_la, ecef_la_batch, ecef_la_max_t, ecef_la_max_t_batch
from gridcoll.schedule.instance import Instance
from gridcoll.schedule.schedule import Schedule

FEW_CLUSTERS = 10
"""Paper 000 calls up to 10 clusters a reduced number; it gives no other threshold."""


def mixed(instance: Instance) -> Schedule:
    """ECEF-LA up to `FEW_CLUSTERS` clusters, ECEF-LAT beyond."""
    few = instance.n_clusters <= FEW_CLUSTERS
    return ecef_la(instance) if few else ecef_la_max_t(instance)


def mixed_batch(batch: Batch) -> BatchSchedules:
    """`mixed` on every instance."""
    few = batch.n_clusters <= FEW_CLUSTERS
    return ecef_la_batch(batch) if few else ecef_la_max_t_batch(batch)
