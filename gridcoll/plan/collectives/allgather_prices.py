"""What the ways to allgather take, by segment size: the busiest interface, flow or link, and a way.

One-port, full duplex. A reduce-scatter takes as long, backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.schedule.trees import profile


@dataclass(frozen=True)
class BlockCosts:
    """Blocks of ``n_bytes`` over ``model``, in segments of S sizes ``segment_bytes``."""

    model: GridModel
    n_bytes: int
    segment_bytes: np.ndarray

    @cached_property
    def n_segments(self) -> FloatArray:
        """Of one block, (S,)."""
        return np.asarray(np.maximum(np.ceil(self.n_bytes / self.segment_bytes), 1.0))

    @cached_property
    def links(self) -> tuple[FloatArray, FloatArray]:
        """``g(s)`` and a lone segment's way, (C, C, S) each."""
        segment = np.minimum(self.segment_bytes, self.n_bytes).astype(float)
        return self.model.gap_and_alone_s(segment)

    @cached_property
    def sizes(self) -> np.ndarray:
        """Members by cluster, (C,)."""
        return np.array([len(cluster) for cluster in self.model.grid.clusters])


def price_lanes(costs: BlockCosts, *, upwards: bool = False) -> FloatArray:
    """Straight to the own cluster and to one rank of each other, who hands it out, (S,).

    ``upwards``: the other way, combined by that one.
    """
    alone_s, sizes, n = costs.links[1], costs.sizes, costs.model.n_clusters
    port_s = np.einsum("iis->is", costs.links[0])
    hop_s = np.einsum("iis->is", alone_s) * (sizes > 1)[:, None]
    n_turns = np.ceil((sizes.sum() - sizes) / sizes)
    n_out, n_in = (sizes - 1) * (1 + n_turns) + (n - 1), sizes.sum() - 1
    # What is handed on, or combined, is a segment behind at every hop.
    n_behind = (n - 1) * (n_turns > 0) * (sizes > 1)
    n_passed = np.maximum(n_out, n_in)[:, None] * costs.n_segments + n_behind[:, None]
    total_s = (n_passed * port_s - port_s * (sizes > 1)[:, None] + hop_s).max(axis=0)
    for i in range(n):
        for j in range(n):
            if i == j:
                continue
            flow_s = _flow_s(costs, i, j)
            if upwards:  # shares for entries are all sent before the first sum is
                n_before = (sizes[i] - 1) * (1 + n_turns[i]) * costs.n_segments
                sums_s = (n_turns[i] * costs.n_segments - 1) * port_s[i]
                way_s = n_before * port_s[i] + np.maximum(flow_s, sums_s)
            else:
                last_s = max(sizes[j] - 2, 0) * port_s[j]
                n_handed = np.maximum(n_turns[j] * (sizes[j] - 1), 1) * costs.n_segments
                way_s = np.maximum(flow_s + last_s, (n_handed - 1) * port_s[j]) + hop_s[j]
            total_s = np.maximum(total_s, alone_s[i, j] + way_s)
    return np.asarray(total_s)


def _flow_s(costs: BlockCosts, i: int, j: int) -> FloatArray:
    """From the first segment to the last between two clusters: a flow's pace, or the link's."""
    n_segments = costs.n_segments * costs.sizes[i]
    shared_s = costs.n_bytes * costs.sizes[i] / costs.model.link_bytes_per_s[i, j]
    own_s = (costs.n_segments - 1) * costs.links[0][i, j]
    return np.asarray(np.maximum(own_s, shared_s * (1 - 1 / n_segments)))


def price_ring(costs: BlockCosts, order: tuple[int, ...]) -> FloatArray:
    """Around a ring over all ranks, the clusters in ``order``, (S,)."""
    gap_s, alone_s = costs.links
    hops = list(pairwise([*order, order[0]])) if len(order) > 1 else []
    inner = [c for c in order if costs.sizes[c] > 1]
    links = [*hops, *((c, c) for c in inner for _ in range(costs.sizes[c] - 1 + (not hops)))]
    pace_s = np.max([gap_s[link] for link in links], axis=0)
    # A block goes on when it is there and the one before it has gone; not over one of the hops.
    steps_s = np.array([np.maximum(alone_s[link], costs.n_segments * pace_s) for link in links])
    last_s = np.min([alone_s[link] - gap_s[link] for link in links], axis=0)
    return np.asarray(steps_s.sum(axis=0) - steps_s.min(axis=0) + last_s)


def price_coordinators(model: GridModel, n_bytes: int, shape: str) -> float:
    """A cluster's blocks together, between coordinators and down ``shape`` inside, in seconds."""
    sizes = np.array([len(cluster) for cluster in model.grid.clusters])
    n = len(sizes)
    gap_s, alone_s = model.gap_and_alone_s(np.append(sizes, 1).astype(float) * n_bytes)
    shapes = [profile(shape, int(size)) for size in sizes]
    one = np.arange(n)
    alone_inside_s = alone_s[one, one, n] * (sizes > 1)
    collected_s = np.maximum(sizes - 2, 0) * gap_s[one, one, n] + alone_inside_s
    latest_s = 0.0
    for c in range(n):
        inner = shapes[c]
        # Handed out: the own blocks, then those of each other cluster as they come.
        port_s = inner.root_degree * float(sum(gap_s[c, c, other] for other in range(n)))
        port_s += (n - 1) * float(gap_s[c, c, c])
        last = max((other for other in range(n)), key=lambda other: float(gap_s[c, c, other]))
        ways = (inner.gaps - inner.latencies) * gap_s[c, c, last]
        ways = ways + inner.latencies * alone_s[c, c, last]
        down_s = float(ways.max()) if sizes[c] > 1 else 0.0
        come_s = max(
            (float(collected_s[o] + (n - 2) * gap_s[o, o, o] + alone_s[o, c, o])
             for o in range(n) if o != c),
            default=float(collected_s[c]),
        )  # fmt: skip
        own_port_s = inner.root_degree * float(gap_s[c, c, last])
        full_s = float(collected_s[c]) + port_s - own_port_s + down_s
        latest_s = max(latest_s, come_s + down_s, full_s)
    return latest_s
