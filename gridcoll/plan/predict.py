"""The steady-state price of a segmented tree: fast enough to try hundreds before a call.

One-port, full duplex, pLogP: a rank's network interface passes one segment at a time each way, a
link passes one segment per its own gap. The first segment walks down the tree; the others follow
at the pace of the slowest interface or link on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.schedule.trees import Profile, find_shape, profile


@dataclass(frozen=True)
class SegmentCosts:
    """What segments of S candidate sizes cost on every link, for one message size.

    Attributes
    ----------
    model : GridModel
    n_bytes : int
        The message.
    segment_bytes : (S,) int array
    """

    model: GridModel
    n_bytes: int
    segment_bytes: np.ndarray

    @cached_property
    def n_segments(self) -> FloatArray:
        """How many segments the message has, (S,)."""
        return np.asarray(np.maximum(np.ceil(self.n_bytes / self.segment_bytes), 1.0))

    @cached_property
    def _segment(self) -> FloatArray:
        return np.asarray(np.minimum(self.segment_bytes, self.n_bytes), dtype=float)

    @cached_property
    def _inside_links(self) -> tuple[FloatArray, FloatArray]:
        every = range(self.model.n_clusters)
        return self.model.gap_and_alone_s(self._segment, (every, every))

    @property
    def port_s(self) -> FloatArray:
        """How long one segment keeps a network interface of each cluster busy, (C, S).

        Inside a cluster nothing but the interfaces limits, so its own gap tells; a slower link
        between clusters leaves its sender free for others meanwhile.
        """
        return self._inside_links[0]

    @property
    def hop_s(self) -> FloatArray:
        """A lone segment's way between two ranks of each cluster, (C, S)."""
        return self._inside_links[1]

    @cached_property
    def _all_links(self) -> tuple[FloatArray, FloatArray]:
        return self.model.gap_and_alone_s(self._segment)

    @property
    def gap_s(self) -> FloatArray:
        """``g(s)`` of every link, (C, C, S)."""
        return self._all_links[0]

    @property
    def alone_s(self) -> FloatArray:
        """A lone segment's way over every link, (C, C, S)."""
        return self._all_links[1]

    def between(self, transfers: Sequence[tuple[int, int]]) -> tuple[FloatArray, FloatArray]:
        """``g(s)`` and a lone segment's way of each transfer's link, (n, S) each."""
        senders, receivers = [s for s, _ in transfers], [r for _, r in transfers]
        return self.model.gap_and_alone_s(self._segment, (senders, receivers))

    def inside_s(self, shapes: Sequence[str]) -> FloatArray:
        """Internal broadcast of every cluster by every shape, whole message, (C, shapes, S)."""
        rest = self.n_segments - 1
        result = np.empty((self.model.n_clusters, len(shapes), len(self.segment_bytes)))
        for k, shape in enumerate(shapes):
            profiles = [profile(shape, len(cluster)) for cluster in self.model.grid.clusters]
            degrees = np.array([float(found.max_degree) for found in profiles])
            result[:, k] = self.first_inside(profiles) + rest * degrees[:, None] * self.port_s
        return result

    def first_inside(self, profiles: Sequence[Profile]) -> FloatArray:
        """When the last member of each cluster has the first segment after the entry does, (C, S).

        A hop costs a lone segment's way; a sender's further children wait a gap each.
        """
        most = max(len(found.gaps) for found in profiles)
        gaps, latencies = np.zeros((2, most, len(profiles), 1))
        for c, found in enumerate(profiles):
            gaps[: len(found.gaps), c, 0] = found.gaps
            latencies[: len(found.gaps), c, 0] = found.latencies
        ways = (gaps - latencies) * self.port_s + latencies * self.hop_s
        return np.asarray(ways.max(axis=0))


@dataclass(frozen=True)
class TreePrice:
    """What a tree costs at each segment size.

    ``first_s`` is when the last rank has the first segment, ``period_s`` the pace after that, both
    (S,). ``total_s`` is the whole.
    """

    first_s: FloatArray
    period_s: FloatArray
    total_s: FloatArray


def price_tree(
    costs: SegmentCosts,
    root_cluster: int,
    transfers: Sequence[tuple[int, int]],
    shapes: Sequence[str],
    relays: Sequence[int],
) -> TreePrice:
    """Price one tree over clusters (see `GridTree`) at every segment size of ``costs``.

    O(C) in the number of clusters whatever their sizes: a shape's cost is known by its counts.
    """
    n_out = [0] * len(shapes)
    for sender, _ in transfers:
        n_out[sender] += 1
    to_relay, to_last, own_pace = _inside(costs, shapes, relays, n_out)
    gaps, ways = costs.between(transfers)
    arrival, departure, pace = np.zeros_like(to_relay), to_relay.copy(), own_pace.copy()
    for (sender, receiver), gap, way in zip(transfers, gaps, ways, strict=True):
        arrival[receiver] = departure[sender] + way
        departure[receiver] += arrival[receiver]
        departure[sender] += costs.port_s[sender]
        pace[receiver] = np.maximum(pace[receiver], np.maximum(pace[sender], gap))
    last = arrival + np.maximum(to_relay, to_last)
    return TreePrice(
        first_s=last.max(axis=0),
        period_s=pace.max(axis=0),
        total_s=(last + (costs.n_segments - 1) * pace).max(axis=0),
    )


def _inside(
    costs: SegmentCosts, shapes: Sequence[str], relays: Sequence[int], n_out: Sequence[int]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Of every cluster, (C, S) each: from entry to relay, from entry to last rank, and the pace.

    A cluster's relay serves ``n_out`` other clusters first.
    """
    sizes = [len(cluster) for cluster in costs.model.grid.clusters]
    profiles = [profile(shape, size) for shape, size in zip(shapes, sizes, strict=True)]
    places = [_at_place(*key) for key in zip(shapes, sizes, relays, strict=True)]
    gaps, latencies, degrees = np.array(places, dtype=float).T[:, :, None]
    served = np.array(n_out, dtype=float)[:, None]
    most = np.array([float(found.max_degree) for found in profiles])[:, None]
    # Ranks below the relay wait for its sends to other clusters.
    waits = served * (degrees > 0)
    return (
        latencies * costs.hop_s + (gaps - latencies) * costs.port_s,
        costs.first_inside(profiles) + waits * costs.port_s,
        np.maximum(most, degrees + served) * costs.port_s,
    )


@lru_cache(maxsize=1024)
def _at_place(shape: str, size: int, place: int) -> tuple[int, int, int]:
    """Gaps, latencies and degree of the vertex at ``place`` of a shape's line."""
    if place == 0:
        return 0, 0, profile(shape, size).root_degree
    children = find_shape(shape).children(size)
    counts = [(0, 0)] * size
    for v, sends in enumerate(children):
        for position, child in enumerate(sends, start=1):
            counts[child] = (counts[v][0] + position, counts[v][1] + 1)
    return *counts[place], len(children[place])
