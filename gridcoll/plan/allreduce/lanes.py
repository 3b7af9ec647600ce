"""Allreduce in pieces, one per member of a cluster: lanes, shares, and both over nearby sites."""

from __future__ import annotations

from itertools import pairwise, product
from math import lcm

import numpy as np

from gridcoll.constants import SMALLEST_PIECE_BYTES
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.allreduce.costs import SHAPES, costs_of, piece_candidate, price_pieces
from gridcoll.plan.allreduce.pieces import EVERYWHERE, Piece
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.plan.trees import SMALLEST_SEGMENT
from gridcoll.topology.grid import Grid

NEAR = 0.25
"""Clusters are neighbours if their latency is at most this part of the longest one."""


MOST_PARTS = 50_000
"""Most pieces times ranks: pricing more would take longer than many calls."""

MOST_COLUMNS = 20_000
"""Members of the largest cluster times ranks. With more, pricing took 0.2 to 0.4 s, and `levels`,
which is priced by clusters, was predicted as fast or faster."""


def _cuts(grid: Grid) -> tuple[list[int], int]:
    """Bounds of the equal parts of the members of all clusters, and the message's length in the
    same unit.
    """
    sizes = {len(cluster) for cluster in grid.clusters}
    whole = lcm(*sizes)
    return sorted({k * (whole // size) for size in sizes for k in range(size + 1)}), whole


def can_cut(grid: Grid, n_bytes: int, n_each: int, smallest: int = SMALLEST_PIECE_BYTES) -> bool:
    """Whether columns, each cut into ``n_each``, are neither too short nor too many to be priced.

    Where sizes of clusters do not divide each other, they are more than the largest has members.
    """
    most = min(n_bytes // smallest, MOST_PARTS // grid.n_ranks) // n_each
    return max(map(len, grid.clusters)) <= most and len(_cuts(grid)[0]) - 1 <= most


def cut_columns(grid: Grid, n_units: int, homes: bool, turns: int = 1) -> list[Piece]:
    """Pieces such that every member of every cluster owns an equal part of the message.

    With ``homes``, each is cut once more, a part for each cluster to combine; else all are
    combined everywhere. With several ``turns`` each is cut into so many, which other members own in
    other clusters: so many flows to each.
    """
    sizes = [len(cluster) for cluster in grid.clusters]
    pieces = []
    cuts, whole = _cuts(grid)
    parts = len(sizes) if homes else 1
    n_each = parts * turns
    for low, high in pairwise(cuts):
        first = [low * size // whole for size in sizes]
        for turn, part in product(range(turns), range(parts)):
            owners = tuple((first[c] + turn * c) % size for c, size in enumerate(sizes))
            start, stop = (
                (low * n_each + (high - low) * k) * n_units // (whole * n_each)
                for k in (turn * parts + part, turn * parts + part + 1)
            )
            pieces.append(Piece(start, stop, owners, part if homes else EVERYWHERE))
    return pieces


def _columns(
    name: str, model: GridModel, groups: Grid, n_bytes: int, homes: bool
) -> list[Candidate]:
    """A piece per member of the largest group, or more where sizes do not divide each other."""
    n_groups, largest = len(groups.clusters), max(len(group) for group in groups.clusters)
    n_parts = n_groups if homes else 1
    if groups.n_ranks == 1 or not can_cut(groups, n_bytes, n_parts):
        return []
    if largest * groups.n_ranks > MOST_COLUMNS:
        return []
    ways = [(shape, 1) for shape in SHAPES]
    if can_cut(groups, n_bytes, n_parts * largest, SMALLEST_SEGMENT) and _windows_limit(model):
        ways.append(("flat", largest))
    found = []
    for shape, turns in ways:
        cut = cut_columns(groups, n_bytes, homes, turns)
        costs = costs_of(model, n_bytes, n_bytes // largest // n_parts // turns)
        how = f"{len(cut)} pieces, {shape} inside"
        totals = price_pieces(costs, groups, cut, [1] * n_groups, shape)

        def pieces(n_units: int, turns: int = turns) -> list[Piece]:
            return cut_columns(groups, n_units, homes, turns)

        all_send = groups is model.grid
        found.append(
            piece_candidate(name, how, costs, groups, totals, pieces, shape, all_send=all_send)
        )
    return found


def _windows_limit(model: GridModel) -> bool:
    """Whether several flows between any two clusters carry more than one does."""
    return bool(model.windows_limit[~np.eye(model.n_clusters, dtype=bool)].any())


@algorithm(
    "allreduce",
    "lanes",
    "middle sizes, and two clusters: one WAN latency, all interfaces busy",
    "gridcoll; reduce-scatter inside, exchange per lane, allgather inside",
)
def _lanes(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Every member collects its part; owners exchange partial results."""
    return _columns("lanes", model, model.grid, n_bytes, homes=False)


@algorithm(
    "allreduce",
    "shares",
    "long messages over three clusters or more: least bytes on every link",
    "gridcoll",
)
def _shares(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Every member collects its part; of each part every cluster combines a share."""
    return _columns("shares", model, model.grid, n_bytes, True) if model.n_clusters > 2 else []


def find_neighbours(model: GridModel) -> Grid:
    """The grid with clusters that are near each other as one.

    Near means a quarter of the longest latency, also by several such steps.
    """
    near = model.latency_s <= NEAR * model.latency_s.max()
    group = list(range(model.n_clusters))
    for i, j in np.argwhere(np.triu(near & near.T, 1)).tolist():
        group = [group[i] if g == group[j] else g for g in group]
    if group == list(range(model.n_clusters)):
        return model.grid
    labels = [group[cluster] for cluster in model.grid.cluster_of]
    return model.grid.regroup(labels)


@algorithm(
    "allreduce",
    "neighbours",
    "middle sizes, and clusters of which some are far nearer to each other than to the rest",
    "gridcoll; lanes or shares over sites instead of clusters",
)
def _neighbours(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Lanes and shares as if clusters near each other were one."""
    groups = find_neighbours(model)
    if not 1 < len(groups.clusters) < model.n_clusters:
        return []
    return [
        candidate
        for homes in (False, True)[: 2 if len(groups.clusters) > 2 else 1]
        for candidate in _columns("neighbours", model, groups, n_bytes, homes)
    ]
