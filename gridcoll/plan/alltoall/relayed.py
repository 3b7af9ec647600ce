"""A direct exchange with detours around thin links: parts of blocks go through a third cluster.

The share of each path is the concurrent-flow optimum (`model.routing`). Every block is cut into a
few parts, so that the parts of all blocks between two clusters fit the shares. A relayed part is
stored and forwarded by one rank of the third cluster, by another rank for each part in turn. Parts
with the longest path leave first, and sends over thin links are paced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gridcoll.constants import PACE
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import FloatArray
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.exchange import exchange_plan, keep_own
from gridcoll.plan.alltoall.messages import Messages, messages_of, table_of
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.pacing import paced_by_links
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Algorithm, Candidate, register
from gridcoll.topology.grid import Grid

MOST_RANKS = 64
"""Most ranks: every rank looks at the parts of all blocks."""

LEAST_GAIN = 1.1
"""Relays are offered where the busiest link or interface is busy so many times as long without."""

PARTS_BETWEEN = 16
"""All blocks between two clusters are at least so many parts, to meet the shares within a few %."""

SHORTEST_PART = 4 << 10
"""Blocks are not cut into shorter parts: a message costs as much as some kilobytes."""

LONGEST_PART = 1 << 16
"""A relay forwards a part when it has all of it."""


MOST_PARTS = 32
"""Of a block: what is relayed is a part behind, which is next to nothing of all blocks then."""

MOST_KEPT = 2
"""A relay has no more scratch than so many times its own send buffer."""


class Part(NamedTuple):
    """Part ``number`` of the block from ``source`` to ``target``; ``relay`` is -1 where direct."""

    source: int
    target: int
    number: int
    relay: int


def n_parts_of(grid: Grid, n_bytes: int) -> int:
    """Into how many parts a block of ``n_bytes`` is cut."""
    fewest = min(len(a) * len(b) for a in grid.clusters for b in grid.clusters if a is not b)
    wanted = max(-(-PARTS_BETWEEN // fewest), -(-n_bytes // LONGEST_PART))
    return max(1, min(wanted, n_bytes // SHORTEST_PART, MOST_PARTS))


@lru_cache(maxsize=32)
def cut_and_route(
    clusters: tuple[tuple[int, ...], ...], shares: tuple[tuple[tuple[float, ...], ...], ...], n: int
) -> tuple[Part, ...]:
    """All parts between clusters, ``n`` of each block, in the order in which they are sent.

    Parameters
    ----------
    clusters : tuple of tuple of int
        The ranks of each.
    shares : tuple
        As those of `Routes`.
    n : int
    """
    found: list[tuple[int, int, Part]] = []
    for a, sources in enumerate(clusters):
        for b, targets in enumerate(clusters):
            if a == b:
                continue
            turns = _turns(shares[a][b], len(sources) * len(targets) * n)
            used = [a + b] * len(clusters)
            # Neighbours in turns are of different sources, and of each source other targets.
            for step in range(len(targets)):
                for at, source in enumerate(sources):
                    target = targets[(at + step) % len(targets)]
                    for index in range(n):
                        via = next(turns)
                        relay = -1
                        if via != b:
                            relay = clusters[via][used[via] % len(clusters[via])]
                            used[via] += 1
                        part = Part(source, target, index, relay)
                        found.append((relay < 0, step * n + index, part))
    return tuple(part for *_, part in sorted(found, key=lambda each: each[:2]))


def _turns(shares: tuple[float, ...], n: int) -> Iterator[int]:
    """``n`` choices that keep to ``shares`` at every time as nearly as can be."""
    used = [via for via, share in enumerate(shares) if share > 0]
    due = [0.0] * len(used)
    wanted = [shares[via] for via in used]
    for _ in range(n):
        due = [so_far + more for so_far, more in zip(due, wanted, strict=True)]
        choice = due.index(max(due))
        due[choice] -= 1.0
        yield used[choice]


def plan_relayed(
    grid: Grid,
    shares: FloatArray,
    n_units: int,
    n_parts: int,
    label: str = "relayed",
    max_kept: int = MOST_KEPT,
) -> Plan:
    """Every part to its receiver, some by way of a third cluster.

    A relay takes in no more parts than it has room for until it has passed others on. Those wait
    for nothing but their receivers, who take them in at once: nobody waits for ever.

    Parameters
    ----------
    grid : Grid
        Of three clusters or more.
    shares : (C, C, C) array
        As those of `Routes`.
    n_units : int
        Size of a block.
    n_parts : int
        Of each block between clusters.
    label : str
    max_kept : int
        How many send buffers of room a relay has for parts on their way.
    """
    clusters = tuple(cluster.ranks for cluster in grid.clusters)
    parts = cut_and_route(clusters, _as_tuples(shares), n_parts)
    bounds = [n_units * k // n_parts for k in range(n_parts + 1)]
    kept, room = [0] * grid.n_ranks, max_kept * grid.n_ranks * n_units
    for part in parts:
        if part.relay >= 0:
            kept[part.relay] += bounds[part.number + 1] - bounds[part.number]
    kept = [min(each, room) for each in kept]

    def program_of(rank: int) -> Program:
        come: list[Op] = []
        leave: list[Op] = []
        forward: deque[Send] = deque()
        held = 0
        for part in parts:
            start, stop = bounds[part.number], bounds[part.number + 1]
            if start == stop or (rank not in part[:2] and rank != part.relay):
                continue
            # Tags tell direct parts, those on their first hop by target, on their second by source.
            direct, first_hop, second_hop = (
                part.number + n_parts * zone
                for zone in (0, 1 + part.target, 1 + grid.n_ranks + part.source)
            )
            if rank == part.source:
                first = part.target * n_units
                chunk = Chunk("input", first + start, first + stop)
                if part.relay < 0:
                    leave.append(Send(part.target, chunk, direct))
                else:
                    leave.append(Send(part.relay, chunk, first_hop))
            elif rank == part.target:
                first = part.source * n_units
                chunk = Chunk("output", first + start, first + stop)
                if part.relay < 0:
                    come.append(Recv(part.source, chunk, direct))
                else:
                    come.append(Recv(part.relay, chunk, second_hop, 1))
            else:
                if held + stop - start > room:  # once more from the start, where parts have left
                    while forward and forward[0].chunk.start >= held:
                        come.append(forward.popleft())
                    held = 0
                chunk = Chunk("scratch", held, held + stop - start)
                while forward and overlap(forward[0].chunk, chunk):
                    come.append(forward.popleft())
                held = chunk.stop
                come.append(Recv(part.source, chunk, first_hop))
                forward.append(Send(part.target, chunk, second_hop))
        inside = clusters[grid.cluster_of[rank]]
        at, n = inside.index(rank), len(inside)
        for step in range(1, n):
            source, target = inside[(at - step) % n], inside[(at + step) % n]
            block = Chunk("output", source * n_units, (source + 1) * n_units)
            come.append(Recv(source, block, 0))
            leave.append(Send(target, Chunk("input", target * n_units, (target + 1) * n_units), 0))
        return (*come, *forward, *leave, keep_own(rank, n_units))

    plan = exchange_plan(label, n_units, Programs(grid.n_ranks, program_of))
    return Plan(
        plan.collective, label, n_units, -1, plan.programs, tuple(kept) if any(kept) else ()
    )


def with_room(plan: Plan, model: GridModel) -> Plan:
    """``plan``, whose ranks spread what is their own over the time that all that they send takes.

    What a rank passes on would else queue behind all of its own, which is there from the start.
    """
    grid = model.grid
    rates = model.flow_bytes_per_s.diagonal() / PACE

    def program_of(rank: int) -> Program:
        program = plan.programs[rank]
        sizes = [op.chunk.size for op in program if isinstance(op, Send)]
        own = sum(
            op.chunk.size for op in program if isinstance(op, Send) and op.chunk.buffer == "input"
        )
        unit_s = sum(sizes) / max(own, 1) / float(rates[grid.cluster_of[rank]])
        ops: list[Op] = []
        sent = 0
        for op in program:
            if isinstance(op, Send) and op.chunk.buffer == "input":
                ops.append(replace(op, due_us=int(sent * unit_s * 1e6)))
                sent += op.chunk.size
            else:
                ops.append(op)
        return tuple(ops)

    return replace(plan, programs=Programs(plan.n_ranks, program_of))


def overlap(one: Chunk, other: Chunk) -> bool:
    """Whether two chunks of one buffer have units in common."""
    return max(one.start, other.start) < min(one.stop, other.stop)


def _as_tuples(shares: FloatArray) -> tuple[tuple[tuple[float, ...], ...], ...]:
    return tuple(tuple(map(tuple, row)) for row in shares.tolist())


def relayed_messages(grid: Grid, shares: FloatArray, n_parts: int) -> Messages:
    """Of `plan_relayed`; parts of a block that go the same way are one message."""
    clusters = tuple(cluster.ranks for cluster in grid.clusters)
    counts: dict[tuple[int, int, int], int] = {}
    for part in cut_and_route(clusters, _as_tuples(shares), n_parts):
        key = part.source, part.target, part.relay
        counts[key] = counts.get(key, 0) + 1
    rows: list[tuple[float, ...]] = []
    needs: list[tuple[int, int]] = []
    for (source, target, relay), count in counts.items():
        size = count / n_parts
        if relay < 0:
            rows.append((source, target, size, 1, 1, 1))
        else:
            needs.append((len(rows) + 1, len(rows)))
            rows += [(source, relay, size, 1, 1, 1), (relay, target, size, 1, 1, 1)]
    for ranks in clusters:
        rows += [(a, b, 1, 1, 1, 1) for a in ranks for b in ranks if a != b]
    return messages_of([table_of(rows)], [np.array(needs, int).reshape(-1, 2)])


def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if model.n_clusters < 3 or grid.n_ranks > MOST_RANKS or not n_bytes:
        return []
    routes = model.exchange_routes
    if routes.gain < LEAST_GAIN:
        return []
    n_parts = n_parts_of(grid, n_bytes)
    shares = routes.shares
    messages = relayed_messages(grid, shares, n_parts)
    predicted_s = price_messages_s(model, messages, n_bytes)
    label = f"{routes.gain:.2g} times the direct way's throughput, {_describe(grid, shares)}"

    def build(n_units: int) -> Plan:
        plan = plan_relayed(grid, shares, n_units, n_parts, f"relayed: {label}")
        return paced_by_links(with_room(plan, model), model, all_send=True)

    return [Candidate("relayed", label, predicted_s, build, segment_bytes=n_bytes // n_parts)]


def _describe(grid: Grid, shares: FloatArray) -> str:
    """Of what is relayed most, how much, and where."""
    relayed = shares.copy()
    every = np.arange(len(shares))
    relayed[:, every, every] = 0.0
    a, b, c = np.unravel_index(int(np.argmax(relayed)), relayed.shape)
    names = [grid.clusters[k].name for k in (a, b, c)]
    return f"as {relayed[a, b, c]:.0%} of {names[0]} to {names[1]} by {names[2]}"


register(
    "alltoall",
    Algorithm(
        "relayed",
        "long blocks where some links between clusters are much thinner than others",
        "gridcoll; concurrent flow (Shahrokhi and Matula 1990) by mirror prox",
        _candidates,
    ),
)
