"""LG's ways to exchange everything with everybody, with what the model says of each."""

from __future__ import annotations

from itertools import combinations

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.alltoall.candidates import has_both, of_grid, priced_s
from gridcoll.plan.alltoall.lg import plan_lg
from gridcoll.plan.alltoall.lg_messages import lg_messages, lg_packed_messages
from gridcoll.plan.alltoall.lg_packed import packed_blocks, plan_lg_packed
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Algorithm, Candidate, register
from gridcoll.topology.grid import Grid

MOST_PACKED_BYTES = 16 << 10
"""Copying longer blocks costs more than messages of their own do, which no model here knows."""

MOST_PACKED_RANKS = 256
"""To know how much scratch each needs takes time in proportion to the square of their number."""


def _lg(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if not has_both(grid):
        return []
    label = f"{_n_crossing(grid)} messages between clusters, put together by local groups"
    predicted_s = priced_s(model, of_grid(lg_messages), n_bytes)

    def build(n_units: int) -> Plan:
        return plan_lg(grid, n_units, f"lg: {label}")

    return [Candidate("lg", label, predicted_s, build)]


def _lg_packed(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if not has_both(grid) or n_bytes > MOST_PACKED_BYTES or grid.n_ranks > MOST_PACKED_RANKS:
        return []
    if packed_blocks(grid) > 2 * grid.n_ranks:
        return []
    label = f"{_n_crossing(grid)} messages between clusters, one from neighbour to neighbour"
    predicted_s = priced_s(model, of_grid(lg_packed_messages), n_bytes)

    def build(n_units: int) -> Plan:
        return plan_lg_packed(grid, n_units, f"lg-packed: {label}")

    return [Candidate("lg-packed", label, predicted_s, build)]


def _n_crossing(grid: Grid) -> int:
    return 2 * sum(max(len(a), len(b)) for a, b in combinations(grid.clusters, 2))


register(
    "alltoall",
    Algorithm(
        "lg",
        "short blocks where messages between clusters cost more than inside",
        "001 section 4, over any number of clusters",
        _lg,
    ),
)
register(
    "alltoall",
    Algorithm(
        "lg-packed",
        "tiny blocks where any message costs more than what is in it",
        "001 section 4; its local phase in one message from neighbour to neighbour",
        _lg_packed,
    ),
)
