"""All-to-all of blocks of any sizes that all ranks know: in parts, or by LG.

``counts[source, target]`` is the matrix of block sizes in bytes. Shares say how much of the data
between two clusters takes which path; every block is cut into parts that match the shares in bytes.
Sends over thin links are paced: each rank spreads its part of a link's load evenly over the time
that the link needs for all of it.

Paper 001 leaves LG for such blocks, over any number of clusters, as future work. Collectors follow
the paper's numbering, or are adapted to the sizes: the rank of the group with the least to send
collects each message across, so that collectors are equally busy for any counts. Empty blocks are
not sent, and blocks longer than a limit go directly: collecting saves the cost per message, but
sends every byte once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gridcoll.constants import LINK_PACE
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.alltoall.lg import exchanges
from gridcoll.plan.alltoall.messages import Messages, messages_of, rows_table
from gridcoll.plan.alltoall.relayed import LONGEST_PART, PARTS_BETWEEN, SHORTEST_PART, tags_of
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.pacing import thin_links
from gridcoll.plan.plan import Plan, Program, Programs, scratch_of
from gridcoll.plan.statements import Runs, Statement, moved, state
from gridcoll.topology.grid import Grid

Counts = npt.NDArray[np.int64]
"""Bytes of each block by source and target, (P, P)."""

MOST_PARTS = 64
"""Limit of parts of a block of any size."""


def counts_of(plan: Plan) -> Counts:
    """Return the matrix of block sizes of an ``alltoallv`` plan."""
    return np.array(plan.blocks, np.int64).reshape(plan.n_ranks, plan.n_ranks)


def _after(plan: Plan, rank: int) -> dict[str, Runs]:
    counts = counts_of(plan)
    starts = counts[:, :rank].sum(axis=1)
    came = [(int(counts[s, rank]), moved(s, int(starts[s]))) for s in range(plan.n_ranks)]
    return {"output": [run for run in came if run[0]]}


state(
    Statement(
        "alltoallv",
        before=lambda plan, rank: {"input": [(int(counts_of(plan)[rank].sum()), moved(rank))]},
        after=_after,
    )
)


class Places:
    """Where a rank's blocks are: consecutive by rank in input and output."""

    def __init__(self, rank: int, counts: Counts) -> None:
        self.rank = rank
        self._recv_starts = list(accumulate(counts[:, rank].tolist(), initial=0))
        self._send_starts = list(accumulate(counts[rank].tolist(), initial=0))

    def out(self, target: int) -> Chunk:
        return Chunk("input", self._send_starts[target], self._send_starts[target + 1])

    def into(self, source: int) -> Chunk:
        return Chunk("output", self._recv_starts[source], self._recv_starts[source + 1])

    def keep_own(self) -> Copy:
        return Copy(self.out(self.rank), self.into(self.rank))


def cut(chunk: Chunk, start: int, stop: int) -> Chunk:
    """Return units ``start`` to ``stop`` of ``chunk``."""
    return Chunk(chunk.buffer, chunk.start + start, chunk.start + stop)


def unequal_plan(label: str, counts: Counts, programs: Programs) -> Plan:
    """Return an ``alltoallv`` plan, whose blocks are ``counts``, row by row."""
    scratch = tuple(scratch_of(program) for program in programs)
    blocks = tuple(counts.ravel().tolist())
    return Plan(
        "alltoallv", label, int(counts.max()), -1, programs, scratch if any(scratch) else (), blocks
    )


class Part(NamedTuple):
    """Bytes ``start`` to ``stop`` of the block from ``source`` to ``target``.

    ``relay`` is -1 if the part is sent directly.
    """

    source: int
    target: int
    start: int
    stop: int
    number: int
    relay: int


def direct_shares(n_clusters: int) -> FloatArray:
    """Return shares as in `Routes`, with everything on the direct path."""
    shares = np.zeros((n_clusters,) * 3)
    every = np.arange(n_clusters)
    shares[:, every, every] = 1.0
    return shares


def cut_by_shares(grid: Grid, counts: Counts, shares: FloatArray) -> tuple[Part, ...]:
    """Return all parts between clusters in the order in which they are sent, relayed ones first.

    ``shares`` are as in `Routes`.
    """
    found: list[tuple[bool, int, int, Part]] = []
    for a, home in enumerate(grid.clusters):
        for b, other in enumerate(grid.clusters):
            between = int(counts[np.ix_(home.ranks, other.ranks)].sum()) if a != b else 0
            if not between:
                continue
            wanted = between // PARTS_BETWEEN if shares[a, b, b] < 1.0 else LONGEST_PART
            piece = min(LONGEST_PART, max(SHORTEST_PART, wanted))
            due = np.zeros(len(grid.clusters))
            stored = [0] * grid.n_ranks
            # Consecutive steps of the inner loop have different sources and different targets.
            for step in range(len(other)):
                for at, source in enumerate(home.ranks):
                    target = other.ranks[(at + step) % len(other)]
                    for number, (start, stop) in enumerate(_pieces(counts, source, target, piece)):
                        due += shares[a, b] * (stop - start)
                        via = int(np.argmax(np.where(shares[a, b] > 0, due, -np.inf)))
                        due[via] -= stop - start
                        relay = -1
                        if via != b:
                            ranks = grid.clusters[via].ranks
                            relay = min(
                                ranks, key=lambda r: (stored[r], (r - source) % grid.n_ranks)
                            )
                            stored[relay] += stop - start
                        part = Part(source, target, start, stop, number, relay)
                        found.append((relay < 0, step, number, part))
    return tuple(part for *_, part in sorted(found, key=lambda each: each[:3]))


def _pieces(counts: Counts, source: int, target: int, piece: int) -> list[tuple[int, int]]:
    n_bytes = int(counts[source, target])
    n = min(-(-n_bytes // piece), MOST_PARTS)
    bounds = [n_bytes * k // n for k in range(n + 1)] if n else [0]
    return list(pairwise(bounds))


def stored_bytes(parts: Sequence[Part], n_ranks: int) -> list[int]:
    """Return the bytes that each rank stores for others."""
    stored = [0] * n_ranks
    for part in parts:
        if part.relay >= 0:
            stored[part.relay] += part.stop - part.start
    return stored


def parts_program(model: GridModel, counts: Counts, parts: Sequence[Part], rank: int) -> Program:
    """Return the program of ``rank``: parts between clusters, and blocks inside its own."""
    grid, places = model.grid, Places(rank, counts)
    receives: list[Op] = []
    sends: list[Op] = []
    forward: list[Op] = []
    next_unit = 0
    for part in parts:
        if rank not in (part.source, part.target, part.relay):
            continue
        direct, first_hop, second_hop = tags_of(
            part.number, MOST_PARTS, part.source, part.target, grid.n_ranks
        )
        relayed = part.relay >= 0
        if rank == part.source:
            chunk = cut(places.out(part.target), part.start, part.stop)
            sends.append(
                Send(part.relay, chunk, first_hop) if relayed else Send(part.target, chunk, direct)
            )
        elif rank == part.target:
            chunk = cut(places.into(part.source), part.start, part.stop)
            receives.append(
                Recv(part.relay, chunk, second_hop, 1)
                if relayed
                else Recv(part.source, chunk, direct)
            )
        else:
            chunk = Chunk("scratch", next_unit, next_unit + part.stop - part.start)
            next_unit = chunk.stop
            receives.append(Recv(part.source, chunk, first_hop))
            forward.append(Send(part.target, chunk, second_hop))
    inside = exchange_own_cluster(grid.clusters[grid.cluster_of[rank]].ranks, places)
    ops = (*receives, *forward, *sends, *inside, places.keep_own())
    return _paced(rank, model, parts, ops)


def exchange_own_cluster(ranks: Sequence[int], places: Places) -> list[Op]:
    """Exchange blocks among the ``ranks`` of a cluster with tag 0. Empty ones are not sent."""
    at, n = list(ranks).index(places.rank), len(ranks)
    ops: list[Op] = []
    for step in range(1, n):
        source, target = ranks[(at - step) % n], ranks[(at + step) % n]
        if places.into(source).size:
            ops.append(Recv(source, places.into(source), 0))
        if places.out(target).size:
            ops.append(Send(target, places.out(target), 0))
    return ops


def _hops(parts: Sequence[Part]) -> list[tuple[int, int, int]]:
    """Return sender, receiver and bytes of each message of ``parts``."""
    hops = []
    for part in parts:
        ends = (part.source, part.target)
        if part.relay >= 0:
            hops += [(part.source, part.relay, part.stop - part.start)]
            ends = (part.relay, part.target)
        hops.append((*ends, part.stop - part.start))
    return hops


def link_loads(grid: Grid, parts: Sequence[Part]) -> FloatArray:
    """Return the bytes of ``parts`` over each link between clusters, (C, C)."""
    loads = np.zeros((len(grid.clusters),) * 2)
    for sender, receiver, n_bytes in _hops(parts):
        loads[grid.cluster_of[sender], grid.cluster_of[receiver]] += n_bytes
    return loads


def _paced(rank: int, model: GridModel, parts: Sequence[Part], ops: Program) -> Program:
    """Return ``ops`` with sends over each thin link spread over its time for all parts."""
    grid, home = model.grid, model.grid.cluster_of[rank]
    thin = thin_links(model)[home]
    if not thin.any():
        return ops
    busy_s = LINK_PACE * link_loads(grid, parts)[home] / model.link_bytes_per_s[home]
    to_send = np.zeros(model.n_clusters)
    for op in ops:
        if isinstance(op, Send):
            to_send[grid.cluster_of[op.peer]] += op.chunk.size
    sent = np.zeros(model.n_clusters)
    found: list[Op] = []
    for op in ops:
        other = grid.cluster_of[op.peer] if isinstance(op, Send) else home
        if isinstance(op, Send) and other != home and thin[other]:
            due_s = sent[other] / to_send[other] * busy_s[other] - model.latency_s[home, other]
            sent[other] += op.chunk.size
            due_us = max(int(due_s * 1e6), 0)
            found.append(Send(op.peer, op.chunk, op.tag, op.after, due_us))
        else:
            found.append(op)
    return tuple(found)


def parts_messages(grid: Grid, counts: Counts, parts: Sequence[Part]) -> Messages:
    """Return the messages of `parts_program`, for blocks of one byte.

    All parts of a block over the same path are one message.
    """
    sums: dict[tuple[int, int, int], int] = {}
    for part in parts:
        key = part.source, part.target, part.relay
        sums[key] = sums.get(key, 0) + part.stop - part.start
    rows: list[tuple[float, ...]] = []
    needs: list[tuple[int, int]] = []
    for (source, target, relay), n_bytes in sums.items():
        if relay < 0:
            rows.append((source, target, n_bytes, 1, 1, 1))
        else:
            needs.append((len(rows) + 1, len(rows)))
            rows += [(source, relay, n_bytes, 1, 1, 1), (relay, target, n_bytes, 1, 1, 1)]
    rows += inside_messages(grid, counts)
    return messages_of([rows_table(rows)], [np.array(needs, int).reshape(-1, 2)])


def inside_messages(grid: Grid, counts: Counts) -> list[tuple[float, ...]]:
    """Return the blocks inside clusters as rows of `Messages`."""
    return [
        (a, b, float(counts[a, b]), 1, 1, 1)
        for cluster in grid.clusters
        for a in cluster.ranks
        for b in cluster.ranks
        if a != b and counts[a, b]
    ]


class Bundle(NamedTuple):
    """A message across: ``collector`` sends ``target`` the blocks of ``sources``, in rank order."""

    collector: int
    target: int
    sources: tuple[int, ...]


def numbered_bundles(grid: Grid, counts: Counts) -> tuple[Bundle, ...]:
    """Return the messages between clusters in the paper's numbering, without empty blocks."""
    found = []
    for exchange in exchanges(grid):
        for collector, target, sources in exchange.messages:
            filled = tuple(source for source in sorted(sources) if counts[source, target])
            if filled:
                found.append(Bundle(collector, target, filled))
    return tuple(found)


def adapted_bundles(grid: Grid, counts: Counts, longest: int) -> tuple[Bundle, ...]:
    """Return as many messages as LG has, but with equally busy collectors.

    A block of more than ``longest`` bytes is a message of its own.
    """
    load = [0] * grid.n_ranks
    found: list[Bundle] = []
    for exchange in exchanges(grid):
        for home, other in ((exchange.small, exchange.large), (exchange.large, exchange.small)):
            n_each = max(1, len(home) // len(other))
            heaviest = sorted(other, key=lambda t: -int(counts[list(home), t].sum()))
            for target in heaviest:
                sizes = {s: int(counts[s, target]) for s in home if counts[s, target]}
                direct_sources = [s for s in sizes if sizes[s] > longest]
                for source in direct_sources:
                    load[source] += sizes.pop(source)
                    found.append(Bundle(source, target, (source,)))
                found += _groups(sizes, n_each, target, load)
    return tuple(found)


def _groups(sizes: dict[int, int], n_groups: int, target: int, load: list[int]) -> list[Bundle]:
    """Return the blocks of ``sizes``, by source, as ``n_groups`` messages of similar length.

    Their bytes are added to ``load``, the bytes that each rank sends.
    """
    # A collector's own block is sent once, not twice.
    by_load = sorted(sizes, key=lambda s: (load[s] - 2 * sizes[s], s))
    collectors = by_load[:n_groups]
    groups = {collector: [collector] for collector in collectors}
    length = {collector: sizes[collector] for collector in collectors}
    for source in sorted(by_load[n_groups:], key=lambda s: (-sizes[s], s)):
        collector = min(collectors, key=lambda c: (length[c], c))
        groups[collector].append(source)
        length[collector] += sizes[source]
        load[source] += sizes[source]
    for collector in collectors:
        load[collector] += length[collector]
    return [Bundle(c, target, tuple(sorted(groups[c]))) for c in collectors]


def bundles_program(grid: Grid, counts: Counts, bundles: Sequence[Bundle], rank: int) -> Program:
    """Return the program of ``rank``: to collectors, across, and inside its cluster.

    A message across leaves as soon as all of its blocks have arrived.
    """
    places, n_ranks = Places(rank, counts), grid.n_ranks
    collect: list[Op] = []
    across: list[Op] = []
    receives: list[Op] = []
    next_unit = 0
    for collector, target, sources in bundles:
        own_only = sources == (collector,)
        size = int(counts[list(sources), target].sum())
        if rank == collector and own_only:
            across.append(Send(target, places.out(target), n_ranks))
        elif rank == collector:
            first = at = next_unit
            next_unit += size
            for source in sources:
                chunk = Chunk("scratch", at, at + int(counts[source, target]))
                own = source == rank
                collect.append(
                    Copy(places.out(target), chunk) if own else Recv(source, chunk, 1 + target)
                )
                at = chunk.stop
            across.append(Send(target, Chunk("scratch", first, next_unit), n_ranks))
        elif rank in sources:
            collect.append(Send(collector, places.out(target), 1 + target))
        elif rank == target:
            first, last = places.into(sources[0]).start, places.into(sources[-1]).stop
            if last - first == size:
                receives.append(Recv(collector, Chunk("output", first, last), n_ranks, 1))
                continue
            receives.append(
                Recv(collector, Chunk("scratch", next_unit, next_unit + size), n_ranks, 1)
            )
            for source in sources:
                into = places.into(source)
                receives.append(Copy(Chunk("scratch", next_unit, next_unit + into.size), into))
                next_unit += into.size
    inside = exchange_own_cluster(grid.clusters[grid.cluster_of[rank]].ranks, places)
    return (*collect, *across, *receives, *inside, places.keep_own())


def most_stored(counts: Counts, bundles: Sequence[Bundle]) -> int:
    """Return the most bytes that any rank stores."""
    stored = [0] * len(counts)
    for collector, target, sources in bundles:
        size = int(counts[list(sources), target].sum())
        stored[target] += size
        stored[collector] += size if sources != (collector,) else 0
    return max(stored, default=0)


def bundles_messages(grid: Grid, counts: Counts, bundles: Sequence[Bundle]) -> Messages:
    """Return the messages of `bundles_program`, for blocks of one byte."""
    collected: list[tuple[float, ...]] = []
    across: list[tuple[float, ...]] = []
    needs: list[tuple[int, int]] = []
    for collector, target, sources in bundles:
        for source in sources:
            if source != collector:
                needs.append((len(across), len(collected)))
                collected.append((source, collector, float(counts[source, target]), 1, 1, 1))
        size = float(counts[list(sources), target].sum())
        across.append((collector, target, size, 1, 1, 1))
    later = np.array(needs, int).reshape(-1, 2)
    later[:, 0] += len(collected)
    inside = inside_messages(grid, counts)
    return messages_of([rows_table(collected), rows_table(across), rows_table(inside)], [later])
