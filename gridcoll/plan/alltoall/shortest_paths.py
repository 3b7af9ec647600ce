"""Short blocks over the shortest paths between clusters, through any number of other clusters.

All blocks from one cluster to another travel together, as one *parcel* or a few, each with the
blocks for a part of the target's ranks. The members of a cluster take turns in sending parcels off,
in forwarding those of other clusters, and in receiving those for their own. At first, members
exchange the blocks that each of them is to send off (*collect*), and at the end the blocks that
each of them has received (*deliver*). So a rank has two messages per member, and a few parcels.

Where latencies are unlike, a path through several clusters may be much shorter than the direct one.
Blocks pass interfaces at each cluster on the path, so this algorithm suits short ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import chain, pairwise, permutations
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from gridcoll.constants import DETOUR_GAIN
from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.plan.alltoall.aggregated import MOST_BLOCK_BYTES, MOST_BYTES, inside_s
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.exchange import (
    BlockWriter,
    blocks,
    copy_blocks,
    exchange_plan,
    keep_own,
)
from gridcoll.plan.alltoall.lanes import Paths, shortest_paths
from gridcoll.plan.alltoall.messages import Messages, messages_of, rows_of
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import ByRank, Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.grid import Grid

SHORTEST_PARCEL = 4 << 10
"""Least bytes of a parcel if there are several between two clusters: a message costs as much as
some kilobytes."""

_COLLECT, _DELIVER, _FIRST_PARCEL = range(3)  # tags


class Parcel(NamedTuple):
    """The blocks from all ranks of cluster ``source`` for ``targets``, ranks of another cluster.

    They go from rank to rank of ``way``. By target, then by source, they are in the order of ranks.
    """

    tag: int
    source: int
    targets: tuple[int, ...]
    way: tuple[int, ...]


class Ways(Struct, frozen=True, dict=True):
    """All parcels, and the ranks that carry them."""

    grid: Grid
    paths: Paths
    most_parts: int
    """Most parcels from a cluster to another."""

    @cached_property
    def parcels(self) -> list[Parcel]:
        return list(self._made())

    def _made(self) -> Iterator[Parcel]:
        """Yield all parcels. Members take turns, apart for the roles of first, last and others."""
        clusters = self.grid.clusters
        members = [cluster.in_turns for cluster in clusters]
        sending, passing, receiving = ([0] * len(clusters) for _ in range(3))  # turns so far

        def next_of(cluster: int, turns: list[int]) -> int:
            ranks, turn = members[cluster], turns[cluster]
            turns[cluster] += 1
            return ranks[turn % len(ranks)]

        tag = _FIRST_PARCEL
        for source, target in permutations(range(len(clusters)), 2):
            between, ranks = self.paths[source][target][1:-1], clusters[target].ranks
            n_parts = min(self.most_parts, len(ranks))
            for part in range(n_parts):
                targets = ranks[len(ranks) * part // n_parts : len(ranks) * (part + 1) // n_parts]
                first, last = next_of(source, sending), next_of(target, receiving)
                way = (first, *(next_of(cluster, passing) for cluster in between), last)
                yield Parcel(tag, source, targets, way)
                tag += 1

    @cached_property
    def by_rank(self) -> list[tuple[list[Parcel], list[Parcel], list[Parcel]]]:
        """For each rank, the parcels that it sends off, that it forwards, and that end there."""
        found: list[tuple[list[Parcel], list[Parcel], list[Parcel]]] = [
            ([], [], []) for _ in range(self.grid.n_ranks)
        ]
        for parcel in self.parcels:
            first, *others, last = parcel.way
            found[first][0].append(parcel)
            for rank in others:
                found[rank][1].append(parcel)
            found[last][2].append(parcel)
        for leaving, _, _ in found:  # the longest way first
            leaving.sort(key=lambda parcel: -len(parcel.way))
        return found


def plan_shortest_paths(ways: Ways, n_units: int, label: str = "shortest-paths") -> Plan:
    """Return a plan that collects inside clusters, takes parcels along their ways, and delivers."""
    n_ranks = ways.grid.n_ranks
    writers = ByRank(n_ranks, lambda rank: _Writer(ways, rank, n_units))
    programs = Programs(n_ranks, lambda rank: writers[rank].program)
    scratch = ByRank(n_ranks, lambda rank: writers[rank].allocate.n_blocks)
    return exchange_plan(label, n_units, programs, scratch)


class _Writer(BlockWriter):
    """The program of one rank, and its scratch."""

    def __init__(self, ways: Ways, rank: int, n_units: int) -> None:
        super().__init__(n_units)
        self._ways, self._rank = ways, rank
        self._clusters = [cluster.ranks for cluster in ways.grid.clusters]
        self._members = self._clusters[ways.grid.cluster_of[rank]]
        at = self._members.index(rank)
        self._peers = (*self._members[at + 1 :], *self._members[:at])
        self._leaving, self._relayed, self._ending = ways.by_rank[rank]
        self.program: Program = (
            *self._collect(), *self._send_off(), *self._forward(), *self._deliver(),
            keep_own(rank, n_units),
        )  # fmt: skip

    def _collect(self) -> list[Op]:
        """Exchange with every member its block and the blocks that it will send off.

        The blocks of a member begin at ``self._received_at`` of scratch, with the one for us.
        """
        ops: list[Op] = []
        self._received_at = {}
        n = 1 + sum(len(parcel.targets) for parcel in self._leaving)
        for peer in self._peers:
            first = self._received_at[peer] = self.allocate(n)
            ops.append(Recv(peer, blocks("scratch", first, self.n_units, n), _COLLECT))
            ops += copy_blocks("scratch", "output", [(first, peer)], self.n_units)
        for peer in self._peers:
            leaving, _, _ = self._ways.by_rank[peer]
            where = [peer, *(target for parcel in leaving for target in parcel.targets)]
            ops += self.send(peer, "input", where, _COLLECT)
        return ops

    def _send_off(self) -> list[Op]:
        ops: list[Op] = []
        n, before = len(self._members), 1
        for parcel in self._leaving:
            if n == 1:
                ops += self.send(parcel.way[1], "input", parcel.targets, parcel.tag)
                continue
            first = self.allocate(n * len(parcel.targets))
            for k, member in enumerate(self._members):
                ours = member == self._rank
                pairs = [
                    (
                        target if ours else self._received_at[member] + before + at,
                        first + at * n + k,
                    )
                    for at, target in enumerate(parcel.targets)
                ]
                ops += copy_blocks("input" if ours else "scratch", "scratch", pairs, self.n_units)
            before += len(parcel.targets)
            chunk = blocks("scratch", first, self.n_units, n * len(parcel.targets))
            ops.append(Send(parcel.way[1], chunk, parcel.tag))
        return ops

    def _forward(self) -> list[Op]:
        ops: list[Op] = []
        for parcel in self._relayed:
            at = parcel.way.index(self._rank)
            n = len(self._clusters[parcel.source]) * len(parcel.targets)
            chunk = blocks("scratch", self.allocate(n), self.n_units, n)
            ops.append(Recv(parcel.way[at - 1], chunk, parcel.tag, parcel.tag))
            ops.append(Send(parcel.way[at + 1], chunk, parcel.tag))
        return ops

    def _deliver(self) -> list[Op]:
        """Receive parcels that end here, and exchange their blocks with the other members."""
        ops: list[Op] = []
        where: dict[int, list[int]] = {peer: [] for peer in self._peers}
        for parcel in self._ending:
            sources = self._clusters[parcel.source]
            if parcel.targets == (self._rank,):
                ops += self.receive(parcel.way[-2], sources, parcel.tag, parcel.tag)
                continue
            n = len(sources)
            first = self.allocate(n * len(parcel.targets))
            chunk = blocks("scratch", first, self.n_units, n * len(parcel.targets))
            ops.append(Recv(parcel.way[-2], chunk, parcel.tag, parcel.tag))
            for at, target in enumerate(parcel.targets):
                places = range(first + at * n, first + (at + 1) * n)
                if target == self._rank:
                    pairs = zip(places, sources, strict=True)
                    ops += copy_blocks("scratch", "output", pairs, self.n_units)
                else:
                    where[target] += places
        for peer in self._peers:
            _, _, ending = self._ways.by_rank[peer]
            of_peer = [
                rank
                for parcel in ending
                if self._rank in parcel.targets
                for rank in self._clusters[parcel.source]
            ]
            if of_peer:
                ops += self.receive(peer, of_peer, _DELIVER)
            if where[peer]:
                ops += self.send(peer, "scratch", where[peer], _DELIVER)
        return ops


def parcel_messages(ways: Ways) -> Messages:
    """Return the messages that carry the parcels, those of a parcel one after the other."""
    parcels = sorted(ways.parcels, key=lambda parcel: -len(parcel.way))
    ranks = np.array(list(chain.from_iterable(parcel.way for parcel in parcels)))
    n_ranks = np.array([len(parcel.way) for parcel in parcels])
    ends = np.cumsum(n_ranks)
    starts_hop, ends_hop = np.ones((2, len(ranks)), dtype=bool)
    starts_hop[ends - 1] = ends_hop[ends - n_ranks] = False
    sizes = ways.grid.ranks_per_cluster
    n_blocks = np.array([sizes[parcel.source] * len(parcel.targets) for parcel in parcels])
    rows = rows_of(ranks[starts_hop], ranks[ends_hop], np.repeat(n_blocks, n_ranks - 1))
    is_later = np.ones(len(rows), dtype=bool)
    is_later[np.cumsum(n_ranks - 1) - (n_ranks - 1)] = False
    later = np.flatnonzero(is_later)
    return messages_of([rows], [np.stack([later, later - 1], axis=1)])


def price_shortest_paths(model: GridModel, ways: Ways, n_bytes: int) -> float:
    """Return the seconds for collecting, the parcels' ways, and delivering."""
    grid = model.grid
    sizes = np.array(grid.ranks_per_cluster)
    on_host = np.array([max(cluster.node_sizes) for cluster in grid.clusters])
    carried = np.ceil((grid.n_ranks - sizes) / sizes)
    _, collected_s = inside_s(model, sizes, on_host, (1 + carried) * n_bytes)
    _, delivered_s = inside_s(model, sizes, on_host, carried * n_bytes)
    messages = parcel_messages(ways)
    ready_s = np.where(
        messages.stage == 0, collected_s[list(grid.cluster_of)][messages.source], 0.0
    )
    crossed_s = price_messages_s(model, messages, n_bytes, due_s=ready_s)
    return crossed_s + float(delivered_s.max())


@algorithm(
    "alltoall",
    "shortest-paths",
    "short blocks where paths through several clusters are much shorter than direct ones",
    "gridcoll; shortest paths (Floyd and Warshall 1962)",
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if model.n_clusters < 3 or n_bytes > min(MOST_BLOCK_BYTES, MOST_BYTES // grid.n_ranks):
        return []
    _, one_way_s = model.gap_and_one_way_s(np.array([float(n_bytes)]))
    paths = shortest_paths(ModelKey(model))
    between_s: list[list[float]] = one_way_s[..., 0].tolist()
    ends = list(permutations(range(model.n_clusters), 2))
    longest_s = max(
        sum(between_s[a][b] for a, b in pairwise(paths[source][target])) for source, target in ends
    )
    if max(between_s[a][b] for a, b in ends) < DETOUR_GAIN * longest_s:
        return []
    ways = Ways(grid, paths, most_parts(grid, n_bytes))
    n_longest = max(len(path) for row in paths for path in row) - 1
    label = f"over up to {n_longest} links"

    def plan(n_units: int, full_label: str) -> Plan:
        return plan_shortest_paths(ways, n_units, full_label)

    predicted_s = price_shortest_paths(model, ways, n_bytes)
    return [Candidate.planned("shortest-paths", label, predicted_s, plan)]


def most_parts(grid: Grid, n_bytes: int) -> int:
    """Return the most parcels between two clusters: as many as keep all members busy."""
    sizes = grid.ranks_per_cluster
    largest = max(sizes)
    busy = -(-largest // (len(sizes) - 1))
    return max(1, min(busy, largest * largest * n_bytes // SHORTEST_PARCEL))
