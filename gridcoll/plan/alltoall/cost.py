"""Predicted time of an all-to-all: its messages pass interfaces and links, computed as arrays.

Paper 003, Table 3, prices a homogeneous all-to-all of messages of ``m`` bytes between
``(P - 1) os(m) + (P - 1) or(m) + L`` and ``(P - 1) g(m) + (P - 1) or(m) + L``; the contention
factor γ of the network interpolates between the two. Here every message occupies the interfaces of
its sender and its receiver for a time that γ interpolates between ``os + or`` and the gap, in the
order in which messages become ready. So any plan has a price, for any number and sizes of clusters.
Interfaces are full duplex: the longer of sending and receiving counts, not their sum. With γ = 1
this is the simulation of `plan.cost`, stage by stage instead of event by event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gridcoll.constants import QUEUE_BYTES, QUEUE_S, RETRANSMISSION_S
from gridcoll.model.gridmodel import GridModel, Sample
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.alltoall.messages import IntArray, Messages, Weights
from gridcoll.plan.cost import unblocked_one_way_s
from gridcoll.topology.grid import Grid

MOST_PACED_RANKS = 128
"""Limit of ranks for sends by the clock, as every rank looks at all parts of all blocks. With 91
ranks, that takes 0.04 s for blocks of 16 KiB, and 1 s for blocks of 1 MiB."""

LONG_BYTES = 1 << 20
"""A message of this length takes nearly all of its time on the wire."""


class _Costs:
    """Costs of each message at interfaces and links, (M,) arrays.

    They include all messages that a message represents. With ``piece_bytes``, a message consists of
    pieces, which follow one another.
    """

    def __init__(
        self,
        model: GridModel,
        messages: Messages,
        n_bytes: int,
        piece_bytes: int,
        host_weights: Sequence[float],
    ) -> None:
        cluster = np.array(model.grid.cluster_of)
        sizes, which = np.unique(messages.n_blocks, return_inverse=True)
        in_bytes = sizes.astype(float) * n_bytes
        self.in_bytes = in_bytes[which]
        n_pieces = np.maximum(np.ceil(in_bytes / piece_bytes), 1.0) if piece_bytes else 1.0
        gap_s, one_way_s = model.gap_and_one_way_s(in_bytes / n_pieces)
        empty_s, empty_one_way_s = model.gap_and_one_way_s(np.zeros(1))
        i, j = cluster[messages.source], cluster[messages.target]
        port_s = interface_s(model, in_bytes / n_pieces, gap_s) * n_pieces
        one_way_s = (n_pieces - 1.0) * gap_s + one_way_s
        # A slower link leaves interfaces free, except for the link's cost of an empty message.
        self.empty_s, self.empty_one_way_s = empty_s[i, j, 0], empty_one_way_s[i, j, 0]
        least_s = np.where(i == j, 0.0, self.empty_s)
        self.out_s = np.maximum(port_s[i, which], least_s) * messages.n_out
        self.in_s = np.maximum(port_s[j, which], least_s) * messages.n_in
        self.one_way_s = one_way_s[i, j, which]
        self.cluster_pair = np.where(i == j, -1, i * model.n_clusters + j)
        of_link_s = np.zeros(len(i))
        if model.aggregate_bytes_per_s:
            of_link_s = np.where(i == j, 0.0, self.in_bytes / model.link_bytes_per_s[i, j])
        self.shared_s = of_link_s * messages.n_represented
        # All messages that leave a cluster share its uplink, and so do all that enter it.
        self.end_clusters = np.where(i == j, -1, i), np.where(i == j, -1, j)
        self.uplinks_s = [
            np.where(i == j, 0.0, self.in_bytes / model.uplinks[k]) * messages.n_represented
            for k in (i, j)
        ]
        busy_s = np.maximum(port_s[i, which], port_s[j, which])
        busy_s = np.maximum(busy_s, of_link_s + n_pieces * self.empty_s)
        link_gap_s = (gap_s * n_pieces)[i, j, which]
        freely = unblocked_one_way_s(self.one_way_s, link_gap_s, busy_s, model.latency_s[i, j])
        self.unblocked_s = np.where(i == j, self.one_way_s, freely)
        self._count_shared_hosts(model, messages, host_weights)

    def _count_shared_hosts(
        self, model: GridModel, messages: Messages, host_weights: Sequence[float]
    ) -> None:
        """Let the ranks of a host share its interface, which messages between them do not use.

        They share its wire. Each rank pays the cost per message for itself.
        """
        # A sample may contain only one of the ranks that share a host.
        self.hosts_shared = model.grid.shares_hosts or max(host_weights, default=1.0) > 1.0
        if not self.hosts_shared:
            return
        hosts = np.array(model.grid.host_of)
        same_host = hosts[messages.source] == hosts[messages.target]
        self.out_port, self.in_port = (
            np.where(same_host, -1 - ranks, hosts[ranks])
            for ranks in (messages.source, messages.target)
        )
        self.out_wire_s, self.in_wire_s = (
            np.where(same_host, 0.0, self._wire_s(model, messages, ranks, times, host_weights))
            for ranks, times in (
                (messages.source, messages.n_out),
                (messages.target, messages.n_in),
            )
        )
        for each, times in ((self.out_s, messages.n_out), (self.in_s, messages.n_in)):
            each[same_host] = (self.empty_s * times)[same_host]
        self.one_way_s[same_host] = self.unblocked_s[same_host] = self.empty_one_way_s[same_host]

    def _wire_s(
        self,
        model: GridModel,
        messages: Messages,
        ranks: IntArray,
        times: FloatArray,
        host_weights: Sequence[float],
    ) -> FloatArray:
        """Return how long messages occupy the wires of the hosts of ``ranks``.

        The rate of a wire is that of long messages.
        """
        gap_s, _ = model.gap_and_one_way_s(np.array([float(LONG_BYTES)]))
        per_byte_s = np.diagonal(gap_s[:, :, 0]) / LONG_BYTES
        own_s = self.in_bytes * per_byte_s[np.array(model.grid.cluster_of)[ranks]] * times
        if not host_weights:
            return np.asarray(own_s)
        has_several = messages.n_represented > times  # the rank represents several
        return np.asarray(own_s * np.where(has_several, np.array(host_weights)[ranks], 1.0))


def interface_s(model: GridModel, n_bytes: FloatArray, gap_s: FloatArray) -> FloatArray:
    """Return how long messages of ``n_bytes``, (S,), occupy an interface, (C, S): Table 3."""
    clusters = range(model.n_clusters)
    upper = gap_s[clusters, clusters]
    contention = np.array(model.contention or [1.0] * len(clusters))[:, None]
    if (contention == 1.0).all():
        return upper
    links = [model.link(c, c) for c in clusters]
    lower = np.array(
        [[link.send_overhead(n) + link.recv_overhead(n) for n in n_bytes] for link in links]
    )
    lower = np.minimum(lower, upper)
    return np.asarray(lower + (upper - lower) * contention)


def price_messages_s(
    model: GridModel,
    messages: Messages,
    n_bytes: int,
    piece_bytes: int = 0,
    host_weights: Sequence[float] = (),
    due_s: FloatArray | None = None,
) -> float:
    """Return the seconds until the last of ``messages`` has arrived, for blocks of ``n_bytes``.

    Messages are cut at ``piece_bytes`` unless that is 0. ``host_weights`` are those of a `Sample`.
    No message leaves before its ``due_s``, (M,).
    """
    if not len(messages.source):
        return 0.0
    costs = _Costs(model, messages, n_bytes, piece_bytes, host_weights)
    # Of the messages that one represents, the last leaves and arrives after all others have.
    earlier_out_s = costs.out_s * (1.0 - 1.0 / messages.n_out)
    first_in_s = costs.in_s / messages.n_in
    ready = np.zeros(len(messages.source)) if due_s is None else np.array(due_s)
    ended = np.zeros(len(messages.source))
    for stage in range(int(messages.stage.max()) + 1):
        if stage:
            later, earlier = messages.needs[messages.stage[messages.needs[:, 0]] == stage].T
            np.maximum.at(ready, later, ended[earlier])
        now = np.flatnonzero(messages.stage <= stage)
        start = _served_in_turn(messages.source[now], ready[now], costs.out_s[now])
        if costs.hosts_shared:
            start = _served_in_turn(costs.out_port[now], start, costs.out_wire_s[now])
        enters = _served_in_turn(costs.cluster_pair[now], start, costs.shared_s[now])
        for end_cluster, uplink_s in zip(costs.end_clusters, costs.uplinks_s, strict=True):
            if uplink_s.any():
                enters = _served_in_turn(end_cluster[now], enters, uplink_s[now])
        in_s, first = costs.in_s[now], enters + costs.unblocked_s[now]
        begins = np.maximum(first - first_in_s[now], first + earlier_out_s[now] - in_s)
        if costs.hosts_shared:
            begins = _served_in_turn(costs.in_port[now], begins, costs.in_wire_s[now])
        through = _served_in_turn(messages.target[now], begins, in_s) + in_s
        # Flows wait for their windows at the same time, not one after another.
        begun = start if messages.one_by_one else ready[now]
        ended[now] = np.maximum(through, begun + costs.one_way_s[now])
    return float(ended.max())


def _served_in_turn(which: IntArray, ready: FloatArray, takes_s: FloatArray) -> FloatArray:
    """Return when each job starts on the server ``which``, first come, first served."""
    order = np.lexsort((ready, which))
    group = which[order]
    # Put all servers on one time axis, far enough apart that they do not affect each other.
    apart = np.cumsum(np.diff(group, prepend=group[:1]) != 0) * (ready.max() + takes_s.sum() + 1.0)
    before = np.cumsum(takes_s[order]) - takes_s[order]
    start = np.maximum.accumulate(ready[order] + apart - before) + before - apart
    result: FloatArray = np.empty_like(start)
    result[order] = start
    return result


def of_grid(messages_of: Callable[[Grid, Weights], Messages]) -> Callable[[Sample], Messages]:
    """Return ``messages_of``, a function of a grid and weights, as a function of a sample."""
    return lambda sample: messages_of(sample.model.grid, sample.weights)


def retransmission_s(model: GridModel, n_bytes: int) -> float:
    """Return the seconds that losses cost if blocks of ``n_bytes`` overflow a queue.

    They do so if nothing paces them and their hosts together send faster than a thin link or an
    uplink carries. Return 0 for more than `MOST_PACED_RANKS` ranks, as there is then no paced
    exchange to prefer.
    """
    grid = model.grid
    if model.n_clusters == 1 or grid.n_ranks > MOST_PACED_RANKS:
        return 0.0
    sizes = np.array(grid.ranks_per_cluster)
    link_bytes = np.outer(sizes, sizes) * float(n_bytes)
    np.fill_diagonal(link_bytes, 0.0)
    return RETRANSMISSION_S if overflows(model, link_bytes) else 0.0


def overflows(model: GridModel, link_bytes: FloatArray) -> bool:
    """Whether a queue overflows if hosts send ``link_bytes`` between clusters, (C, C), at once."""
    n_hosts, leaves_bytes = np.array(model.grid.hosts_per_cluster), link_bytes.sum(axis=1)
    # The uplink of a single host is its interface: messages wait there and are not lost.
    if ((leaves_bytes > _room_bytes(model.uplinks)) & (n_hosts > 1)).any():
        return True
    if not model.aggregate_bytes_per_s:
        return False  # what several flows get together is not known
    # Flows that windows limit do not fill queues. Blocks for other clusters share the interfaces.
    hosts_send = n_hosts * model.flow_bytes_per_s.diagonal()
    parts = link_bytes / np.maximum(leaves_bytes, 1.0)[:, None]
    links, to_each = model.link_bytes_per_s, np.maximum(parts * hosts_send[:, None], 1e-9)
    queued_bytes = link_bytes * np.maximum(1 - links / to_each, 0.0)
    too_many = (queued_bytes > _room_bytes(links)) & ~model.windows_limit
    np.fill_diagonal(too_many, False)
    return bool(too_many.any())


def _room_bytes(bytes_per_s: FloatArray) -> FloatArray:
    """Return how many bytes fit into the queue before a wire of this rate."""
    return np.maximum(QUEUE_BYTES, QUEUE_S * bytes_per_s)


def priced_s(
    model: GridModel, messages_of: Callable[[Sample], Messages], n_bytes: int, piece_bytes: int = 0
) -> float:
    """Return the seconds for blocks of ``n_bytes``, from the messages of a sample of the ranks.

    Nothing paces these messages, so the time includes the delay by lost packets.
    """
    sample = model.sample
    messages = messages_of(sample)
    passed_s = price_messages_s(sample.model, messages, n_bytes, piece_bytes, sample.host_weights)
    return passed_s + retransmission_s(model, n_bytes)
