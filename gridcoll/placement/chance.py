"""Random subsets: the yardstick of the paper's tables."""

from __future__ import annotations

import numpy as np

from gridcoll.placement.cost import BoolArray, IterationCost
from gridcoll.placement.found import Found, found

N_TRIES = 1000


def random_subset(cost: IterationCost, rng: np.random.Generator) -> Found:
    """One random subset (paper 004, §3.1.2)."""
    return _best_of(cost, rng, 1)


def random_1k(cost: IterationCost, rng: np.random.Generator) -> Found:
    """The best of a thousand random subsets (paper 004, §3.1.2)."""
    return _best_of(cost, rng, N_TRIES)


def _best_of(cost: IterationCost, rng: np.random.Generator, n_tries: int) -> Found:
    masks = _draw(rng, n_tries, cost.n_clusters)
    best = int(cost.times(masks).argmin())
    return found(cost, masks[best], n_tries)


def _draw(rng: np.random.Generator, n_tries: int, n_clusters: int) -> BoolArray:
    """Each cluster in or out with equal chance; an empty draw gets one cluster."""
    masks = rng.random((n_tries, n_clusters)) < 0.5
    empty = np.flatnonzero(~masks.any(axis=1))
    masks[empty, rng.integers(n_clusters, size=len(empty))] = True
    return masks
