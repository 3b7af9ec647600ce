"""Simulated annealing over subsets, from nothing or from what greedy and grouping found."""

from __future__ import annotations

import numpy as np

from gridcoll.placement.cost import IterationCost
from gridcoll.placement.found import Found, found
from gridcoll.placement.greedy import greedy, grouping
from gridcoll.placement.moves import flip_times
from gridcoll.placement.resources import as_mask

# The paper names no parameters. Its annealing takes about a third of the time of a thousand random
# subsets on 8 and on 12 clusters (Tables 1 and 3), that is some 300 evaluations.
MIN_STEPS = 300
STEPS_PER_CLUSTER = 25
FIRST_TEMPERATURE = 0.3  # of the time at the start
LAST_TEMPERATURE = 0.001


def annealing(cost: IterationCost, rng: np.random.Generator) -> Found:
    """From an empty set (paper 004, §3.1.5)."""
    return _anneal(cost, rng, Found((), np.inf, 0))


def annealing_greedy(cost: IterationCost, rng: np.random.Generator) -> Found:
    """From what `greedy` found."""
    return _anneal(cost, rng, greedy(cost, rng))


def annealing_grouping(cost: IterationCost, rng: np.random.Generator) -> Found:
    """From what `grouping` found."""
    return _anneal(cost, rng, grouping(cost, rng))


def _anneal(cost: IterationCost, rng: np.random.Generator, start: Found) -> Found:
    """Flip one random cluster per step, accepted as Metropolis does; keep the best seen.

    The times of all flips are computed after each accepted one, so a refused step costs nothing:
    the chain is the same as one that evaluates step by step.
    """
    n_steps = max(MIN_STEPS, STEPS_PER_CLUSTER * cost.n_clusters)
    picks = rng.integers(cost.n_clusters, size=n_steps)
    cooling = np.geomspace(FIRST_TEMPERATURE, LAST_TEMPERATURE, n_steps)
    tolerance = -cooling * np.log1p(-rng.random(n_steps))  # accepted losses, relative
    mask = as_mask(start.clusters, cost.n_clusters)
    now_s = best_s = start.iteration_s
    best = mask.copy()
    scale_s = now_s
    n_evaluated = start.n_evaluated
    step = 0
    while step < n_steps:
        times = flip_times(cost, mask)
        n_evaluated += cost.n_clusters
        if not np.isfinite(scale_s):
            scale_s = float(times[np.isfinite(times)].min())
        losses = times[picks[step:]] - (now_s if np.isfinite(now_s) else times[picks[step:]])
        accepted = losses <= tolerance[step:] * scale_s
        ahead = int(accepted.argmax())
        if not accepted[ahead]:
            break
        step += ahead + 1
        flipped = picks[step - 1]
        mask[flipped] = not mask[flipped]
        now_s = float(times[flipped])
        if now_s < best_s:
            best_s, best = now_s, mask.copy()
    return found(cost, best, n_evaluated)
