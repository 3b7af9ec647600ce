"""What an all-to-all takes: the busiest interface, flow or link, and latency on the longest way.

Paper 003, Table 3, prices a homogeneous all-to-all of messages of ``m`` bytes between
``(P - 1) os(m) + (P - 1) or(m) + L`` and ``(P - 1) g(m) + (P - 1) or(m) + L``, and a network's
contention factor says where. Here the same is summed over the messages a plan really has, each at
the gap of the link it takes, so that clusters of any number and size and any plan have a price.
Interfaces are full duplex, so sending and receiving are not added up but compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.ops import Send
from gridcoll.plan.plan import Plan
from gridcoll.topology.grid import Grid

CONTENTION = 1.0
"""γ of paper 003: 0 if overheads alone limit, 1 if every message keeps its interface for a gap."""


@dataclass(frozen=True)
class Messages:
    """All messages of a plan whose blocks are one unit: arrays with an entry per message.

    Attributes
    ----------
    source, target : int array
        Ranks.
    n_blocks : int array
        How many blocks it carries, so that one tally serves every block size.
    """

    source: np.ndarray
    target: np.ndarray
    n_blocks: np.ndarray


def tally(plan: Plan) -> Messages:
    """The messages of ``plan``, written for blocks of one unit."""
    found = [
        (rank, op.peer, op.chunk.size)
        for rank, program in enumerate(plan.programs)
        for op in program
        if isinstance(op, Send)
    ]
    source, target, n_blocks = np.array(found, dtype=int).reshape(-1, 3).T
    return Messages(source, target, n_blocks)


def busiest_s(
    model: GridModel,
    messages: Messages,
    n_bytes: int,
    *,
    fill_s: float = 0.0,
    contention: float = CONTENTION,
) -> float:
    """How long the busiest rank, flow or link between clusters works, in seconds.

    ``fill_s`` is how long collecting keeps back the first message between clusters, and handing
    out follows the last. For the others see `loads_s`.
    """
    rank_s, between_s = loads_s(model, messages, n_bytes, contention)
    return max(rank_s, fill_s + between_s if between_s else 0.0)


def loads_s(
    model: GridModel, messages: Messages, n_bytes: int, contention: float = CONTENTION
) -> tuple[float, float]:
    """How long the busiest rank works; and the busiest flow or link between clusters.

    Parameters
    ----------
    model : GridModel
    messages : Messages
    n_bytes : int
        Size of a block.
    contention : float
        γ, between the bounds of Table 3.
    """
    if not len(messages.source):
        return 0.0, 0.0
    clusters = np.array(model.grid.cluster_of)
    i, j = clusters[messages.source], clusters[messages.target]
    sizes, which = np.unique(messages.n_blocks, return_inverse=True)
    gaps, _ = model.gap_and_alone_s(np.append(sizes, 0).astype(float) * n_bytes)
    across = i != j
    # A slower link leaves its sender's interface free, but a message's own cost is paid there.
    fixed = np.where(across, gaps[i, j, -1], 0.0)
    out_s = np.maximum(gaps[i, i, which], fixed)
    in_s = np.maximum(gaps[j, j, which], fixed)
    n_ranks = model.grid.n_ranks
    upper = np.maximum(
        np.bincount(messages.source, out_s, n_ranks), np.bincount(messages.target, in_s, n_ranks)
    )
    lower = np.minimum(_overheads_s(model, messages, i, j), upper)
    rank_s = float((lower + (upper - lower) * contention).max())
    if not across.any():
        return rank_s, 0.0
    return rank_s, max(_between(model, messages, n_bytes, gaps[i, j, which], across))


def far_first_s(model: GridModel, n_bytes: int) -> float:
    """When the last block of a direct exchange arrives if those with the longest way leave first.

    The ``k``-th block leaves after ``k`` gaps and has the ``k``-th longest way.
    """
    gaps, _ = model.gap_and_alone_s(np.array([float(n_bytes), 0.0]))
    latest = 0.0
    for c in range(model.n_clusters):
        sent_s = 0.0
        for d in (*far_order(model)[c], c):
            count = len(model.grid.clusters[d]) - int(c == d)
            fixed = gaps[c, d, 1] if c != d else 0.0
            sent_s += count * max(float(gaps[c, c, 0]), float(fixed))
            if count:
                latest = max(latest, sent_s + float(model.latency_s[c, d]))
    return latest


def far_order(model: GridModel) -> tuple[tuple[int, ...], ...]:
    """By cluster, the others: farthest first; those alike each beginning after itself."""
    n = model.n_clusters
    return tuple(
        tuple(
            sorted(
                (d for d in range(n) if d != c),
                key=lambda d: (-float(model.latency_s[c, d]), (d - c) % n),
            )
        )
        for c in range(n)
    )


def _overheads_s(model: GridModel, messages: Messages, i: np.ndarray, j: np.ndarray) -> FloatArray:
    """What each rank's processor spends on handing messages over and taking them, (P,)."""
    n = model.n_clusters
    send = np.array([[model.link(a, b).send_overhead(0) for b in range(n)] for a in range(n)])
    recv = np.array([[model.link(a, b).recv_overhead(0) for b in range(n)] for a in range(n)])
    n_ranks = model.grid.n_ranks
    return np.asarray(
        np.bincount(messages.source, send[i, j], n_ranks)
        + np.bincount(messages.target, recv[i, j], n_ranks)
    )


def _between(
    model: GridModel,
    messages: Messages,
    n_bytes: int,
    gap_s: FloatArray,
    across: np.ndarray,
) -> tuple[float, float]:
    """The busiest flow between two ranks, and the busiest link between two clusters."""
    n_ranks, n = model.grid.n_ranks, model.n_clusters
    clusters = np.array(model.grid.cluster_of)
    source, target = messages.source[across], messages.target[across]
    flows = np.bincount(source * n_ranks + target, gap_s[across])
    load = np.bincount(
        clusters[source] * n + clusters[target],
        messages.n_blocks[across] * float(n_bytes),
        n * n,
    )
    return float(flows.max()), float((load / model.link_bytes_per_s.ravel()).max())


def longest_hop_s(model: GridModel) -> float:
    """The largest latency between two ranks."""
    return float(max(_hops(model)))


def _hops(model: GridModel) -> list[float]:
    n = model.n_clusters
    return [
        float(model.latency_s[i, j])
        for i in range(n)
        for j in range(n)
        if i != j or len(model.grid.clusters[i]) > 1
    ] or [0.0]


def inside_hop_s(model: GridModel) -> float:
    """The largest latency between two ranks of one cluster."""
    return float(max(_inside_hops(model.grid, model.latency_s)))


def _inside_hops(grid: Grid, latency_s: FloatArray) -> list[float]:
    return [latency_s[c, c] for c, cluster in enumerate(grid.clusters) if len(cluster) > 1] or [0.0]
