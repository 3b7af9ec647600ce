"""Greedy and grouping: add what helps most until nothing does, from each cluster in turn."""

from __future__ import annotations

import numpy as np

from gridcoll.placement.cost import IterationCost
from gridcoll.placement.found import Found, found
from gridcoll.placement.moves import Growth


def greedy(cost: IterationCost, rng: np.random.Generator) -> Found:
    """One cluster at a time (paper 004, §3.1.3)."""
    return _grow(cost, _singles(cost))


def grouping(cost: IterationCost, rng: np.random.Generator) -> Found:
    """One cluster, or all clusters of a site or a region, at a time (paper 004, §3.1.4)."""
    return _grow(cost, _singles(cost) + cost.resources.groups())


def _singles(cost: IterationCost) -> tuple[tuple[int, ...], ...]:
    return tuple((i,) for i in range(cost.n_clusters))


def _grow(cost: IterationCost, moves: tuple[tuple[int, ...], ...]) -> Found:
    growth = Growth(cost, np.eye(cost.n_clusters, dtype=bool), moves)
    n_evaluated = cost.n_clusters
    moving = True
    while moving:
        n_evaluated += cost.n_clusters * len(moves)
        moving = growth.step()
    best = int(growth.times.argmin())
    return found(cost, growth.masks[best], n_evaluated)
