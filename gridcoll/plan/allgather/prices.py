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
from gridcoll.plan.tree_cost import line_costs, place_costs


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

    @cached_property
    def hosts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """By cluster: how many hosts, and the most and the fewest ranks on one, (C,) each."""
        nodes = [cluster.node_sizes for cluster in self.model.grid.clusters]
        counts, most, least = zip(*((len(n), max(n), min(n)) for n in nodes), strict=True)
        return np.array(counts), np.array(most), np.array(least)

    @cached_property
    def beside(self) -> tuple[FloatArray, FloatArray]:
        """Between ranks of one host, ``g`` and a lone message's way: an empty one's, (C,) each."""
        every = range(self.model.n_clusters)
        gap_s, alone_s = self.model.gap_and_alone_s(np.zeros(1), (every, every))
        return gap_s[:, 0], alone_s[:, 0]


def price_lanes(costs: BlockCosts, *, upwards: bool = False) -> FloatArray:
    """To one rank of each other cluster, to one of each other host, and to those beside, (S,).

    Who gets it from elsewhere hands it on likewise. ``upwards``: the other way, combined by that
    one.
    """
    alone_s, sizes, n = costs.links[1], costs.sizes, costs.model.n_clusters
    hosts, most, least = costs.hosts
    port_s = np.einsum("iis->is", costs.links[0])
    home_port_s, home_hop_s = costs.beside
    beside_s = home_hop_s * (most > 1)
    hop_s = np.einsum("iis->is", alone_s) * (hosts > 1)[:, None] + beside_s[:, None]
    n_turns = np.ceil((sizes.sum() - sizes) / sizes)
    n_out, n_in = most * ((hosts - 1) * (1 + n_turns) + (n - 1)), sizes.sum() - least
    # What is handed on, or combined, is a segment behind at every hop.
    n_behind = (n - 1) * (n_turns > 0) * (hosts > 1)
    n_passed = np.maximum(n_out, n_in)[:, None] * costs.n_segments + n_behind[:, None]
    total_s = (n_passed * port_s - port_s * (hosts > 1)[:, None] + hop_s).max(axis=0)
    handed_s = (most - 1) / most * sizes.sum() * home_port_s  # by each rank on its host
    total_s = np.maximum(total_s, handed_s.max() * costs.n_segments)
    if n == 1:
        return np.asarray(total_s)
    flow_s = _flows_s(costs)
    if upwards:  # shares for entries are all sent before the first sum is
        n_before = (most * (hosts - 1) * (1 + n_turns))[:, None] * costs.n_segments
        sums_s = ((most * n_turns)[:, None] * costs.n_segments - 1) * port_s
        way_s = (n_before * port_s + beside_s[:, None])[:, None] + np.maximum(
            flow_s, sums_s[:, None]
        )
    else:
        last_s = np.maximum(hosts - 2, 0)[:, None] * port_s
        n_handed = np.maximum(most * n_turns * (hosts - 1), 1)[:, None] * costs.n_segments
        handed_s = (n_handed - 1) * port_s
        way_s = np.maximum(flow_s + last_s, handed_s) + hop_s
    between = ~np.eye(n, dtype=bool)
    return np.asarray(np.maximum(total_s, (alone_s + way_s)[between].max(axis=0)))


def _flows_s(costs: BlockCosts) -> FloatArray:
    """Between two clusters, from the first segment to the last: a flow's pace, or the link's.

    (C, C, S).
    """
    n_segments = costs.n_segments * costs.sizes[:, None, None]
    shared_s = costs.n_bytes * costs.sizes[:, None] / costs.model.link_bytes_per_s
    own_s = (costs.n_segments - 1) * costs.links[0]
    return np.asarray(np.maximum(own_s, shared_s[:, :, None] * (1 - 1 / n_segments)))


def price_ring(costs: BlockCosts, order: tuple[int, ...]) -> FloatArray:
    """Around a ring over all ranks, the clusters in ``order``, host by host, (S,)."""
    (gap_s, alone_s), (hosts, _, _) = costs.links, costs.hosts
    hops = list(pairwise([*order, order[0]])) if len(order) > 1 else []
    inner = [c for c in order if costs.sizes[c] > 1]
    far = [(c, c) for c in inner for _ in range(hosts[c] - 1 + (not hops))]
    links = [*hops, *far]
    pace_s = np.max([gap_s[link] for link in links], axis=0)
    ways_s, gaps_s = ([table[link] for link in links] for table in (alone_s, gap_s))
    for c in inner:
        n_beside = costs.sizes[c] - hosts[c]
        for table, seconds in zip((gaps_s, ways_s), costs.beside, strict=True):
            table += [np.full_like(pace_s, seconds[c])] * n_beside
    # A block goes on when it is there and the one before it has gone; not over one of the hops.
    steps_s = np.array([np.maximum(way_s, costs.n_segments * pace_s) for way_s in ways_s])
    last_s = np.min([way_s - gap_s for way_s, gap_s in zip(ways_s, gaps_s, strict=True)], axis=0)
    return np.asarray(steps_s.sum(axis=0) - steps_s.min(axis=0) + last_s)


def price_coordinators(model: GridModel, n_bytes: int, shape: str) -> float:
    """A cluster's blocks together, between coordinators and down ``shape`` inside, in seconds."""
    sizes = np.array([len(cluster) for cluster in model.grid.clusters])
    n = len(sizes)
    # Of the blocks of each cluster, of one block, and of nothing.
    gap_s, alone_s = model.gap_and_alone_s(np.append(sizes, [1, 0]).astype(float) * n_bytes)
    nodes = [cluster.node_sizes for cluster in model.grid.clusters]
    n_away = np.array([size - hosts[0] for size, hosts in zip(sizes, nodes, strict=True)])
    one = np.arange(n)
    collected_s = np.maximum(n_away - 1, 0) * gap_s[one, one, n]
    collected_s += np.where(n_away, alone_s[one, one, n], alone_s[one, one, n + 1] * (sizes > 1))
    latest_s = 0.0
    for c in range(n):
        sends = place_costs(shape, nodes[c], 0)[4]
        # Handed out: the own blocks, then those of each other cluster as they come.
        port_s = sends * float(sum(gap_s[c, c, other] for other in range(n)))
        port_s += (n - 1) * float(gap_s[c, c, c])
        last = max((other for other in range(n)), key=lambda other: float(gap_s[c, c, other]))
        line, at = line_costs(shape, nodes[c]), [last, n + 1]
        down_s = float((line.waits @ gap_s[c, c, at] + line.hops @ alone_s[c, c, at]).max())
        come_s = max(
            (float(collected_s[o] + (n - 2) * gap_s[o, o, o] + alone_s[o, c, o])
             for o in range(n) if o != c),
            default=float(collected_s[c]),
        )  # fmt: skip
        full_s = float(collected_s[c]) + port_s - sends * float(gap_s[c, c, last]) + down_s
        latest_s = max(latest_s, come_s + down_s, full_s)
    return latest_s
