"""The messages of LG's plans, as `alltoall_messages` has those of the others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gridcoll.model.plogp import FloatArray
from gridcoll.plan.alltoall.lg import Message, exchanges
from gridcoll.plan.alltoall.lg_packed import full_ranks
from gridcoll.plan.alltoall.messages import (
    N_BLOCKS,
    Messages,
    Weights,
    by_rank,
    inside_rows,
    messages_of,
    table_of,
)
from gridcoll.topology.grid import Grid


class _LgScale(NamedTuple):
    """For what messages of LG from one cluster to another stand, in a sample."""

    collected: float
    """A block to its collector: how many its source sends and its collector gets."""
    n_blocks: float
    """Those of a message across, as a multiple of what it carries in the sample."""
    n_out: float
    n_in: float
    n_alike: float


@lru_cache(maxsize=1024)
def _lg_scale(n_source: int, n_target: int, source_weight: float, target_weight: float) -> _LgScale:
    """Of ``n_source`` ranks that collect for ``n_target``; each stands for as many as it weighs."""
    source_size, target_size = n_source * source_weight, n_target * target_weight
    n_alike = max(source_size, target_size) / max(n_source, n_target)
    # Of all blocks, those that a message's collector has itself go nowhere before.
    n_collected = n_source * n_target - max(n_source, n_target)
    size_collected = source_size * target_size - max(source_size, target_size)
    return _LgScale(
        size_collected / max(n_collected, 1) / source_weight if n_collected else 1.0,
        min(source_size, target_size) / min(n_source, n_target),
        n_alike / source_weight,
        n_alike / target_weight,
        n_alike,
    )


def _crossing(grid: Grid, weight_of: FloatArray) -> Iterator[tuple[Message, _LgScale]]:
    """What LG sends between clusters, and for what each stands."""
    for exchange in exchanges(grid):
        for message in exchange.messages:
            ends = message[:2]
            n_source, n_target = (len(grid.clusters[grid.cluster_of[rank]]) for rank in ends)
            yield message, _lg_scale(n_source, n_target, *(float(weight_of[rank]) for rank in ends))


@lru_cache(maxsize=64)
def lg_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Of `plan_lg`: to collectors, across, and inside; collectors wait for what they collect."""
    weight_of = by_rank(grid, weights)
    collected = list[tuple[float, ...]]()
    across = list[tuple[float, ...]]()
    needs = list[tuple[int, int]]()
    for (collector, target, sources), scale in _crossing(grid, weight_of):
        for source in sources:
            if source != collector:
                needs.append((len(across), len(collected)))
                alike = scale.collected * float(weight_of[source])
                collected.append((source, collector, 1, scale.collected, scale.collected, alike))
        across.append((collector, target, len(sources) * scale.n_blocks, *scale[2:]))
    inside = [inside_rows(cluster.ranks, weight_of) for cluster in grid.clusters]
    later = np.array(needs, int).reshape(-1, 2)
    later[:, 0] += len(collected)
    return messages_of([table_of(collected), table_of(across), *inside], [later])


@lru_cache(maxsize=64)
def lg_packed_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Of `plan_lg_packed`: from neighbour to neighbour, and across."""
    weight_of = by_rank(grid, weights)
    inside = np.concatenate([inside_rows(each.ranks, weight_of) for each in grid.clusters]).tolist()
    parcel = {(int(row[0]), int(row[1])): k for k, row in enumerate(inside)}
    full, apart = full_ranks(grid), set[tuple[int, int]]()
    across = list[tuple[float, ...]]()
    needs = list[tuple[int, int]]()
    for (collector, target, sources), scale in _crossing(grid, weight_of):
        for source in sources:
            if source == collector:
                continue
            k = parcel[source, collector]
            if collector in full and (source, collector) not in apart:
                apart.add((source, collector))
                inside.append([*inside[k]])
                inside[k][N_BLOCKS] = 0.0
            inside[k][N_BLOCKS] += scale.collected / float(weight_of[collector])
            needs.append((len(across), k))
        across.append((collector, target, len(sources) * scale.n_blocks, *scale[2:]))
    later = np.array(needs, int).reshape(-1, 2)
    later[:, 0] += len(inside)
    return messages_of([table_of(inside), table_of(across)], [later])
