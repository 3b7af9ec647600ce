"""What the ways to allreduce take: closed forms in the steady state.

One-port, full duplex: the busiest interface, flow or link, plus the way of a lone segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.allreduce.pieces import EVERYWHERE
from gridcoll.plan.tree_cost import LineCosts, line_costs, place_costs


@dataclass(frozen=True)
class Costs:
    """A message of ``n_bytes`` over ``model``, in segments of S sizes ``segment_bytes``."""

    model: GridModel
    n_bytes: int
    segment_bytes: np.ndarray

    @cached_property
    def _links(self) -> tuple[FloatArray, FloatArray]:
        return self.model.gap_and_alone_s(self.segment_bytes.astype(float))

    @property
    def gap_s(self) -> FloatArray:
        """``g(s)`` by link, (C, C, S)."""
        return self._links[0]

    @property
    def alone_s(self) -> FloatArray:
        """A lone segment's way, (C, C, S)."""
        return self._links[1]

    @cached_property
    def port_s(self) -> FloatArray:
        """How long one segment keeps an interface of each cluster, (C, S)."""
        return np.asarray(np.einsum("iis->is", self.gap_s))

    @cached_property
    def sizes(self) -> np.ndarray:
        """Members by cluster, (C,)."""
        return np.array([len(cluster) for cluster in self.model.grid.clusters])

    def first_inside(self, lines: Sequence[LineCosts]) -> FloatArray:
        """A lone segment's way between all members of each cluster and its owner, (C, S)."""
        every = np.arange(len(lines))
        far = (self.port_s, self.alone_s[every, every])
        near = self.model.gap_and_alone_s(np.zeros(1), (every.tolist(), every.tolist()))
        found = np.empty_like(self.port_s)
        # Clusters whose hosts are alike share their costs.
        for line in {id(each): each for each in lines}.values():
            alike = [c for c, each in enumerate(lines) if each is line]
            counts = (line.waits[:, 0], line.hops[:, 0], line.waits[:, 1], line.hops[:, 1])
            ways = sum(
                count[:, None, None] * seconds[alike]
                for count, seconds in zip(counts, (*far, *near), strict=True)
            )
            found[alike] = np.asarray(ways).max(axis=0)
        return found

    @cached_property
    def across_s(self) -> FloatArray:
        """A lone partial result's way between clusters, those to others before it, (C, C, S)."""
        n = self.model.n_clusters
        across = self.alone_s + (n - 2) * self.port_s[:, None]
        return np.asarray(across * (1 - np.eye(n))[:, :, None])

    @cached_property
    def gap_between_s(self) -> FloatArray:
        """`gap_s` with nothing on the diagonal, (C, C, S)."""
        return np.asarray(self.gap_s * (1 - np.eye(self.model.n_clusters))[:, :, None])

    def ways(self, inside: FloatArray, home: int) -> FloatArray:
        """A lone segment from all ranks to all ranks, (S,), given its ways ``inside``, (C, S)."""
        n = len(inside)
        if n == 1:
            return np.asarray(2 * inside[0])
        across = self.across_s
        if home == EVERYWHERE:
            return np.asarray((inside[:, None] + across + inside[None]).max(axis=(0, 1)))
        to_home = (inside + across[:, home]).max(axis=0)
        return np.asarray(to_home + (across[home] + inside).max(axis=0))


def price_coordinators(costs: Costs, shape: str, home: int) -> FloatArray:
    """Trees inside clusters, an exchange between coordinators or a meeting at ``home``'s."""
    n = costs.model.n_clusters
    hosts = [cluster.node_sizes for cluster in costs.model.grid.clusters]
    lines = [line_costs(shape, each) for each in hosts]
    at_first = [place_costs(shape, each, 0)[-1] for each in hosts]
    inside = costs.first_inside(lines)
    n_out = [n - 1 if home in (EVERYWHERE, c) else 1 for c in range(n)]
    sends = [
        max(first + out, line.busiest + 1)
        for line, first, out in zip(lines, at_first, n_out, strict=True)
    ]
    period = (np.array(sends)[:, None] * costs.port_s).max(axis=0)
    apart = costs.gap_between_s
    used = (apart,) if home == EVERYWHERE else (apart[home][None], apart[:, home][None])
    period = np.max([period, *(gaps.max(axis=(0, 1)) for gaps in used)], axis=0)
    rest = np.maximum(np.ceil(costs.n_bytes / costs.segment_bytes) - 1, 0.0)
    return np.asarray(costs.ways(inside, home) + rest * period)


def price_ring(costs: Costs, order: tuple[int, ...]) -> FloatArray:
    """A ring over all ranks, the clusters in ``order``."""
    n = sum(len(cluster.nodes) for cluster in costs.model.grid.clusters)  # hosts
    hops = list(pairwise([*order, order[0]])) if len(order) > 1 else []
    inner = [c for c in order if costs.sizes[c] > 1]
    turn = np.zeros(len(costs.segment_bytes))
    at_home = costs.model.gap_and_alone_s(np.zeros(1))[1]
    for hop in hops:
        turn = turn + costs.alone_s[hop]
    for c in inner:
        n_hosts = len(costs.model.grid.clusters[c].nodes)
        turn = turn + (n_hosts - 1) * costs.alone_s[c, c]
        turn = turn + (costs.sizes[c] - n_hosts) * at_home[c, c]
    used = [*hops, *((c, c) for c in inner)]
    pace = np.max([costs.gap_s[link] for link in used], axis=0)
    longest = np.max([costs.alone_s[link] for link in used], axis=0)
    n_sent = 2 * costs.n_bytes * (n - 1) / n / costs.segment_bytes
    in_block = np.maximum(costs.n_bytes / n / costs.segment_bytes - 1, 0.0)
    # Either the ring is full, or a block's own two turns are what takes longest.
    return np.asarray(np.maximum(n_sent * pace + longest, 2 * turn * (n - 1) / n + in_block * pace))
