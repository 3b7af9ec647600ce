"""Ways to reduce and allreduce by the bracket: which pieces, which segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.allreduce.candidates import (
    SMALLEST_PIECE,
    can_cut,
    costs_of,
    cut_columns,
    segment_units,
    unit_bytes_of,
)
from gridcoll.plan.allreduce.piece_prices import price_pieces
from gridcoll.plan.allreduce.pieces import EVERYWHERE, Piece
from gridcoll.plan.allreduce.rank_order import plan_in_rank_order
from gridcoll.plan.bracket import whole_blocks
from gridcoll.plan.pacing import paced_by_links
from gridcoll.plan.plan import Plan
from gridcoll.plan.registry import Algorithm, Candidate, register
from gridcoll.schedule.paths import find_hub
from gridcoll.topology.units import format_size

MOST_SCRATCH_BYTES = 64 << 20
"""Of a rank that combines the whole message. What an interface passes in that much is more than any
latency: nobody waits for room who would not wait for the interface."""

Cut = Callable[[int], list[Piece]]
"""Cuts a message of so many units."""


def _candidates(model: GridModel, n_bytes: int, cuts: dict[str, Cut], root: int) -> list[Candidate]:
    """Each of ``cuts`` at its best segment size; ``root`` is -1 for an allreduce."""
    grid = model.grid
    counts = Counter(grid.cluster_of[block.start] for block in whole_blocks(grid.cluster_of))
    parts = [counts[cluster] for cluster in range(model.n_clusters)]
    most_terms = max(len(c) + sum(parts) - own for c, own in zip(grid.clusters, parts, strict=True))
    fits = MOST_SCRATCH_BYTES // (2 * most_terms)  # two segments, with all that belongs to each
    found = []
    for how, cut in cuts.items():
        pieces = [piece for piece in cut(max(n_bytes, 1)) if piece.stop > piece.start]
        longest = max(piece.stop - piece.start for piece in pieces)
        costs = costs_of(model, n_bytes, min(longest, fits) if len(pieces) == 1 else longest)
        totals = price_pieces(costs, grid, pieces, parts, "flat", root)
        best = int(np.argmin(totals))
        segment = int(costs.segment_bytes[best])
        label = f"{how}; {format_size(segment)} segments"

        def build(n_units: int, cut: Cut = cut, segment: int = segment, label: str = label) -> Plan:
            size = segment_units(n_units, segment, n_bytes)
            most = MOST_SCRATCH_BYTES * n_units // max(n_bytes, 1)
            pieces = cut(n_units)
            plan = plan_in_rank_order(
                grid, n_units, pieces, size, root, f"rank-order: {label}", most
            )
            unit_bytes = unit_bytes_of(n_units, n_bytes)
            return paced_by_links(plan, model, unit_bytes, all_send=len(pieces) > 1)

        found.append(
            Candidate(
                "rank-order", label, float(totals[best]), build, None, segment, True, fixed=True
            )
        )
    return found


def _can_part(model: GridModel, n_bytes: int, n_each: int) -> bool:
    """Whether columns are cut into ``n_each``.

    That pays even where pieces are shorter than others are: else few ranks get everybody's.
    """
    grid = model.grid
    return n_bytes >= SMALLEST_PIECE * grid.n_ranks and can_cut(grid, n_bytes, n_each, 1)


def _allreduce(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Coordinators exchange what they have or meet at one; or every member has its part."""
    grid, n = model.grid, model.n_clusters
    if grid.n_ranks == 1:
        return []
    hub = find_hub(model.latency_s)
    cuts: dict[str, Cut] = {
        "coordinators exchange": lambda n_units: [Piece(0, n_units, (0,) * n, EVERYWHERE)],
        "coordinators meet at " + grid.clusters[hub].name: lambda n_units: [
            Piece(0, n_units, (0,) * n, hub)
        ],
    }
    if _can_part(model, n_bytes, 1):
        cuts["a part per member"] = lambda n_units: cut_columns(grid, n_units, False)
    if _can_part(model, n_bytes, n):
        cuts["a part per member and cluster"] = lambda n_units: cut_columns(grid, n_units, True)
    return _candidates(model, n_bytes, cuts, -1)


def _reduce(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """The root combines all; or every member of its cluster a part; or everybody one."""
    grid = model.grid
    if grid.n_ranks == 1:
        return []
    home = grid.cluster_of[root]
    owners = tuple(
        cluster.places[root] if c == home else 0 for c, cluster in enumerate(grid.clusters)
    )
    cuts: dict[str, Cut] = {"at the root": lambda n_units: [Piece(0, n_units, owners, home)]}
    if _can_part(model, n_bytes, 1):
        cuts["a part per member of the root's cluster"] = lambda n_units: [
            replace(piece, home=home) for piece in cut_columns(grid, n_units, False)
        ]
    if _can_part(model, n_bytes, model.n_clusters):
        cuts["a part per member and cluster"] = lambda n_units: cut_columns(grid, n_units, True)
    return _candidates(model, n_bytes, cuts, root)


for _collective, _function in (("allreduce", _allreduce), ("reduce", _reduce)):
    register(
        _collective,
        Algorithm(
            "rank-order",
            "operations that do not commute on ranks dealt out over clusters; reproducible sums",
            "gridcoll; the order of mpi4py's reductions of objects",
            _function,
        ),
    )
