"""LG (paper 001) for blocks of different sizes and any number of clusters: its future work.

Collectors follow the paper's numbering, or are adapted to the sizes: each message across is given
to the rank of the group with least to send, so that collectors are equally busy for any counts.
Empty blocks are left out, and blocks longer than a limit go directly: collecting saves the cost per
message, but sends every byte once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gridcoll.plan.alltoall.lg import exchanges
from gridcoll.plan.alltoall.messages import Messages, messages_of, table_of
from gridcoll.plan.alltoall.unequal import (
    Counts,
    Places,
    exchange_own_cluster,
    inside_messages,
)
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import Program
from gridcoll.topology.grid import Grid


class Bundle(NamedTuple):
    """One message across: ``collector`` sends ``target`` what ``sources``, in rank order, have."""

    collector: int
    target: int
    sources: tuple[int, ...]


def numbered_bundles(grid: Grid, counts: Counts) -> tuple[Bundle, ...]:
    """Messages between clusters as the paper numbers them, without empty blocks."""
    found = []
    for exchange in exchanges(grid):
        for collector, target, sources in exchange.messages:
            filled = tuple(source for source in sorted(sources) if counts[source, target])
            if filled:
                found.append(Bundle(collector, target, filled))
    return tuple(found)


def adapted_bundles(grid: Grid, counts: Counts, longest: int) -> tuple[Bundle, ...]:
    """As many messages as in LG, with equally busy collectors.

    Blocks of more than ``longest`` bytes go alone.
    """
    busy = [0] * grid.n_ranks
    found: list[Bundle] = []
    for exchange in exchanges(grid):
        for home, there in ((exchange.small, exchange.large), (exchange.large, exchange.small)):
            n_each = max(1, len(home) // len(there))
            heaviest = sorted(there, key=lambda t: -int(counts[list(home), t].sum()))
            for target in heaviest:
                sizes = {s: int(counts[s, target]) for s in home if counts[s, target]}
                alone = [s for s in sizes if sizes[s] > longest]
                for source in alone:
                    busy[source] += sizes.pop(source)
                    found.append(Bundle(source, target, (source,)))
                found += _groups(sizes, n_each, target, busy)
    return tuple(found)


def _groups(sizes: dict[int, int], n_groups: int, target: int, busy: list[int]) -> list[Bundle]:
    """Blocks of ``sizes``, by source, as ``n_groups`` messages about as long; ``busy`` follows."""
    # What a collector has itself is sent once, not twice.
    by_load = sorted(sizes, key=lambda s: (busy[s] - 2 * sizes[s], s))
    collectors = by_load[:n_groups]
    groups = {collector: [collector] for collector in collectors}
    length = {collector: sizes[collector] for collector in collectors}
    for source in sorted(by_load[n_groups:], key=lambda s: (-sizes[s], s)):
        collector = min(collectors, key=lambda c: (length[c], c))
        groups[collector].append(source)
        length[collector] += sizes[source]
        busy[source] += sizes[source]
    for collector in collectors:
        busy[collector] += length[collector]
    return [Bundle(c, target, tuple(sorted(groups[c]))) for c in collectors]


def bundles_program(grid: Grid, counts: Counts, bundles: Sequence[Bundle], rank: int) -> Program:
    """What ``rank`` does: to collectors, across as soon as all is there, and inside its cluster."""
    places, n_ranks = Places(rank, counts), grid.n_ranks
    collect: list[Op] = []
    across: list[Op] = []
    come: list[Op] = []
    held = 0
    for collector, target, sources in bundles:
        alone = sources == (collector,)
        size = int(counts[list(sources), target].sum())
        if rank == collector and alone:
            across.append(Send(target, places.out(target), n_ranks))
        elif rank == collector:
            first = at = held
            held += size
            for source in sources:
                chunk = Chunk("scratch", at, at + int(counts[source, target]))
                own = source == rank
                collect.append(
                    Copy(places.out(target), chunk) if own else Recv(source, chunk, 1 + target)
                )
                at = chunk.stop
            across.append(Send(target, Chunk("scratch", first, held), n_ranks))
        elif rank in sources:
            collect.append(Send(collector, places.out(target), 1 + target))
        elif rank == target:
            first, last = places.into(sources[0]).start, places.into(sources[-1]).stop
            if last - first == size:
                come.append(Recv(collector, Chunk("output", first, last), n_ranks, 1))
                continue
            come.append(Recv(collector, Chunk("scratch", held, held + size), n_ranks, 1))
            for source in sources:
                into = places.into(source)
                come.append(Copy(Chunk("scratch", held, held + into.size), into))
                held += into.size
    inside = exchange_own_cluster(grid.clusters[grid.cluster_of[rank]].ranks, places)
    return (*collect, *across, *come, *inside, places.keep_own())


def most_held(counts: Counts, bundles: Sequence[Bundle]) -> int:
    """Bytes that the busiest rank stores, at most."""
    held = [0] * len(counts)
    for collector, target, sources in bundles:
        size = int(counts[list(sources), target].sum())
        held[target] += size
        held[collector] += size if sources != (collector,) else 0
    return max(held, default=0)


def bundles_messages(grid: Grid, counts: Counts, bundles: Sequence[Bundle]) -> Messages:
    """What `bundles_program` sends, for blocks of one byte."""
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
    return messages_of([table_of(collected), table_of(across), table_of(inside)], [later])
