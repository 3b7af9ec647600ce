"""LG (Local Group, paper 001) between every two clusters.

If a cluster of ``n1`` ranks exchanges with one of ``n2 >= n1``, data crosses in ``2 n2`` messages.
Each rank of the larger cluster gets one message, in which a rank of the smaller cluster sends the
blocks of its whole cluster; and it sends that rank one message with the blocks of about ``n1``
ranks of its own cluster. Section 4.1 of the paper says which rank collects for which. Its prose
leaves out the blocks whose collector would be past the end of the larger cluster (for ``M(9, 1)``
with 3 and 7 ranks, rank 10). Those go one by one to the collectors for the same receiver in the
groups before.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, lru_cache, partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.alltoall.cost import of_grid, priced_s
from gridcoll.plan.alltoall.exchange import (
    adjacent,
    blocks,
    copy_blocks,
    exchange_inside,
    exchange_plan,
    has_both,
    keep_own,
)
from gridcoll.plan.alltoall.messages import (
    Messages,
    Weights,
    by_rank,
    inside_rows,
    messages_of,
    rows_table,
)
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.grid import Grid
from gridcoll.topology.rounds import rounds_of_pairs

Message = tuple[int, int, tuple[int, ...]]
"""Collector, receiver, and the sources of the blocks that the message carries, in rank order."""


class Exchange(Struct, frozen=True, dict=True):
    """LG between two clusters."""

    small: tuple[int, ...]
    large: tuple[int, ...]
    """Ranks of both clusters in the paper's numbering. ``small`` is not longer than ``large``."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks of both clusters."""
        return (*self.small, *self.large)

    def collector(self, source: int, target: int) -> int:
        """Return the rank in the cluster of ``source`` that sends its block for ``target``."""
        n_small = len(self.small)
        if source in self._small_at:
            return self.small[self._large_at[target] % n_small]
        at, to = self._large_at[source], self._small_at[target]
        home = at // n_small * n_small + to
        if home >= len(self.large):
            n_full = len(self.large) // n_small
            home = (n_full - 1 - (at - n_full * n_small) % n_full) * n_small + to
        return self.large[home]

    @cached_property
    def _small_at(self) -> dict[int, int]:
        return {rank: at for at, rank in enumerate(self.small)}

    @cached_property
    def _large_at(self) -> dict[int, int]:
        return {rank: at for at, rank in enumerate(self.large)}

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """All inter-cluster messages, in the order of the paper's steps."""
        n_small = len(self.small)
        all_small = tuple(sorted(self.small))
        found: list[Message] = []
        sources: dict[tuple[int, int], list[int]] = {}
        for source in sorted(self.large):
            for target in self.small:
                sources.setdefault((self.collector(source, target), target), []).append(source)
        for at, rank in enumerate(self.large):
            other = self.small[at % n_small]
            found.append((other, rank, all_small))
            found.append((rank, other, tuple(sources[rank, other])))
        return tuple(found)


def exchanges(grid: Grid) -> list[Exchange]:
    """Return LG between every two clusters, in rounds in which every cluster meets one other.

    In each round, the ranks of a cluster are numbered from a different rank on, so that ranks take
    turns in collecting more than others.
    """
    found = []
    for turn, pairs in enumerate(rounds_of_pairs(len(grid.clusters))):
        for pair in pairs:
            a, b = (grid.clusters[c].ranks for c in pair)
            a, b = (ranks[turn % len(ranks) :] + ranks[: turn % len(ranks)] for ranks in (a, b))
            found.append(Exchange(a, b) if len(a) <= len(b) else Exchange(b, a))
    return found


class _RankLayout(Struct, frozen=True):
    """The messages across that a rank sends and receives, and where they are in its scratch."""

    sends: tuple[tuple[Message, int], ...]
    receives: tuple[tuple[Message, int], ...]
    """Messages, each with its first block of scratch, or -1 if it needs no scratch."""
    scratch_blocks: int


def _lay_out(rank: int, n_ranks: int, messages: list[Message]) -> _RankLayout:
    """Lay out the scratch of ``rank``, which is at most twice as large as its send buffer."""
    used, sends = 0, []
    for message in messages:
        if message[0] == rank:
            own_only = message[2] == (rank,)
            sends.append((message, -1 if own_only else used))
            used += 0 if own_only else len(message[2])
    scattered = [len(m[2]) for m in messages if m[1] == rank and not adjacent(m[2])]
    # If there is not enough room for all received messages at once, they take turns in it.
    recv_blocks = max([0, *scattered, min(sum(scattered), 2 * n_ranks - used)])
    at, receives = 0, []
    for message in messages:
        if message[1] == rank:
            if adjacent(message[2]):
                receives.append((message, -1))
                continue
            at = 0 if at + len(message[2]) > recv_blocks else at
            receives.append((message, used + at))
            at += len(message[2])
    return _RankLayout(tuple(sends), tuple(receives), used + recv_blocks)


def plan_lg(grid: Grid, n_units: int, label: str = "lg") -> Plan:
    """Return the plan of LG between every two clusters, and a direct exchange inside each.

    Blocks for other clusters move first, in the order of the rounds. A collector sends a message as
    soon as all of its blocks have arrived, even if other messages are still in progress. Blocks
    arrive at collectors in place, so that only a collector's own blocks are copied. A received
    message is copied only if its blocks are not adjacent in the output.
    """
    all_exchanges = exchanges(grid)
    layouts = _lay_out_all(grid, all_exchanges)

    def program_of(rank: int) -> Program:
        own_exchanges = [each for each in all_exchanges if rank in each.ranks]
        ops = _send_to_collectors(rank, own_exchanges, n_units)
        ops += _collect(rank, layouts[rank], n_units)
        ops += _receive(layouts[rank], n_units)
        ops += exchange_inside(
            rank, grid.clusters[grid.cluster_of[rank]].ranks, n_units, grid.n_ranks
        )
        return (*ops, keep_own(rank, n_units))

    scratch = tuple(layout.scratch_blocks for layout in layouts)
    return exchange_plan(label, n_units, Programs(grid.n_ranks, program_of), scratch)


def _lay_out_all(grid: Grid, all_exchanges: list[Exchange]) -> list[_RankLayout]:
    messages: list[list[Message]] = [[] for _ in range(grid.n_ranks)]
    for exchange in all_exchanges:
        for message in exchange.messages:
            messages[message[0]].append(message)
            messages[message[1]].append(message)
    return [_lay_out(rank, grid.n_ranks, messages[rank]) for rank in range(grid.n_ranks)]


def _send_to_collectors(rank: int, own_exchanges: list[Exchange], n_units: int) -> list[Op]:
    """Send our blocks for other clusters to their collectors. The tag is the receiver."""
    ops: list[Op] = []
    for exchange in own_exchanges:
        targets = exchange.large if rank in exchange.small else exchange.small
        for target in targets:
            collector = exchange.collector(rank, target)
            if collector != rank:
                ops.append(Send(collector, blocks("input", target, n_units), target))
    return ops


def _collect(rank: int, layout: _RankLayout, n_units: int) -> list[Op]:
    """Assemble the messages for other clusters and send them."""
    ops: list[Op] = []
    for (_, target, sources), first in layout.sends:
        if first < 0:
            ops.append(Send(target, blocks("input", target, n_units), target))
            continue
        for at, source in enumerate(sources, start=first):
            if source == rank:
                ops += copy_blocks("input", "scratch", [(target, at)], n_units)
            else:
                ops.append(Recv(source, blocks("scratch", at, n_units), target))
        ops.append(Send(target, blocks("scratch", first, n_units, len(sources)), target))
    return ops


def _receive(layout: _RankLayout, n_units: int) -> list[Op]:
    """Receive the messages of other clusters and put their blocks into the output."""
    ops: list[Op] = []
    for (collector, target, sources), first in layout.receives:
        count = len(sources)
        if first < 0:
            ops.append(Recv(collector, blocks("output", sources[0], n_units, count), target))
        else:
            ops.append(Recv(collector, blocks("scratch", first, n_units, count), target))
            places = list(enumerate(sources, start=first))
            ops += copy_blocks("scratch", "output", places, n_units)
    return ops


class _Scale(NamedTuple):
    """What the messages of LG from one cluster to another represent in a sample."""

    collected: float
    """How many blocks a block to a collector represents, at its source and at its collector."""
    n_blocks: float
    """Blocks of a message across, as a multiple of those that it carries in the sample."""
    n_out: float
    n_in: float
    n_represented: float


@lru_cache(maxsize=1024)
def _scale(n_source: int, n_target: int, source_weight: float, target_weight: float) -> _Scale:
    """Return the scale for ``n_source`` ranks that collect for ``n_target`` ranks.

    Each rank represents as many ranks as its weight says.
    """
    source_size, target_size = n_source * source_weight, n_target * target_weight
    n_represented = max(source_size, target_size) / max(n_source, n_target)
    # A block that its collector has itself needs no message to the collector.
    n_collected = n_source * n_target - max(n_source, n_target)
    size_collected = source_size * target_size - max(source_size, target_size)
    return _Scale(
        size_collected / max(n_collected, 1) / source_weight if n_collected else 1.0,
        min(source_size, target_size) / min(n_source, n_target),
        n_represented / source_weight,
        n_represented / target_weight,
        n_represented,
    )


def _crossing(grid: Grid, weight_of: FloatArray) -> Iterator[tuple[Message, _Scale]]:
    """Yield the messages of LG between clusters, and what each of them represents."""
    for exchange in exchanges(grid):
        for message in exchange.messages:
            ends = message[:2]
            n_source, n_target = (len(grid.clusters[grid.cluster_of[rank]]) for rank in ends)
            yield message, _scale(n_source, n_target, *(float(weight_of[rank]) for rank in ends))


@lru_cache(maxsize=64)
def lg_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Return the messages of `plan_lg`: to collectors, across, and inside clusters.

    A message across waits for the blocks that its collector collects.
    """
    weight_of = by_rank(grid, weights)
    collected = list[tuple[float, ...]]()
    across = list[tuple[float, ...]]()
    needs = list[tuple[int, int]]()
    for (collector, target, sources), scale in _crossing(grid, weight_of):
        for source in sources:
            if source != collector:
                needs.append((len(across), len(collected)))
                n_alike = scale.collected * float(weight_of[source])
                collected.append((source, collector, 1, scale.collected, scale.collected, n_alike))
        across.append((collector, target, len(sources) * scale.n_blocks, *scale[2:]))
    inside = [inside_rows(cluster.ranks, weight_of) for cluster in grid.clusters]
    later = np.array(needs, int).reshape(-1, 2)
    later[:, 0] += len(collected)
    return messages_of([rows_table(collected), rows_table(across), *inside], [later])


MOST_CLUSTERS = 32
"""Limit of clusters. With more, pricing every pair of them takes longer than the call."""


@algorithm(
    "alltoall",
    "lg",
    "short blocks where messages between clusters cost more than inside",
    "001 section 4, over any number of clusters",
    max_clusters=MOST_CLUSTERS,
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if not has_both(grid):
        return []
    n_crossing = 2 * sum(max(len(a), len(b)) for a, b in combinations(grid.clusters, 2))
    label = f"{n_crossing} messages between clusters, put together by local groups"
    predicted_s = priced_s(model, of_grid(lg_messages), n_bytes)
    return [Candidate.planned("lg", label, predicted_s, partial(plan_lg, grid))]
