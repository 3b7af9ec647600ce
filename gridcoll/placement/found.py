"""What a search returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gridcoll.placement.cost import BoolArray, IterationCost


@dataclass(frozen=True)
class Found:
    """The best subset a search saw.

    ``n_evaluated`` counts the subsets whose time was computed (bounds, for a search that prunes);
    ``proven`` says that no subset is faster, not only none that was seen.
    """

    clusters: tuple[int, ...]
    iteration_s: float
    n_evaluated: int
    proven: bool = False


def found(cost: IterationCost, mask: BoolArray, n_evaluated: int, proven: bool = False) -> Found:
    """`Found` for ``mask``, its time computed from scratch: equal subsets get equal times."""
    clusters = tuple(int(i) for i in np.flatnonzero(mask))
    return Found(clusters, cost.time_s(clusters), n_evaluated, proven)
