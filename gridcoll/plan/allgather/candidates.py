"""Ways to allgather over a grid, and to reduce-scatter, which is the same backwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.allgather.prices import (
    BlockCosts,
    price_coordinators,
    price_lanes,
    price_ring,
)
from gridcoll.plan.allgather.trees import plan_allgather, plan_coordinators
from gridcoll.plan.allgather.ways import LaneWays, RingWays, Ways
from gridcoll.plan.bcast.segments import segment_sizes
from gridcoll.plan.blocks import LARGEST_MESSAGE
from gridcoll.plan.plan import Plan
from gridcoll.plan.reduce_scatter.mirror import plan_reduce_scatter
from gridcoll.plan.registry import Algorithm, Candidate, register
from gridcoll.schedule.paths import shortest_path
from gridcoll.topology.grid import Grid
from gridcoll.topology.units import format_size

Planner = Callable[[Ways, Sequence[int], int, str], Plan]
"""`plan_allgather` or `plan_reduce_scatter`."""

MOST_COLLECTED_BYTES = 1 << 20
"""Coordinators wait for all blocks of a cluster; with more than this they are not offered."""


def _candidate(
    name: str,
    label: str,
    predicted_s: float,
    n_ranks: int,
    build_blocks: Callable[[Sequence[int]], Plan],
    *,
    segment_bytes: int | None = None,
    ordered: bool = False,
) -> Candidate:
    def build(n_units: int) -> Plan:
        return build_blocks((n_units,) * n_ranks)

    return Candidate(
        name, label, predicted_s, build, None, segment_bytes, ordered, build_blocks=build_blocks
    )


def _along(
    name: str,
    how: str,
    ways: Callable[[], Ways],
    costs: BlockCosts,
    totals_s: FloatArray,
    planner: Planner,
    ordered: bool,
) -> list[Candidate]:
    """``ways`` at the segment size with the least of ``totals_s``."""
    best = int(np.argmin(totals_s))
    segment, n_bytes = int(costs.segment_bytes[best]), max(costs.n_bytes, 1)
    n_ranks = costs.model.grid.n_ranks
    label = f"{how}; {format_size(segment)} segments" if segment < n_bytes else how

    def build_blocks(sizes: Sequence[int]) -> Plan:
        # Units may be elements: as large a part of a block as it is in bytes.
        units = -(-sum(sizes) * segment // (n_bytes * n_ranks))
        size = min(max(units, 1), LARGEST_MESSAGE)
        return planner(ways(), sizes, size, f"{name}: {label}")

    predicted_s = float(totals_s[best])
    return [
        _candidate(
            name,
            label,
            predicted_s,
            n_ranks,
            build_blocks,
            segment_bytes=segment,
            ordered=ordered,
        )
    ]


def _lanes(model: GridModel, n_bytes: int, planner: Planner) -> list[Candidate]:
    """Every block goes to each other cluster and host once, whose ranks take turns in receiving."""
    grid = model.grid
    if grid.n_ranks == 1:
        return []
    costs = BlockCosts(model, n_bytes, segment_sizes(n_bytes))
    others = [
        what
        for what, there_are in (("host", grid.shares_hosts), ("cluster", model.n_clusters > 1))
        if there_are
    ]
    how = f"straight to the own {'host' if grid.shares_hosts else 'cluster'}"
    if others:
        how += f", one of each other {' and '.join(others)}, who hands it on"
    totals_s = price_lanes(costs, upwards=planner is plan_reduce_scatter)
    return _along("lanes", how, lambda: LaneWays(grid), costs, totals_s, planner, _intervals(grid))


def _intervals(grid: Grid) -> bool:
    """Whether ranks of a cluster, or of a host, are neighbours: sums are in rank order then."""
    return all(c.line == tuple(range(c.coordinator, c.coordinator + len(c))) for c in grid.clusters)


def _ring(model: GridModel, n_bytes: int, planner: Planner) -> list[Candidate]:
    """Around all ranks, cluster by cluster."""
    if model.grid.n_ranks < 3:
        return []
    order = shortest_path(model.latency_s, 0)
    ring = [rank for c in order for rank in model.grid.clusters[c].line]
    costs = BlockCosts(model, n_bytes, segment_sizes(n_bytes))
    totals_s = price_ring(costs, order)
    how = "around all ranks in cluster order"
    return _along("ring", how, lambda: RingWays(ring), costs, totals_s, planner, ordered=False)


def _coordinators(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Coordinators collect, exchange and hand out, without segments."""
    grid = model.grid
    if grid.n_ranks == 1 or n_bytes * grid.n_ranks > MOST_COLLECTED_BYTES:
        return []
    found = []
    for shape in ("binomial", "flat"):
        label = f"collected and exchanged by coordinators, handed out {shape}"

        def build_blocks(sizes: Sequence[int], shape: str = shape, label: str = label) -> Plan:
            return plan_coordinators(grid, sizes, shape, f"coordinators: {label}")

        predicted_s = price_coordinators(model, n_bytes, shape)
        found.append(_candidate("coordinators", label, predicted_s, grid.n_ranks, build_blocks))
    return found


def _register(collective: str, planner: Planner, tail: str) -> None:
    register(
        collective,
        Algorithm(
            "lanes",
            "most sizes: one WAN latency, a byte crosses to a cluster once, all interfaces busy",
            f"gridcoll{tail}",
            lambda model, n_bytes, root: _lanes(model, n_bytes, planner),
        ),
    )
    register(
        collective,
        Algorithm(
            "ring",
            "long blocks: least bytes, one flow per interface",
            f"the ring of MPI libraries, in cluster order and without its steps{tail}",
            lambda model, n_bytes, root: _ring(model, n_bytes, planner),
        ),
    )


_register("allgather", plan_allgather, "")
register(
    "allgather",
    Algorithm(
        "coordinators",
        "tiny blocks of many ranks: fewest messages",
        "004 §2.2, with an exchange in place of its gather and broadcast",
        _coordinators,
    ),
)
_register("reduce_scatter", plan_reduce_scatter, "; backwards")
