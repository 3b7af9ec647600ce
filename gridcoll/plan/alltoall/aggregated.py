"""Aggregation by all ranks: messages inside the own cluster, and one per other cluster.

Between two clusters, each rank of the smaller one exchanges one message with another rank of the
larger one. If the sending cluster is the larger one, its members first exchange the blocks that
each is to send (*gathered*); if the receiving one is, its members exchange what came (*scattered*).
So a rank has two messages per member of its cluster, and one per other cluster. Leaders would carry
the traffic of all, and a direct exchange has a message per rank. Blocks pass interfaces twice, so
this is good for short ones.

It is the exchange by rows, then by columns, of Bokhari and Berryman 1992, with clusters of any size
as columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gridcoll.constants import LEAST_SAVED
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.alltoall.cost import LONG_BYTES
from gridcoll.plan.alltoall.exchange import (
    Rooms,
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
"""Limit of one rank's input; scratch holds it up to seven times."""

MOST_BLOCK_BYTES = 4 << 10
"""Of a block. Aggregation saves messages, and bytes of longer blocks cost more than those; where
hosts are shared, the price of blocks of 8 KiB is a quarter below what simulation says."""

_COLLECT, _CROSS, _DELIVER = range(3)  # tags


@dataclass(frozen=True)
class Crossing:
    """Who sends to whom between clusters, and who relays for whom inside."""

    grid: Grid
    order: tuple[tuple[int, ...], ...]
    """By cluster, the others as they are sent to."""

    @cached_property
    def sizes(self) -> list[int]:
        return [len(cluster) for cluster in self.grid.clusters]

    def gathers(self, source: int, target: int) -> bool:
        """Whether what goes from cluster ``source`` to ``target`` is gathered before."""
        return self.sizes[source] >= self.sizes[target]

    @cached_property
    def _first(self) -> dict[tuple[int, int], int]:
        """The first member of the larger of two clusters that exchanges with the smaller one.

        Members take turns over all smaller clusters; the same for both directions.
        """
        found = {}
        for large, n_large in enumerate(self.sizes):
            next_one = 0
            for small, n_small in enumerate(self.sizes):
                if small != large and n_small <= n_large:
                    found[large, small] = next_one % n_large
                    next_one += n_small
        return found

    def relay(self, large: int, small: int, place: int) -> int:
        """The place in ``large`` of the partner of the rank at ``place`` of ``small``."""
        return (self._first[large, small] + place) % self.sizes[large]

    def dealt_with(self, large: int, small: int, at: int) -> int:
        """The place in ``small`` of the partner of the ``at``-th member; -1 for none."""
        place = (at - self._first[large, small]) % self.sizes[large]
        return place if place < self.sizes[small] else -1

    def targets(self, cluster: int, at: int) -> list[int]:
        """Ranks of other clusters that the ``at``-th member sends gathered blocks to."""
        return self._others(
            cluster, at, [c for c in self.order[cluster] if self.gathers(cluster, c)]
        )

    def sources(self, cluster: int, at: int) -> list[int]:
        """Ranks of smaller clusters whose blocks for all of ``cluster`` come to that member."""
        smaller = [c for c in range(len(self.sizes)) if not self.gathers(c, cluster)]
        return self._others(cluster, at, smaller)

    def _others(self, cluster: int, at: int, others: Sequence[int]) -> list[int]:
        places = [(c, self.dealt_with(cluster, c, at)) for c in others if c != cluster]
        return [self.grid.clusters[c].ranks[place] for c, place in places if place >= 0]


def plan_aggregated(crossing: Crossing, n_units: int, label: str = "aggregated") -> Plan:
    """All ranks relay: collect inside, cross, deliver inside."""
    grid = crossing.grid
    writers = ByRank(grid.n_ranks, lambda rank: _Writer(crossing, rank, n_units))
    programs = Programs(grid.n_ranks, lambda rank: writers[rank].program)
    scratch = ByRank(grid.n_ranks, lambda rank: writers[rank].n_blocks)
    return exchange_plan(label, n_units, programs, scratch)


class _Writer:
    """The program of one rank, and its scratch."""

    def __init__(self, crossing: Crossing, rank: int, n_units: int) -> None:
        self._crossing, self._rank, self._n_units = crossing, rank, n_units
        self._grid = crossing.grid
        self._cluster = self._grid.cluster_of[rank]
        self._members = self._grid.clusters[self._cluster].ranks
        self._at = self._members.index(rank)
        self._room = Rooms()
        sends = self._cross_whole()
        self.program: Program = (
            *self._collect(), *sends, *self._cross_gathered(), *self._deliver(),
            keep_own(rank, n_units),
        )  # fmt: skip
        self.n_blocks = self._room.n_blocks

    def _peers(self) -> list[int]:
        """Places of the other members, the next one first."""
        n = len(self._members)
        return [(self._at + step) % n for step in range(1, n)]

    def _packed(self, source: str, where: Sequence[int]) -> tuple[list[Op], str, int]:
        """Copies that bring blocks together, and where they then are; none if they are already."""
        if list(where) == list(range(where[0], where[0] + len(where))):
            return [], source, where[0]
        first = self._room(len(where))
        pairs = [(block, first + k) for k, block in enumerate(where)]
        return copy_blocks(source, "scratch", pairs, self._n_units), "scratch", first

    def _send(self, peer: int, source: str, where: Sequence[int], tag: int) -> list[Op]:
        ops, buffer, first = self._packed(source, where)
        return [*ops, Send(peer, blocks(buffer, first, self._n_units, len(where)), tag)]

    def _receive(self, peer: int, ranks: Sequence[int], tag: int) -> list[Op]:
        """A message with a block from each of ``ranks`` to us."""
        n = len(ranks)
        if list(ranks) == list(range(ranks[0], ranks[0] + n)):
            return [Recv(peer, blocks("output", ranks[0], self._n_units, n), tag)]
        first = self._room(n)
        pairs = [(first + k, rank) for k, rank in enumerate(ranks)]
        return [
            Recv(peer, blocks("scratch", first, self._n_units, n), tag),
            *copy_blocks("scratch", "output", pairs, self._n_units),
        ]

    def _collect(self) -> list[Op]:
        """Exchange with every member its block and those that it will send on.

        What came from the ``k``-th member begins at ``self._came[k]``, the block for us first.
        """
        ops: list[Op] = []
        mine = self._crossing.targets(self._cluster, self._at)
        self._came = {}
        for at in self._peers():
            member = self._members[at]
            first = self._came[at] = self._room(1 + len(mine))
            chunk = blocks("scratch", first, self._n_units, 1 + len(mine))
            ops.append(Recv(member, chunk, _COLLECT))
            ops += copy_blocks("scratch", "output", [(first, member)], self._n_units)
        for at in self._peers():
            where = [self._members[at], *self._crossing.targets(self._cluster, at)]
            ops += self._send(self._members[at], "input", where, _COLLECT)
        return ops

    def _cross_whole(self) -> list[Op]:
        """To one rank of every larger cluster our blocks for all of it."""
        ops: list[Op] = []
        for other in self._crossing.order[self._cluster]:
            if not self._crossing.gathers(self._cluster, other):
                ranks = self._grid.clusters[other].ranks
                relay = self._crossing.relay(other, self._cluster, self._at)
                ops += self._send(ranks[relay], "input", ranks, _CROSS)
        return ops

    def _cross_gathered(self) -> list[Op]:
        """Blocks of all members to whom we send for; the same from other clusters."""
        ops: list[Op] = []
        for k, target in enumerate(self._crossing.targets(self._cluster, self._at), start=1):
            n = len(self._members)
            if n == 1:
                ops += self._send(target, "input", [target], _CROSS)
                continue
            first = self._room(n)
            for at in range(n):
                ours = at == self._at
                pair = (target if ours else self._came[at] + k, first + at)
                source = "input" if ours else "scratch"
                ops += copy_blocks(source, "scratch", [pair], self._n_units)
            ops.append(Send(target, blocks("scratch", first, self._n_units, n), _CROSS))
        for other in self._crossing.order[self._cluster]:
            if self._crossing.gathers(other, self._cluster):
                ranks = self._grid.clusters[other].ranks
                relay = self._crossing.relay(other, self._cluster, self._at)
                ops += self._receive(ranks[relay], ranks, _CROSS)
        return ops

    def _deliver(self) -> list[Op]:
        """What came whole from smaller clusters: to every member its blocks of it."""
        ops: list[Op] = []
        sources = self._crossing.sources(self._cluster, self._at)
        n = len(self._members)
        came = [self._room(n) for _ in sources]
        for source, first in zip(sources, came, strict=True):
            ops.append(Recv(source, blocks("scratch", first, self._n_units, n), _CROSS))
            ops += copy_blocks("scratch", "output", [(first + self._at, source)], self._n_units)
        for at in self._peers():
            theirs = self._crossing.sources(self._cluster, at)
            if theirs:
                ops += self._receive(self._members[at], theirs, _DELIVER)
            if sources:
                where = [first + at for first in came]
                ops += self._send(self._members[at], "scratch", where, _DELIVER)
        return ops


def price_aggregated(model: GridModel, n_bytes: int) -> float:
    """Seconds: by cluster, as all members have as much to do.

    Collecting, then crossing, the farthest first, then delivering; each no sooner than interfaces
    have passed what was before.
    """
    grid = model.grid
    sizes = np.array([len(cluster) for cluster in grid.clusters])
    on_host = np.array([max(cluster.node_sizes) for cluster in grid.clusters])
    n = len(sizes)
    gathers = sizes[:, None] >= sizes[None]
    np.fill_diagonal(gathers, False)
    n_targets = np.ceil((gathers * sizes[None]).sum(axis=1) / sizes)
    n_sources = np.ceil(
        (gathers * sizes[None] * (sizes[:, None] > sizes[None])).sum(axis=1) / sizes
    )
    collect_s, collected_s = _inside_s(model, sizes, on_host, (1 + n_targets) * n_bytes)
    _, delivered_s = _inside_s(model, sizes, on_host, n_sources * n_bytes)
    kinds, which = np.unique(sizes, return_inverse=True)
    gap_s, one_way_s = model.gap_and_one_way_s(kinds.astype(float) * n_bytes)
    rows, columns = np.indices((n, n))
    # As many blocks as the sending cluster has members, or the receiving one.
    carried = np.where(gathers, which[rows], which[columns])
    way_s = one_way_s[rows, columns, carried]
    port_s = on_host[:, None] * gap_s[rows, rows, carried]
    if model.aggregate_bytes_per_s:
        between_s = np.outer(sizes, sizes) * n_bytes / model.link_bytes_per_s
        way_s = way_s + np.where(rows == columns, 0.0, between_s * (1 - 1 / np.maximum(sizes, 1)))
    # How many messages a member has for each cluster, on average; those to larger ones first.
    n_each = np.where(gathers, sizes[None] / sizes[:, None], 1.0) * (rows != columns)
    busy_s = n_each * port_s
    # All that leaves or enters a cluster passes its uplink, which may take longer than interfaces.
    up_s = sizes * (sizes.sum() - sizes) * n_bytes / model.uplinks
    later_s = np.maximum(up_s - np.minimum(busy_s.sum(axis=1), busy_s.sum(axis=0)), 0.0)
    way_s = way_s + np.maximum(later_s[:, None], later_s[None, :])
    whole_s = np.where(gathers, 0.0, busy_s).sum(axis=1)
    ready_s = np.maximum(collected_s, collect_s + whole_s)
    order = np.argsort(-np.where(rows == columns, -1.0, way_s), axis=1, kind="stable")
    there_s = np.zeros((n, n))
    for kind, begins_s in ((gathers, ready_s), (~gathers & (rows != columns), collect_s)):
        of_kind = np.where(kind, busy_s, 0.0)
        in_turn = np.cumsum(np.take_along_axis(of_kind, order, axis=1), axis=1)
        leaves_s = np.zeros((n, n))
        np.put_along_axis(leaves_s, order, in_turn, axis=1)
        arrives_s = begins_s[:, None] + leaves_s - np.minimum(of_kind, port_s) + way_s
        there_s = np.where(kind, arrives_s, there_s)
    taken_s = n_each.T * port_s.T  # at the receiver, whose interface takes one after another
    crossed_s = _taken_in(np.where(gathers, there_s, -np.inf), taken_s)
    whole = ~gathers & (rows != columns)
    come_s = _taken_in(np.where(whole, there_s, -np.inf), taken_s)
    last_s = np.where(n_sources > 0, come_s + delivered_s, 0.0)
    return float(max(crossed_s.max(), last_s.max(), collected_s.max()))


def _taken_in(arrives_s: FloatArray, takes_s: FloatArray) -> FloatArray:
    """When the last message has passed its target's interface, (C,), given arrivals by (source,
    target).

    The first one has passed when it arrives; later ones pass after those before.
    """
    order = np.argsort(arrives_s, axis=0, kind="stable")
    in_turn = np.take_along_axis(arrives_s, order, axis=0)
    takes = np.where(np.isfinite(in_turn), np.take_along_axis(takes_s, order, axis=0), 0.0)
    behind = np.cumsum(takes[::-1], axis=0)[::-1] - takes
    return np.asarray(np.maximum((in_turn + behind).max(axis=0), 0.0))


def _inside_s(
    model: GridModel, sizes: np.ndarray, on_host: np.ndarray, in_bytes: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """An exchange inside every cluster: how long interfaces are busy, and until all is there."""
    every = list(range(len(sizes)))
    kinds, which = np.unique(in_bytes, return_inverse=True)
    gap_s, one_way_s = model.gap_and_one_way_s(kinds.astype(float), (every, every))
    gap, one_way = gap_s[every, which], one_way_s[every, which]
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
    """Only where a message per rank is not negligible beside the longest latency."""
    grid = model.grid
    if not has_both(grid) or n_bytes > min(MOST_BLOCK_BYTES, MOST_BYTES // grid.n_ranks):
        return []
    gap_s, one_way_s = model.gap_and_one_way_s(np.array([float(n_bytes)]))
    if (grid.n_ranks - 1) * gap_s.min() < LEAST_SAVED * one_way_s.max():
        return []
    sizes = [len(cluster) for cluster in grid.clusters]
    label = f"through members, {max(sizes)} messages inside, {len(sizes) - 1} between clusters"
    far_first = np.argsort(-model.latency_s, axis=1, kind="stable").tolist()
    order = tuple(tuple(c for c in row if c != own) for own, row in enumerate(far_first))

    def plan(n_units: int, full_label: str) -> Plan:
        return plan_aggregated(Crossing(grid, order), n_units, full_label)

    return [Candidate.planned("aggregated", label, price_aggregated(model, n_bytes), plan)]
