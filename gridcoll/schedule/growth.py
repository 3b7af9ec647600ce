"""A lower bound from counting: how soon so many clusters can have the message at all."""

from __future__ import annotations

import heapq

import numpy as np

from gridcoll.schedule.instance import Instance


def growth_bound_s(instance: Instance) -> float:
    """The k slowest clusters need k + 1 holders, and the last of them is still to broadcast.

    Holders multiply at best as if every transfer were the cheapest there is (the postal model's
    optimal tree, Bar-Noy & Kipnis 1992). Tight where clusters are alike, which is where
    `gridcoll.schedule.relaxation` is not.
    """
    n, root = instance.n_clusters, instance.root
    if n == 1:
        return instance.internals[root]
    between = ~np.eye(n, dtype=bool)
    cost, busy = float(instance.cost_s[between].min()), float(instance.busy_s[between].min())
    bound = instance.internals[root]
    slowest_first = sorted(
        (own for v, own in enumerate(instance.internals) if v != root), reverse=True
    )
    arrivals = [cost]  # of each holder's next transfer
    for own in slowest_first:
        soonest = heapq.heappop(arrivals)
        bound = max(bound, soonest + own)
        heapq.heappush(arrivals, soonest + busy)
        heapq.heappush(arrivals, soonest + cost)
    return bound
