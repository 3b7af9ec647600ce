"""Shortest paths between all nodes, and the cheapest tree that reaches all nodes from a root."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gridcoll.model.plogp import FloatArray


def shortest_paths(cost: FloatArray) -> FloatArray:
    """Return the cost of the cheapest path between nodes, (N, N). The diagonal does not change."""
    found = np.array(cost, dtype=float)
    for k in range(len(found)):
        found = np.minimum(found, found[:, k, None] + found[None, k, :])
    return found


def cheapest_arborescence(costs: Sequence[Sequence[float]], root: int) -> list[int]:
    """Return the parent of each node, -1 for the root, in the directed tree of least total cost.

    The algorithm is that of Chu and Liu 1965 and Edmonds 1967. ``costs[a][b]`` is the cost of the
    edge from ``a`` to ``b``.
    """
    n = len(costs)
    nodes = range(n)
    parents = [
        -1 if v == root else min((u for u in nodes if u != v), key=lambda u: costs[u][v])
        for v in nodes
    ]
    cycle = _cycle_of(parents)
    if not cycle:
        return parents
    # Contract the cycle to one node. An edge that enters it at v replaces the cycle's edge to v.
    inside = set(cycle)
    outside = [v for v in nodes if v not in inside]
    m = len(outside)
    leaves = [min(cycle, key=lambda u: costs[u][v]) for v in outside]
    enters = [min(cycle, key=lambda v: costs[u][v] - costs[parents[v]][v]) for u in outside]
    smaller = [[costs[u][v] for v in outside] for u in outside]
    for row, u, v in zip(smaller, outside, enters, strict=True):
        row.append(costs[u][v] - costs[parents[v]][v])
    smaller.append([costs[u][v] for u, v in zip(leaves, outside, strict=True)] + [0.0])
    for at, above in enumerate(cheapest_arborescence(smaller, outside.index(root))):
        if at == m:
            parents[enters[above]] = outside[above]
        elif above >= 0:
            parents[outside[at]] = leaves[at] if above == m else outside[above]
    return parents


def _cycle_of(parents: Sequence[int]) -> list[int]:
    """Return the nodes of a cycle of ``parents``; empty if there is none."""
    seen = [0] * len(parents)
    for start in range(len(parents)):
        at = start
        while at >= 0 and not seen[at]:
            seen[at] = start + 1
            at = parents[at]
        if at >= 0 and seen[at] == start + 1:
            cycle = [at]
            while parents[cycle[-1]] != at:
                cycle.append(parents[cycle[-1]])
            return cycle
    return []
