"""Allreduce in pieces, one per member of a cluster: lanes, shares, and both over neighbours."""

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

NEAR_LATENCY_FRACTION = 0.25
"""Clusters are neighbours if the latency between them is at most this part of the longest one."""


MOST_PARTS = 50_000
"""Limit of pieces times ranks. Pricing more would take longer than many calls."""

MOST_COLUMNS = 20_000
"""Limit of members of the largest cluster times ranks. With more, pricing took 0.2 to 0.4 s, and
`levels`, which is priced by clusters, was predicted as fast or faster."""


def _cuts(grid: Grid) -> tuple[list[int], int]:
    """Return the bounds of the members' equal parts in all clusters, and the message's length.

    Both are in the same unit, in which all bounds are integers.
    """
    sizes = set(grid.ranks_per_cluster)
    length = lcm(*sizes)
    return sorted({k * (length // size) for size in sizes for k in range(size + 1)}), length


def can_cut(grid: Grid, n_bytes: int, n_each: int, smallest: int = SMALLEST_PIECE_BYTES) -> bool:
    """Whether columns, each cut into ``n_each``, are neither too short nor too many to price.

    If sizes of clusters do not divide each other, there are more columns than members in the
    largest cluster.
    """
    most_cuts = min(n_bytes // smallest, MOST_PARTS // grid.n_ranks) // n_each
    return max(grid.ranks_per_cluster) <= most_cuts and len(_cuts(grid)[0]) - 1 <= most_cuts


def cut_columns(grid: Grid, n_units: int, with_homes: bool, turns: int = 1) -> list[Piece]:
    """Return pieces such that every member of every cluster owns an equal part of the message.

    If ``with_homes``, each is cut once more into a part for each cluster to combine; otherwise all
    are combined everywhere. Each is also cut into ``turns`` parts, which different members own in
    other clusters, so that a member has as many flows to each cluster.
    """
    sizes = grid.ranks_per_cluster
    pieces = []
    cuts, length = _cuts(grid)
    parts = len(sizes) if with_homes else 1
    n_each = parts * turns
    for low, high in pairwise(cuts):
        first = [low * size // length for size in sizes]
        for turn, part in product(range(turns), range(parts)):
            owners = tuple((first[c] + turn * c) % size for c, size in enumerate(sizes))
            start, stop = (
                (low * n_each + (high - low) * k) * n_units // (length * n_each)
                for k in (turn * parts + part, turn * parts + part + 1)
            )
            pieces.append(Piece(start, stop, owners, part if with_homes else EVERYWHERE))
    return pieces


def _columns(
    name: str, model: GridModel, groups: Grid, n_bytes: int, with_homes: bool
) -> list[Candidate]:
    """Return candidates with a piece per member of the largest group.

    There are more pieces if the sizes of groups do not divide each other.
    """
    n_groups, largest = len(groups.clusters), max(len(group) for group in groups.clusters)
    n_parts = n_groups if with_homes else 1
    if groups.n_ranks == 1 or not can_cut(groups, n_bytes, n_parts):
        return []
    if largest * groups.n_ranks > MOST_COLUMNS:
        return []
    variants = [(shape, 1) for shape in SHAPES]
    if can_cut(groups, n_bytes, n_parts * largest, SMALLEST_SEGMENT) and _windows_limit(model):
        variants.append(("flat", largest))
    found = []
    for shape, turns in variants:
        cut = cut_columns(groups, n_bytes, with_homes, turns)
        costs = costs_of(model, n_bytes, n_bytes // largest // n_parts // turns)
        how = f"{len(cut)} pieces, {shape} inside"
        totals = price_pieces(costs, groups, cut, [1] * n_groups, shape)

        def pieces(n_units: int, turns: int = turns) -> list[Piece]:
            return cut_columns(groups, n_units, with_homes, turns)

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
    """Return lanes: every member collects its part, and owners exchange partial results."""
    return _columns("lanes", model, model.grid, n_bytes, with_homes=False)


@algorithm(
    "allreduce",
    "shares",
    "long messages over three clusters or more: least bytes on every link",
    "gridcoll",
)
def _shares(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return shares: every member collects its part; each cluster combines a share of each part."""
    return _columns("shares", model, model.grid, n_bytes, True) if model.n_clusters > 2 else []


def find_neighbours(model: GridModel) -> Grid:
    """Return the grid in which clusters that are near each other are joined.

    Clusters are near if their latency is at most `NEAR_LATENCY_FRACTION` of the longest one, or if
    a chain of near clusters connects them.
    """
    is_near = model.latency_s <= NEAR_LATENCY_FRACTION * model.latency_s.max()
    is_near = is_near & is_near.T | np.eye(model.n_clusters, dtype=bool)
    every = np.arange(model.n_clusters)
    group, before = every, every - 1
    while (group != before).any():  # each takes the least number among those near it
        before, group = group, np.where(is_near, group, model.n_clusters).min(axis=1)
    if (group == every).all():
        return model.grid
    return model.grid.regroup(group[list(model.grid.cluster_of)].tolist())


@algorithm(
    "allreduce",
    "neighbours",
    "middle sizes, and clusters of which some are far nearer to each other than to the rest",
    "gridcoll; lanes or shares over sites instead of clusters",
)
def _neighbours(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return lanes and shares as if clusters that are near each other were one."""
    groups = find_neighbours(model)
    if not 1 < len(groups.clusters) < model.n_clusters:
        return []
    return [
        candidate
        for with_homes in (False, True)[: 2 if len(groups.clusters) > 2 else 1]
        for candidate in _columns("neighbours", model, groups, n_bytes, with_homes)
    ]
