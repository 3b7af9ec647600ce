"""A direct exchange in which all blocks take as long as the busiest wire.

If interfaces or links are unlike and all send as fast as they can, some finish early while the
blocks that take longest wait for their turn. Here the parts of every block leave evenly over the
time that the busiest wire needs for all of its blocks, as in a relayed exchange, but without
relays.
"""

from __future__ import annotations

import numpy as np

from gridcoll.constants import SHORTEST_PACED_BYTES, THIN_LINK
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.alltoall.cost import MOST_PACED_RANKS
from gridcoll.plan.alltoall.relayed import direct_shares, spread_candidate
from gridcoll.plan.pacing import thin_links
from gridcoll.plan.registry import Candidate, algorithm


def has_unlike_wires(model: GridModel) -> bool:
    """Whether interfaces are unlike, or links are unlike and some are thin, or an uplink limits.

    Otherwise one pace suits all.
    """
    if np.isfinite(model.uplinks).any() or model.has_unlike_interfaces:
        return True
    between = model.link_bytes_per_s[~np.eye(model.n_clusters, dtype=bool)]
    return bool(thin_links(model).any() and between.min() < THIN_LINK * between.max())


@algorithm(
    "alltoall",
    "spread",
    "long blocks where interfaces or links are unlike",
    "gridcoll; the steady state of Beaumont et al. 2005, by the clock",
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    if model.n_clusters < 2 or model.grid.n_ranks > MOST_PACED_RANKS:
        return []
    if n_bytes < SHORTEST_PACED_BYTES or not has_unlike_wires(model):
        return []
    label = "parts of every block, evenly over the time of the busiest wire"
    return [spread_candidate("spread", label, model, direct_shares(model), n_bytes)]
