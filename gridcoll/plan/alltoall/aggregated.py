"""Aggregation by all ranks: messages inside the own cluster, and one per other cluster.

Between two clusters, each rank of the smaller one exchanges one message with a rank of the larger
one, a different one for each. If the sending cluster is the larger one, its members first exchange
the blocks that each of them is to send (*gathered*). If the receiving cluster is the larger one,
its members then exchange the blocks that they received (*scattered*). So a rank has two messages
per member of its cluster, and one per other cluster. With leaders, these would carry the traffic of
all ranks; a direct exchange has a message per rank. Blocks pass interfaces twice, so this algorithm
suits short ones.

It is the exchange by rows, then by columns, of Bokhari and Berryman 1992, with clusters of any size
as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct

from gridcoll.constants import LEAST_SAVED
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.alltoall.cost import LONG_BYTES
from gridcoll.plan.alltoall.exchange import (
    BlockWriter,
    blocks,
    copy_blocks,
    exchange_plan,
    has_both,
    keep_own,
)
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import ByRank, Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.grid import Grid

MOST_BYTES = 2 << 20
"""Limit of one rank's input. Scratch is up to seven times as large."""

MOST_BLOCK_BYTES = 4 << 10
"""Limit of a block. Aggregation saves messages, but the bytes of longer blocks cost more than it
saves. With shared hosts, the price of blocks of 8 KiB is a quarter below the simulated time."""

_COLLECT, _CROSS, _DELIVER = range(3)  # tags


class Crossing(Struct, frozen=True, dict=True):
    """Which ranks exchange messages between clusters, and which relay for others inside."""

    grid: Grid
    order: tuple[tuple[int, ...], ...]
    """The other clusters of each cluster, in the order in which it sends to them."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return self.grid.ranks_per_cluster

    def gathers(self, source: int, target: int) -> bool:
        """Whether blocks from cluster ``source`` to ``target`` are gathered before they cross."""
        return self.sizes[source] >= self.sizes[target]

    @cached_property
    def _first(self) -> dict[tuple[int, int], int]:
        """The first member of the larger of two clusters that exchanges with the smaller one.

        Over all smaller clusters, members take turns. Both directions use the same members.
        """
        found = {}
        for large, n_large in enumerate(self.sizes):
            next_place = 0
            for small, n_small in enumerate(self.sizes):
                if small != large and n_small <= n_large:
                    found[large, small] = next_place % n_large
                    next_place += n_small
        return found

    def relay(self, large: int, small: int, place: int) -> int:
        """Return the place in ``large`` of the partner of the rank at ``place`` in ``small``."""
        return (self._first[large, small] + place) % self.sizes[large]

    def partner_place(self, large: int, small: int, at: int) -> int:
        """Return the place in ``small`` of the partner of the ``at``-th member of ``large``.

        It is -1 if the member has no partner there.
        """
        place = (at - self._first[large, small]) % self.sizes[large]
        return place if place < self.sizes[small] else -1

    def targets(self, cluster: int, at: int) -> list[int]:
        """Return the ranks in other clusters that get gathered blocks from the ``at``-th member."""
        return self._others(
            cluster, at, [c for c in self.order[cluster] if self.gathers(cluster, c)]
        )

    def sources(self, cluster: int, at: int) -> list[int]:
        """Return the ranks of smaller clusters that send that member blocks for all members."""
        smaller = [c for c in range(len(self.sizes)) if not self.gathers(c, cluster)]
        return self._others(cluster, at, smaller)

    def _others(self, cluster: int, at: int, others: Sequence[int]) -> list[int]:
        places = [(c, self.partner_place(cluster, c, at)) for c in others if c != cluster]
        return [self.grid.clusters[c].ranks[place] for c, place in places if place >= 0]


def plan_aggregated(crossing: Crossing, n_units: int, label: str = "aggregated") -> Plan:
    """Return a plan in which all ranks relay: collect inside, cross, deliver inside."""
    grid = crossing.grid
    writers = ByRank(grid.n_ranks, lambda rank: _Writer(crossing, rank, n_units))
    programs = Programs(grid.n_ranks, lambda rank: writers[rank].program)
    scratch = ByRank(grid.n_ranks, lambda rank: writers[rank].n_blocks)
    return exchange_plan(label, n_units, programs, scratch)


class _Writer(BlockWriter):
    """The program of one rank, and its scratch."""

    def __init__(self, crossing: Crossing, rank: int, n_units: int) -> None:
        super().__init__(n_units)
        self._crossing, self._rank = crossing, rank
        self._grid = crossing.grid
        self._cluster = self._grid.cluster_of[rank]
        self._members = self._grid.clusters[self._cluster].ranks
        self._at = self._members.index(rank)
        sends = self._cross_whole()
        self.program: Program = (
            *self._collect(), *sends, *self._cross_gathered(), *self._deliver(),
            keep_own(rank, n_units),
        )  # fmt: skip
        self.n_blocks = self.allocate.n_blocks

    def _peers(self) -> list[int]:
        """Return the places of the other members, the next one first."""
        n = len(self._members)
        return [(self._at + step) % n for step in range(1, n)]

    def _collect(self) -> list[Op]:
        """Exchange with every member its block and the blocks that it will send on.

        The message of the ``k``-th member begins at block ``self._received_at[k]`` of scratch. Its
        first block is the one for this rank.
        """
        ops: list[Op] = []
        mine = self._crossing.targets(self._cluster, self._at)
        self._received_at = {}
        for at in self._peers():
            member = self._members[at]
            first = self._received_at[at] = self.allocate(1 + len(mine))
            chunk = blocks("scratch", first, self.n_units, 1 + len(mine))
            ops.append(Recv(member, chunk, _COLLECT))
            ops += copy_blocks("scratch", "output", [(first, member)], self.n_units)
        for at in self._peers():
            where = [self._members[at], *self._crossing.targets(self._cluster, at)]
            ops += self.send(self._members[at], "input", where, _COLLECT)
        return ops

    def _cross_whole(self) -> list[Op]:
        """Send our blocks for all of every larger cluster to one of its ranks."""
        ops: list[Op] = []
        for other in self._crossing.order[self._cluster]:
            if not self._crossing.gathers(self._cluster, other):
                ranks = self._grid.clusters[other].ranks
                relay = self._crossing.relay(other, self._cluster, self._at)
                ops += self.send(ranks[relay], "input", ranks, _CROSS)
        return ops

    def _cross_gathered(self) -> list[Op]:
        """Send gathered blocks of all members to our targets; receive those of other clusters."""
        ops: list[Op] = []
        for k, target in enumerate(self._crossing.targets(self._cluster, self._at), start=1):
            n = len(self._members)
            if n == 1:
                ops += self.send(target, "input", [target], _CROSS)
                continue
            first = self.allocate(n)
            for at in range(n):
                ours = at == self._at
                pair = (target if ours else self._received_at[at] + k, first + at)
                source = "input" if ours else "scratch"
                ops += copy_blocks(source, "scratch", [pair], self.n_units)
            ops.append(Send(target, blocks("scratch", first, self.n_units, n), _CROSS))
        for other in self._crossing.order[self._cluster]:
            if self._crossing.gathers(other, self._cluster):
                ranks = self._grid.clusters[other].ranks
                relay = self._crossing.relay(other, self._cluster, self._at)
                ops += self.receive(ranks[relay], ranks, _CROSS)
        return ops

    def _deliver(self) -> list[Op]:
        """Send every member its blocks from what came ungathered from smaller clusters."""
        ops: list[Op] = []
        sources = self._crossing.sources(self._cluster, self._at)
        n = len(self._members)
        received_at = [self.allocate(n) for _ in sources]
        for source, first in zip(sources, received_at, strict=True):
            ops.append(Recv(source, blocks("scratch", first, self.n_units, n), _CROSS))
            ops += copy_blocks("scratch", "output", [(first + self._at, source)], self.n_units)
        for at in self._peers():
            theirs = self._crossing.sources(self._cluster, at)
            if theirs:
                ops += self.receive(self._members[at], theirs, _DELIVER)
            if sources:
                where = [first + at for first in received_at]
                ops += self.send(self._members[at], "scratch", where, _DELIVER)
        return ops


def price_aggregated(model: GridModel, n_bytes: int) -> float:
    """Return the seconds, computed by cluster, since all members of one have equal work.

    The phases are collecting, crossing with the farthest cluster first, and delivering. None starts
    before interfaces have passed the messages of the phase before.
    """
    grid = model.grid
    sizes = np.array(grid.ranks_per_cluster)
    on_host = np.array([max(cluster.node_sizes) for cluster in grid.clusters])
    n = len(sizes)
    gathers = sizes[:, None] >= sizes[None]
    np.fill_diagonal(gathers, False)
    n_targets = np.ceil((gathers * sizes[None]).sum(axis=1) / sizes)
    n_sources = np.ceil(
        (gathers * sizes[None] * (sizes[:, None] > sizes[None])).sum(axis=1) / sizes
    )
    collect_busy_s, collect_done_s = inside_s(model, sizes, on_host, (1 + n_targets) * n_bytes)
    _, deliver_done_s = inside_s(model, sizes, on_host, n_sources * n_bytes)
    distinct, index = np.unique(sizes, return_inverse=True)
    gap_s, one_way_s = model.gap_and_one_way_s(distinct.astype(float) * n_bytes)
    rows, columns = np.indices((n, n))
    # A message has one block per member of the sending cluster, or of the receiving one.
    carried = np.where(gathers, index[rows], index[columns])
    path_s = one_way_s[rows, columns, carried]
    port_s = on_host[:, None] * gap_s[rows, rows, carried]
    if model.aggregate_bytes_per_s:
        between_s = np.outer(sizes, sizes) * n_bytes / model.link_bytes_per_s
        path_s = path_s + np.where(rows == columns, 0.0, between_s * (1 - 1 / np.maximum(sizes, 1)))
    # Messages of a member to each cluster, on average; those to larger clusters leave first.
    n_each = np.where(gathers, sizes[None] / sizes[:, None], 1.0) * (rows != columns)
    busy_s = n_each * port_s
    # All that leaves or enters a cluster passes its uplink, which may be slower than interfaces.
    uplink_s = sizes * (sizes.sum() - sizes) * n_bytes / model.uplinks
    uplink_wait_s = np.maximum(uplink_s - np.minimum(busy_s.sum(axis=1), busy_s.sum(axis=0)), 0.0)
    path_s = path_s + np.maximum(uplink_wait_s[:, None], uplink_wait_s[None, :])
    sent_whole_s = np.where(gathers, 0.0, busy_s).sum(axis=1)
    ready_s = np.maximum(collect_done_s, collect_busy_s + sent_whole_s)
    order = np.argsort(-np.where(rows == columns, -1.0, path_s), axis=1, kind="stable")
    there_s = np.zeros((n, n))
    for selected, begins_s in ((gathers, ready_s), (~gathers & (rows != columns), collect_busy_s)):
        selected_busy_s = np.where(selected, busy_s, 0.0)
        in_order_s = np.cumsum(np.take_along_axis(selected_busy_s, order, axis=1), axis=1)
        leaves_s = np.zeros((n, n))
        np.put_along_axis(leaves_s, order, in_order_s, axis=1)
        arrives_s = begins_s[:, None] + leaves_s - np.minimum(selected_busy_s, port_s) + path_s
        there_s = np.where(selected, arrives_s, there_s)
    receive_s = n_each.T * port_s.T  # at the receiver's interface, one message after another
    gathered_s = _received_s(np.where(gathers, there_s, -np.inf), receive_s)
    scatters = ~gathers & (rows != columns)
    scattered_s = _received_s(np.where(scatters, there_s, -np.inf), receive_s)
    delivered_s = np.where(n_sources > 0, scattered_s + deliver_done_s, 0.0)
    return float(max(gathered_s.max(), delivered_s.max(), collect_done_s.max()))


def _received_s(arrives_s: FloatArray, port_times_s: FloatArray) -> FloatArray:
    """Return when the last message has passed its target's interface, (C,).

    Arrivals and times at the interface are given by source and target, (C, C). The first message
    has passed when it arrives; each later one passes after the one before.
    """
    order = np.argsort(arrives_s, axis=0, kind="stable")
    in_order_s = np.take_along_axis(arrives_s, order, axis=0)
    passing_s = np.where(
        np.isfinite(in_order_s), np.take_along_axis(port_times_s, order, axis=0), 0.0
    )
    still_to_pass_s = np.cumsum(passing_s[::-1], axis=0)[::-1] - passing_s
    return np.asarray(np.maximum((in_order_s + still_to_pass_s).max(axis=0), 0.0))


def inside_s(
    model: GridModel, sizes: np.ndarray, on_host: np.ndarray, in_bytes: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Price an exchange inside every cluster.

    Return how long interfaces are busy, (C,), and when all blocks have arrived, (C,).
    """
    every = list(range(len(sizes)))
    distinct, index = np.unique(in_bytes, return_inverse=True)
    gap_s, one_way_s = model.gap_and_one_way_s(distinct.astype(float), (every, every))
    gap, one_way = gap_s[every, index], one_way_s[every, index]
    wire_s = np.diagonal(model.gap_s(LONG_BYTES)) / LONG_BYTES * in_bytes
    busy_s = np.maximum((sizes - 1) * gap, on_host * (sizes - on_host) * wire_s)
    return busy_s, np.where(sizes > 1, busy_s - gap + one_way, 0.0)


@algorithm(
    "alltoall",
    "aggregated",
    "short blocks among many ranks: messages as many as members and clusters, not as ranks",
    "gridcoll; rows and columns of Bokhari and Berryman 1992, over clusters of any size",
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Offer it only if a message per rank is not negligible beside the longest latency."""
    grid = model.grid
    if not has_both(grid) or n_bytes > min(MOST_BLOCK_BYTES, MOST_BYTES // grid.n_ranks):
        return []
    gap_s, one_way_s = model.gap_and_one_way_s(np.array([float(n_bytes)]))
    if (grid.n_ranks - 1) * gap_s.min() < LEAST_SAVED * one_way_s.max():
        return []
    sizes = grid.ranks_per_cluster
    label = f"through members, {max(sizes)} messages inside, {len(sizes) - 1} between clusters"
    far_first = np.argsort(-model.latency_s, axis=1, kind="stable").tolist()
    order = tuple(tuple(c for c in row if c != own) for own, row in enumerate(far_first))

    def plan(n_units: int, full_label: str) -> Plan:
        return plan_aggregated(Crossing(grid, order), n_units, full_label)

    return [Candidate.planned("aggregated", label, price_aggregated(model, n_bytes), plan)]
