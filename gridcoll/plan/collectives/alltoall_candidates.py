"""Ways to exchange everything with everybody, with what the model says of each."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.choose import Algorithm, Candidate, register
from gridcoll.plan.collectives.alltoall import (
    N_PAIRWISE_SLOTS,
    plan_direct,
    plan_far_first,
    plan_pairwise,
)
from gridcoll.plan.collectives.alltoall_bruck import bruck_steps, plan_bruck
from gridcoll.plan.collectives.alltoall_coordinator import coordinator_blocks, plan_coordinator
from gridcoll.plan.collectives.alltoall_lg import exchanges, plan_lg
from gridcoll.plan.collectives.alltoall_price import (
    Messages,
    busiest_s,
    far_first_s,
    far_order,
    inside_hop_s,
    loads_s,
    longest_hop_s,
    tally,
)
from gridcoll.plan.plan import Plan
from gridcoll.topology.grid import Grid

MOST_COORDINATOR_BYTES = 1 << 20
"""Coordinators keep all that crosses; beyond this much scratch they are not offered."""


def _direct(grid: Grid, n_units: int, label: str) -> Plan:
    order = [rank for cluster in grid.clusters for rank in cluster.ranks]
    return plan_direct(order, n_units, label)


def _pairwise(grid: Grid, n_units: int, label: str) -> Plan:
    return plan_pairwise(grid.n_ranks, n_units, label)


def _bruck(grid: Grid, n_units: int, label: str) -> Plan:
    return plan_bruck(grid.n_ranks, n_units, label)


_PLANS: dict[str, Callable[[Grid, int, str], Plan]] = {
    "direct": _direct,
    "pairwise": _pairwise,
    "bruck": _bruck,
    "coordinator": plan_coordinator,
    "lg": plan_lg,
}


@lru_cache(maxsize=64)
def _messages(grid: Grid, name: str) -> Messages:
    return tally(_PLANS[name](grid, 1, ""))


def _candidate(name: str, label: str, model: GridModel, predicted_s: float) -> Candidate:
    def build(n_units: int) -> Plan:
        return _PLANS[name](model.grid, n_units, f"{name}: {label}")

    return Candidate(name, label, predicted_s, build)


def _direct_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    if model.grid.n_ranks == 1:
        return []
    busy_s = busiest_s(model, _messages(model.grid, "direct"), n_bytes)
    label = "every block to its receiver, all at once"
    return [_candidate("direct", label, model, busy_s + longest_hop_s(model))]


def _far_first_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """The messages of a direct exchange in another order: only when the last arrives differs."""
    if model.n_clusters == 1:
        return []
    rank_s, between_s = loads_s(model, _messages(model.grid, "direct"), n_bytes)
    inside_s = float(np.diag(model.latency_s).min())
    total_s = max(far_first_s(model, n_bytes), between_s + longest_hop_s(model), rank_s + inside_s)
    order = far_order(model)
    label = "every block to its receiver, those with the longest way first"

    def build(n_units: int) -> Plan:
        clusters = [cluster.ranks for cluster in model.grid.clusters]
        return plan_far_first(clusters, order, n_units, f"far-first: {label}")

    return [Candidate("far-first", label, total_s, build)]


def _pairwise_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """A slot is taken until its message is delivered, or handed over where that is sooner."""
    if model.grid.n_ranks == 1:
        return []
    messages = _messages(model.grid, "pairwise")
    clusters = np.array(model.grid.cluster_of)
    gaps, alone = model.gap_and_alone_s(np.array([float(n_bytes)]))
    held = np.maximum(alone[..., 0] - model.latency_s, gaps[..., 0])
    per_message = held[clusters[messages.source], clusters[messages.target]]
    serial_s = float(np.bincount(messages.source, per_message).max()) / N_PAIRWISE_SLOTS
    total_s = max(busiest_s(model, messages, n_bytes), serial_s) + longest_hop_s(model)
    return [_candidate("pairwise", f"{N_PAIRWISE_SLOTS} sends at a time", model, total_s)]


def _bruck_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Every step waits for the one before: its slowest message is on everybody's way."""
    n_ranks = model.grid.n_ranks
    if n_ranks == 1:
        return []
    steps = bruck_steps(n_ranks)
    clusters = np.array(model.grid.cluster_of)
    _, alone = model.gap_and_alone_s(np.array([float(len(step) * n_bytes) for step in steps]))
    serial_s = sum(
        float(alone[clusters, np.roll(clusters, -(1 << k)), k].max()) for k in range(len(steps))
    )
    busy_s = busiest_s(model, _messages(model.grid, "bruck"), n_bytes)
    total_s = max(serial_s, busy_s + longest_hop_s(model))
    return [_candidate("bruck", f"{len(steps)} steps", model, total_s)]


def _has_both(grid: Grid) -> bool:
    """Whether there is anything to do inside a cluster and anything between two."""
    return len(grid.clusters) > 1 and len(grid.clusters) < grid.n_ranks


def _coordinator_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if not _has_both(grid) or coordinator_blocks(grid) * n_bytes > MOST_COORDINATOR_BYTES:
        return []
    n_remote = np.array([grid.n_ranks - len(cluster) for cluster in grid.clusters])
    members = np.array([len(cluster) for cluster in grid.clusters])
    gaps, _ = model.gap_and_alone_s(n_remote.astype(float) * n_bytes)
    own = np.arange(len(members))
    # Collecting before the first message out, handing out after the last one in.
    fill_s = 2 * float(((members - 1) * gaps[own, own, own]).max())
    busy_s = busiest_s(model, _messages(grid, "coordinator"), n_bytes, fill_s=fill_s)
    total_s = busy_s + longest_hop_s(model) + 2 * inside_hop_s(model)
    n_messages = len(members) * (len(members) - 1)
    label = f"{n_messages} messages between clusters, through coordinators"
    return [_candidate("coordinator", label, model, total_s)]


def _lg_candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if not _has_both(grid):
        return []
    gaps, _ = model.gap_and_alone_s(np.array([float(n_bytes)]))
    n_messages, fill_s = _lg_shape(grid)
    fill = max(count * float(gaps[c, c, 0]) for c, count in enumerate(fill_s))
    busy_s = busiest_s(model, _messages(grid, "lg"), n_bytes, fill_s=fill)
    total_s = busy_s + longest_hop_s(model) + inside_hop_s(model)
    label = f"{n_messages} messages between clusters, put together by local groups"
    return [_candidate("lg", label, model, total_s)]


@lru_cache(maxsize=64)
def _lg_shape(grid: Grid) -> tuple[int, tuple[int, ...]]:
    """Messages between clusters, and by cluster the most blocks a message waits for."""
    n_messages, most = 0, [0] * len(grid.clusters)
    for exchange in exchanges(grid):
        n_messages += len(exchange.messages)
        for collector, _, sources in exchange.messages:
            cluster = grid.cluster_of[collector]
            most[cluster] = max(most[cluster], len(sources) - 1)
    return n_messages, tuple(most)


register(
    "alltoall",
    Algorithm(
        "direct",
        "long blocks: interfaces pass nothing twice; Alltoallv and Alltoallw are native so far",
        "003 section 5, direct exchange, rotated",
        _direct_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "far-first",
        "long blocks between clusters: latency passes while interfaces send to neighbours",
        "gridcoll; direct exchange ordered by the model's latencies",
        _far_first_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "pairwise",
        "long blocks where many flows at once hinder one another",
        "MPICH and Open MPI's pairwise exchange, without its steps",
        _pairwise_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "bruck",
        "tiny blocks among many ranks of one cluster",
        "Bruck et al. 1997",
        _bruck_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "coordinator",
        "tiny blocks where messages between clusters cost most",
        "PACX and MagPIe, as 001 section 4.1 tells of them",
        _coordinator_candidates,
    ),
)
register(
    "alltoall",
    Algorithm(
        "lg",
        "short blocks where messages between clusters cost more than inside",
        "001 section 4, over any number of clusters",
        _lg_candidates,
    ),
)
