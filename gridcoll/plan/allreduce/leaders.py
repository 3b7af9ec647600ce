"""Allreduce through leaders: each cluster combines at one rank, and leaders exchange results."""

from __future__ import annotations

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.allreduce.costs import SHAPES_INSIDE, costs_of, piece_candidate, price_leaders
from gridcoll.plan.allreduce.pieces import EVERYWHERE, Piece
from gridcoll.plan.registry import Candidate, algorithm, alias
from gridcoll.schedule.paths import find_hub


@algorithm(
    "allreduce",
    "leaders",
    "short messages: one WAN latency",
    "004 §2.2, with an exchange in place of its gather and broadcast",
)
def leaders(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return trees inside every cluster; leaders exchange partial results, or one combines them."""
    if model.grid.n_ranks == 1:
        return []
    n = model.n_clusters
    hub = find_hub(model.latency_s)
    costs = costs_of(model, n_bytes, n_bytes)
    found = []
    for shape in SHAPES_INSIDE:
        for home in (EVERYWHERE, hub) if n > 2 else (EVERYWHERE,):
            place = "meet at " + model.grid.clusters[home].name if home >= 0 else "exchange"

            def pieces(n_units: int, home: int = home) -> list[Piece]:
                return [Piece(0, n_units, (0,) * n, home)]

            how = f"{shape} inside" + (f", leaders {place}" if n > 1 else "")
            totals = price_leaders(costs, shape, home)
            candidate = piece_candidate(
                "leaders", how, costs, model.grid, totals, pieces, shape, all_send=False
            )
            found.append(candidate)
    return found


alias("allreduce", "coordinators", "leaders")
