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
        by_size: dict[int, list[int]] = {}
        for index, cluster in enumerate(self.model.grid.clusters):
            by_size.setdefault(len(cluster), []).append(index)
        result = np.empty((self.model.n_clusters, len(shapes), len(self.segment_bytes)))
        for size, clusters in by_size.items():
            for k, name in enumerate(shapes):
                shape = profile(name, size)
                rest = (self.n_segments - 1) * shape.max_degree * self.port_s[clusters]
                result[clusters, k] = self.first_inside(clusters, shape) + rest
        return result

    def first_inside(self, clusters: int | list[int], shape: Profile) -> FloatArray:
        """When the last member holds the first segment after the entry does, (S,) or (n, S).

        A hop costs a lone segment's way; a sender's further children wait a gap each.
        """
        hop, gap = self.hop_s[clusters], self.port_s[clusters]
        ways = [
            (gaps - latencies) * gap + latencies * hop
            for gaps, latencies in zip(shape.gaps, shape.latencies, strict=True)
        ]
        return np.asarray(np.max(ways, axis=0))


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
    none = np.zeros(len(costs.segment_bytes))
    gaps, ways = costs.between(transfers)
    n_out = [0] * len(shapes)
    for sender, _ in transfers:
        n_out[sender] += 1
    stays = {root_cluster: _stay(costs, root_cluster, none, none, shapes, relays, n_out)}
    sent = [0] * len(shapes)
    for (sender, receiver), gap, way in zip(transfers, gaps, ways, strict=True):
        arrival = stays[sender].relay_s + sent[sender] * costs.port_s[sender] + way
        sent[sender] += 1
        pace = np.maximum(stays[sender].pace_s, gap)
        stays[receiver] = _stay(costs, receiver, arrival, pace, shapes, relays, n_out)
    rest = costs.n_segments - 1
    return TreePrice(
        first_s=np.max([stay.last_s for stay in stays.values()], axis=0),
        period_s=np.max([stay.pace_s for stay in stays.values()], axis=0),
        total_s=np.max([stay.last_s + rest * stay.pace_s for stay in stays.values()], axis=0),
    )


@dataclass(frozen=True)
class _Stay:
    """The first segment in one cluster, (S,) each: at its relay, at its last rank, and the pace."""

    relay_s: FloatArray
    last_s: FloatArray
    pace_s: FloatArray


def _stay(
    costs: SegmentCosts,
    cluster: int,
    arrival_s: FloatArray,
    pace_s: FloatArray,
    shapes: Sequence[str],
    relays: Sequence[int],
    n_out: Sequence[int],
) -> _Stay:
    """Walk the first segment through ``cluster``, whose relay serves ``n_out`` clusters first."""
    size = len(costs.model.grid.clusters[cluster])
    shape = profile(shapes[cluster], size)
    port, hop = costs.port_s[cluster], costs.hop_s[cluster]
    gaps, latencies, degree = _at_place(shapes[cluster], size, relays[cluster])
    relay_s = arrival_s + latencies * hop + (gaps - latencies) * port
    last_s = arrival_s + costs.first_inside(cluster, shape)
    if degree:  # ranks below the relay wait for its sends to other clusters
        last_s = last_s + n_out[cluster] * port
    busiest = max(shape.max_degree, degree + n_out[cluster])
    return _Stay(relay_s, np.maximum(last_s, relay_s), np.maximum(pace_s, busiest * port))


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
