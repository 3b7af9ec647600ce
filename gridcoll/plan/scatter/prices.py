"""What a scatter takes: every message of it, by subtree, as the root's interface lets them go.

Exact for trees in which only the root sends to other clusters. Gathering takes as long, backwards.
"""

from __future__ import annotations

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.scatter.trees import Subtrees


def price_bulk(model: GridModel, subtrees: Subtrees, n_bytes: int) -> float:
    """Seconds until the last rank has its block, if a message carries a whole subtree's blocks.

    Table 2 of paper 003 for one cluster; a walk over ranks, O(P).
    """
    size, cluster_of = subtrees.size, model.grid.cluster_of
    carried = np.unique(size)
    at = {int(count): k for k, count in enumerate(carried)}
    n_carried = carried.astype(float) * n_bytes
    home, everywhere = cluster_of[subtrees.tree.root], range(model.n_clusters)
    host_of, inside = model.grid.host_of, (everywhere, everywhere)
    gaps, alone = model.gap_and_alone_s(np.zeros(1), inside)
    beside_gap_s, beside_s = gaps[:, 0].tolist(), alone[:, 0].tolist()
    gaps, alone = model.gap_and_alone_s(n_carried, inside)
    gap_s, inside_s = gaps.tolist(), alone.tolist()
    _, alone = model.gap_and_alone_s(n_carried, ([home] * len(everywhere), everywhere))
    outward_s, shared_s = alone.tolist(), _shared_s(model, home, n_carried).tolist()
    held_s = [0.0] * len(size)
    pipe_free_s, port_free_s = [0.0] * len(everywhere), [0.0] * len(set(host_of))
    for rank in subtrees.order:
        i, host = cluster_of[rank], host_of[rank]
        free_s, port_s = held_s[rank], max(held_s[rank], port_free_s[host])
        for child in subtrees.tree.children[rank]:
            j, k = cluster_of[child], at[size[child]]
            if host == host_of[child]:
                held_s[child] = free_s + beside_s[j]
                free_s += beside_gap_s[j]
                continue
            if i == j:
                held_s[child] = port_s + inside_s[j][k]
            else:
                enters_s = max(port_s, pipe_free_s[j])
                pipe_free_s[j] = enters_s + shared_s[j][k]
                held_s[child] = enters_s + outward_s[j][k]
            port_s += gap_s[i][k]
        port_free_s[host] = port_s
    return max(held_s)


def price_pipelined(model: GridModel, root: int, order: list[int], n_bytes: int) -> float:
    """Seconds for a chain inside every cluster with a message per block, the farthest first.

    Parameters
    ----------
    model : GridModel
    root : int
    order : list of int
        The other clusters as the root serves them; then its own.
    n_bytes : int
    """
    home = model.grid.cluster_of[root]
    gaps, alone = model.gap_and_alone_s(np.array([float(n_bytes), 0.0]))
    gaps, alone, beside = gaps[..., 0], alone[..., 0], alone[..., 1]
    shared = _shared_s(model, home, np.array([float(n_bytes)]))[..., 0]
    port_s = float(gaps[home, home])
    n_sent, latest_s = 0, 0.0
    for turn, cluster in enumerate(order):
        n_blocks = len(model.grid.clusters[cluster])
        pace_s = max(port_s, float(gaps[home, cluster]), float(shared[cluster]))
        n_sent += n_blocks
        # A slow link's turn lets others pass; a fast one's ends when all before have been sent.
        last_s = max(turn * port_s + (n_blocks - 1) * pace_s, (n_sent - 1) * port_s)
        n_hops = len(model.grid.clusters[cluster].nodes) - 1
        hops_s = n_hops * float(alone[cluster, cluster])
        hops_s += (n_blocks - 1 - n_hops) * float(beside[cluster, cluster])
        first_s = last_s - (n_blocks - 1) * pace_s
        latest_s = max(latest_s, max(last_s, first_s + hops_s) + float(alone[home, cluster]))
    own, host_of = model.grid.clusters[home], model.grid.host_of
    n_away = sum(host_of[rank] != host_of[root] for rank in own.ranks)
    n_hops = len(own.nodes) - 1
    own_s = n_hops * float(alone[home, home]) + (len(own) - 1 - n_hops) * float(beside[home, home])
    if n_away:
        last_s = (n_away - 1) * port_s + float(alone[home, home])
        own_s = n_sent * port_s + max(own_s, last_s)
    return max(latest_s, own_s)


def _shared_s(model: GridModel, home: int, n_bytes: np.ndarray) -> np.ndarray:
    """How long messages keep what all flows from ``home`` to another cluster share, (C, S)."""
    if not model.together_bytes_per_s:
        return np.zeros((model.n_clusters, len(n_bytes)))
    return np.asarray(n_bytes / model.link_bytes_per_s[home, :, None])
