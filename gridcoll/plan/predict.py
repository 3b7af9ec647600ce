"""The steady-state price of a segmented tree: fast enough to try hundreds before a call.

One-port, full duplex, pLogP: a rank's network interface passes one segment at a time each way, a
link passes one segment per its own gap. The first segment walks down the tree; the others follow
at the pace of the slowest interface or link on their way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.lines import LineCosts, line_costs, place_costs


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

    @cached_property
    def _at_home(self) -> tuple[FloatArray, FloatArray]:
        """The same two of a message between ranks of one host, (C, 1) each: of an empty one."""
        every = range(self.model.n_clusters)
        return self.model.gap_and_alone_s(np.zeros(1), (every, every))

    def way_s(self, waits: FloatArray, hops: FloatArray) -> FloatArray:
        """What ``waits`` and ``hops``, (…, C, 2) each, take, (…, C, S).

        Of either first those between hosts, then those inside one. A hop costs a lone segment's
        way; a sender's further children wait a gap each.
        """
        port_s, hop_s = self._at_home
        far = waits[..., :1] * self.port_s + hops[..., :1] * self.hop_s
        return np.asarray(far + waits[..., 1:] * port_s + hops[..., 1:] * hop_s)

    def inside_s(self, shapes: Sequence[str]) -> FloatArray:
        """Internal broadcast of every cluster by every shape, whole message, (C, shapes, S)."""
        rest = self.n_segments - 1
        result = np.empty((self.model.n_clusters, len(shapes), len(self.segment_bytes)))
        for k, shape in enumerate(shapes):
            lines = [line_costs(shape, c.node_sizes) for c in self.model.grid.clusters]
            busiest = np.array([line.busiest for line in lines])
            result[:, k] = self.first_inside(lines) + rest * busiest[:, None] * self.port_s
        return result

    def first_inside(self, lines: Sequence[LineCosts]) -> FloatArray:
        """When the last member of each cluster has the first segment after the entry does, (C, S).

        Members stand in a line, one for each cluster.
        """
        most = max(len(line.waits) for line in lines)
        waits, hops = np.zeros((2, most, len(lines), 2))
        for c, line in enumerate(lines):
            waits[: len(line.waits), c] = line.waits
            hops[: len(line.hops), c] = line.hops
        return np.asarray(self.way_s(waits, hops).max(axis=0))


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
    hosts = [cluster.node_sizes for cluster in costs.model.grid.clusters]
    lines = [line_costs(*key) for key in zip(shapes, hosts, strict=True)]
    places = [place_costs(*key) for key in zip(shapes, hosts, relays, strict=True)]
    at_relay = np.array(places, dtype=float)
    sends = at_relay[:, 4:]
    served = np.array(n_out, dtype=float)[:, None]
    busiest = np.array([line.busiest for line in lines])[:, None]
    # Ranks below the relay wait for its sends to other clusters.
    waits = served * (sends > 0)
    return (
        costs.way_s(at_relay[:, :2], at_relay[:, 2:4]),
        costs.first_inside(lines) + waits * costs.port_s,
        np.maximum(busiest, sends + served) * costs.port_s,
    )
