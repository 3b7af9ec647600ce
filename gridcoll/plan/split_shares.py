"""Shares of a message for trees that lead over different clusters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gridcoll.model.plogp import FloatArray

MOST_SPLIT = 16
"""With more clusters, pricing a tree per cluster takes too long."""

Transfers = Sequence[tuple[int, int]]
"""Pairs of clusters. The first leads from the root's cluster to another one, the others from there
to all others."""


def split_shares(
    trees: Sequence[Transfers], latency_s: FloatArray, link_bytes_per_s: FloatArray, n_bytes: int
) -> FloatArray:
    """Return the share of each of ``trees`` with which all end at the same time.

    Shares follow from latencies and bandwidths of links, (C, C) each; no two trees use the same
    link. A tree that would end too late has share 0.
    """
    delays_s = np.array([_depth_s(tree, latency_s) for tree in trees])
    rates = np.array([min(link_bytes_per_s[hop] for hop in tree) for tree in trees])
    order = np.argsort(delays_s)
    end_s = 0.0
    for n in range(len(trees), 0, -1):
        used = order[:n]
        end_s = float((n_bytes + delays_s[used] @ rates[used]) / rates[used].sum())
        if end_s >= delays_s[used[-1]]:
            break
    return np.asarray(np.maximum(end_s - delays_s, 0.0) * rates / n_bytes)


def _depth_s(tree: Transfers, latency_s: FloatArray) -> float:
    """Return the latency to the farthest cluster along a tree of two levels."""
    first, *others = tree
    return float(latency_s[first] + max(latency_s[hop] for hop in others))
