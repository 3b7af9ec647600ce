"""A direct exchange with detours around thin links: parts of blocks go through a third cluster.

The share of each path is the concurrent-flow optimum (`model.routing`). Every block is cut into
parts, so that the parts of all blocks between two clusters fit the shares. A relayed part is
stored and forwarded by one rank of the third cluster, by another rank for each part in turn.

All blocks take as long as the busiest wire: the parts of each leave evenly over that time, so that
at no time a link or an interface has more to do than on average, and none idles. Block after block
instead, fast interfaces are soon done with theirs, and wires between slow ones wait in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise, product, repeat
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from gridcoll.constants import LINK_PACE, SHORTEST_PACED_BYTES
from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.model.plogp import FloatArray
from gridcoll.model.routing import busy_s, whole_parts
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.direct import MOST_PACED_RANKS
from gridcoll.plan.alltoall.exchange import exchange_plan, keep_own
from gridcoll.plan.alltoall.messages import IntArray, Messages, messages_of, rows_table
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.pacing import thin_links
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.grid import Grid

LEAST_GAIN = 1.1
"""Relays are offered where the busiest link or interface is busy so many times as long without."""

PARTS_BETWEEN = 16
"""All blocks between two clusters are at least so many parts, to meet the shares within a few %."""

SHORTEST_PART = 4 << 10
"""Blocks are not cut into shorter parts: a message costs as much as some kilobytes."""

LONGEST_PART = 1 << 16
"""A relay forwards a part when it has all of it."""

LEAST_SPREAD = 0.25
"""However long the way of short blocks, they are spread over this part of the time."""

MOST_PRICED = 8000
"""So many messages take some 20 ms to price."""

MOST_PARTS = 32
"""Of a block: what is relayed is a part behind, which is next to nothing of all blocks then."""

MOST_KEPT = 2
"""A relay has no more scratch than so many times its own send buffer."""


class Part(NamedTuple):
    """Part ``number`` of ``of`` of the block from ``source`` to ``target``.

    ``relay`` is -1 where direct. It leaves when ``passed`` of the time has, or at ``due_s``.
    """

    source: int
    target: int
    number: int
    of: int
    relay: int
    passed: float
    due_s: float = 0.0


def n_parts_of(grid: Grid, n_bytes: int) -> int:
    """Into how many parts a block of ``n_bytes`` is cut."""
    fewest = min(len(a) * len(b) for a in grid.clusters for b in grid.clusters if a is not b)
    wanted = max(-(-PARTS_BETWEEN // fewest), -(-n_bytes // LONGEST_PART))
    return max(1, min(wanted, n_bytes // SHORTEST_PART, MOST_PARTS))


def cut_and_route(grid: Grid, counts: IntArray, n_inside: int = 1) -> list[Part]:
    """All parts of all blocks, those of each pair of ranks evenly over the time.

    Of a block, ``counts[a, b, c]`` parts go from ``a`` to ``b`` by way of ``c``, as many for all
    blocks between two clusters, and ``n_inside`` inside a cluster.
    """
    clusters = [cluster.ranks for cluster in grid.clusters]
    n = len(clusters)
    found: list[Part] = []
    for a, sources in enumerate(clusters):
        for b, targets in enumerate(clusters):
            n_blocks = len(sources) * len(targets)
            total = n_blocks * n_inside if a == b else int(counts[a, b].sum())
            ways = repeat(b) if a == b else _turns(counts[a, b])
            used = [a + b] * n
            after = ((b - a) % n + 0.5) / n  # not all begin with the same cluster
            # Neighbours in turns are of different sources, and of each source other targets.
            turns = product(range(total // n_blocks), range(len(targets)), range(len(sources)))
            for k, ((number, step, at), via) in enumerate(zip(turns, ways, strict=False)):
                source, target = sources[at], targets[(at + step) % len(targets)]
                relay = -1
                if via != b:
                    relay = clusters[via][used[via] % len(clusters[via])]
                    used[via] += 1
                if source != target:
                    part = Part(
                        source, target, number, total // n_blocks, relay, (k + after) / total
                    )
                    found.append(part)
    return sorted(found, key=attrgetter("passed"))


def _turns(counts: IntArray) -> Iterator[int]:
    """Each way as often as ``counts`` says, evenly over all turns."""
    used = np.flatnonzero(counts).tolist()
    total = int(counts.sum())
    due, wanted = [0] * len(used), [int(counts[via]) for via in used]
    for _ in range(total):
        due = [so_far + more for so_far, more in zip(due, wanted, strict=True)]
        choice = due.index(max(due))
        due[choice] -= total
        yield used[choice]


def parts_of(model: GridModel, shares: FloatArray, n_bytes: int, n_parts: int) -> tuple[Part, ...]:
    """All parts of blocks of ``n_bytes``, those that have relays cut into ``n_parts``, in time."""
    return _parts_of(ModelKey(model), shares.tobytes(), n_bytes, n_parts)


@lru_cache(maxsize=16)
def _parts_of(key: ModelKey, share_bytes: bytes, n_bytes: int, n_parts: int) -> tuple[Part, ...]:
    model, n = key.model, key.model.n_clusters
    shares = np.frombuffer(share_bytes).reshape(n, n, n)
    demand, host_bytes_per_s = model.exchange_demand
    sizes = np.array([len(cluster) for cluster in model.grid.clusters])
    n_straight = max(min(n_parts, -(-n_bytes // LONGEST_PART)), 1)
    every = np.arange(n)
    cut = np.where(shares[every[:, None], every, every] < 1.0, n_parts, n_straight)
    np.fill_diagonal(cut, 0)
    rates = model.link_bytes_per_s, host_bytes_per_s, model.uplinks
    counts = whole_parts(shares, cut * np.outer(sizes, sizes), demand, *rates)
    parts = cut_and_route(model.grid, counts, n_straight)
    return _in_time(model, parts, n_bytes, float(busy_s(counts, demand, *rates).max()))


def _in_time(
    model: GridModel, parts: Sequence[Part], n_bytes: int, lasts_s: float
) -> tuple[Part, ...]:
    """``parts`` in the order in which they are due, if a byte of each block lasts ``lasts_s``.

    Those with a longer way before them are done earlier, so that all have arrived at one time. None
    goes over a thin link faster than that carries.
    """
    cluster_of = model.grid.cluster_of
    sizes = np.array(sorted({n_bytes / part.of for part in parts}))
    _, one_way_s = model.gap_and_one_way_s(sizes)
    at = {size: k for k, size in enumerate(sizes.tolist())}
    loads = np.zeros((model.n_clusters,) * 2)
    hops: list[tuple[int, int]] = []
    tails_s: list[float] = []
    for part in parts:
        size = n_bytes / part.of
        a, b = cluster_of[part.source], cluster_of[part.target]
        k = at[size]
        if part.relay < 0:
            hops.append((a, b))
            tails_s.append(one_way_s[a, b, k])
        else:
            c = cluster_of[part.relay]
            hops.append((a, c))
            tails_s.append(one_way_s[a, c, k] + one_way_s[c, b, k])
            loads[c, b] += size
        loads[hops[-1]] += size
    thin = thin_links(model)
    ends_s = lasts_s * n_bytes + min(tails_s, default=0.0)
    carried_s = np.where(thin, LINK_PACE * loads / model.link_bytes_per_s, 0.0)
    timed = []
    for part, hop, tail_s in zip(parts, hops, tails_s, strict=True):
        due_s = LINK_PACE * part.passed * max(ends_s - tail_s, ends_s * LEAST_SPREAD)
        due_s = max(due_s, part.passed * carried_s[hop] - model.latency_s[hop])
        timed.append(part._replace(due_s=float(due_s)))
    return tuple(sorted(timed, key=attrgetter("due_s")))


def relayed_first(parts: Sequence[Part]) -> tuple[Part, ...]:
    """``parts``, of each source those that are relayed before the others, at the same times."""
    due_s: dict[int, list[float]] = {}
    for part in parts:
        due_s.setdefault(part.source, []).append(part.due_s)
    times = {source: iter(sorted(each)) for source, each in due_s.items()}
    first = sorted(parts, key=lambda part: part.relay < 0)
    moved = [part._replace(due_s=next(times[part.source])) for part in first]
    return tuple(sorted(moved, key=attrgetter("due_s")))


def plan_relayed(
    grid: Grid,
    parts: Sequence[Part],
    n_units: int,
    label: str = "relayed",
    max_kept: int = MOST_KEPT,
) -> Plan:
    """Every part to its receiver, in this order, when it is due, some by way of a third cluster.

    A relay takes in no more parts than it has room for, ``max_kept`` send buffers, until it has
    passed others on. Those wait for nothing but their receivers, who take them in at once: nobody
    waits for ever.
    """
    kept, room = [0] * grid.n_ranks, max_kept * grid.n_ranks * n_units
    most = max((part.of for part in parts), default=1)
    for part in parts:
        if part.relay >= 0:
            start, stop = _bounds(part, n_units)
            kept[part.relay] += stop - start
    kept = [min(each, room) for each in kept]

    def program_of(rank: int) -> Program:
        come: list[Op] = []
        leave: list[Op] = []
        forward: deque[Send] = deque()
        held = 0
        for part in parts:
            if rank not in part[:2] and rank != part.relay:
                continue
            start, stop = _bounds(part, n_units)
            if start == stop:
                continue
            due_us = int(part.due_s * 1e6)
            # Tags tell direct parts, those on their first hop by target, on their second by source.
            direct, first_hop, second_hop = (
                part.number + most * zone
                for zone in (0, 1 + part.target, 1 + grid.n_ranks + part.source)
            )
            if rank == part.source:
                first = part.target * n_units
                chunk = Chunk("input", first + start, first + stop)
                if part.relay < 0:
                    leave.append(Send(part.target, chunk, direct, due_us=due_us))
                else:
                    leave.append(Send(part.relay, chunk, first_hop, due_us=due_us))
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
        return (*come, *forward, *leave, keep_own(rank, n_units))

    plan = exchange_plan(label, n_units, Programs(grid.n_ranks, program_of))
    return replace(plan, scratch_units=tuple(kept) if any(kept) else ())


def _bounds(part: Part, n_units: int) -> tuple[int, int]:
    return n_units * part.number // part.of, n_units * (part.number + 1) // part.of


def overlap(one: Chunk, other: Chunk) -> bool:
    """Whether two chunks of one buffer have units in common."""
    return max(one.start, other.start) < min(one.stop, other.stop)


def relayed_messages(parts: Sequence[Part]) -> tuple[Messages, FloatArray]:
    """Of `plan_relayed`, and when each is due."""
    rows: list[tuple[float, ...]] = []
    needs: list[tuple[int, int]] = []
    due_s: list[float] = []
    for part in parts:
        size, hops = 1 / part.of, [part.source, part.target]
        if part.relay >= 0:
            hops.insert(1, part.relay)
            needs.append((len(rows) + 1, len(rows)))
        rows += [(*hop, size, 1, 1, 1) for hop in pairwise(hops)]
        due_s += [part.due_s] * (len(hops) - 1)
    messages = messages_of([rows_table(rows)], [np.array(needs, int).reshape(-1, 2)])
    return messages, np.array(due_s)


@algorithm(
    "alltoall",
    "relayed",
    "long blocks where some links are much thinner than others, short ones where some ways are "
    "much longer than others",
    "gridcoll; concurrent flow (Shahrokhi and Matula 1990) by mirror prox",
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if model.n_clusters < 3 or grid.n_ranks > MOST_PACED_RANKS or not n_bytes:
        return []
    found = _by_shorter_ways(model, n_bytes) if n_bytes < SHORTEST_PACED_BYTES else []
    routes = model.exchange_routes
    if routes.gain < LEAST_GAIN:
        return found
    label = f"{routes.gain:.2g} times the direct way's throughput, {_describe(grid, routes.shares)}"
    found.append(spread_candidate("relayed", label, model, routes.shares, n_bytes))
    if n_bytes <= LONGEST_PART:
        order = f"{label}, what is relayed first"
        found.append(
            spread_candidate("relayed", order, model, routes.shares, n_bytes, relayed_first)
        )
    return found


def _by_shorter_ways(model: GridModel, n_bytes: int) -> list[Candidate]:
    """Short blocks by way of a third cluster where that is nearer: the longest way leaves first."""
    one_way_s = model.gap_and_one_way_s(np.array([float(n_bytes)]))[1][..., 0]
    by_way_s = one_way_s[:, None, :] + one_way_s.T[None, :, :]  # from a to b by way of c
    every = np.arange(model.n_clusters)
    by_way_s[every, :, every] = by_way_s[:, every, every] = np.inf
    nearest, least_s = by_way_s.argmin(axis=2), by_way_s.min(axis=2)
    is_nearer = (LEAST_GAIN * least_s < one_way_s) & ~np.eye(model.n_clusters, dtype=bool)
    # What is relayed must not keep a thin link for longer than the shorter way saves.
    sizes = np.array([len(cluster) for cluster in model.grid.clusters], float)
    added_bytes = np.zeros_like(one_way_s)
    for a, b in np.argwhere(is_nearer):
        for hop in ((a, nearest[a, b]), (nearest[a, b], b)):
            added_bytes[hop] += sizes[a] * sizes[b] * n_bytes
    kept_s = added_bytes / model.link_bytes_per_s
    for a, b in np.argwhere(is_nearer):
        longest_s = max(kept_s[a, nearest[a, b]], kept_s[nearest[a, b], b])
        is_nearer[a, b] = longest_s < one_way_s[a, b] - least_s[a, b]
    if not is_nearer.any():
        return []
    shares = np.zeros_like(by_way_s)
    a, b = np.nonzero(~np.eye(model.n_clusters, dtype=bool))
    shares[a, b, np.where(is_nearer, nearest, every[None])[a, b]] = 1.0
    cluster_of = model.grid.cluster_of
    ways_s = np.where(is_nearer, least_s, one_way_s)

    def farthest_first(parts: Sequence[Part]) -> tuple[Part, ...]:
        return tuple(
            part._replace(due_s=0.0)
            for part in sorted(
                parts, key=lambda part: -ways_s[cluster_of[part.source], cluster_of[part.target]]
            )
        )

    label = f"the nearer way, {_describe(model.grid, shares)}"
    return [spread_candidate("relayed", label, model, shares, n_bytes, farthest_first)]


def spread_candidate(
    name: str,
    label: str,
    model: GridModel,
    shares: FloatArray,
    n_bytes: int,
    order: Callable[[Sequence[Part]], Sequence[Part]] = tuple,
) -> Candidate:
    """All blocks by ways of these ``shares``, over the time that the busiest wire takes.

    Of many parts, fewer longer ones are priced, which take no less.
    """
    grid = model.grid
    n_parts = n_parts_of(grid, n_bytes)

    def build(n_units: int) -> Plan:
        parts = order(parts_of(model, shares, n_bytes, n_parts))
        return plan_relayed(grid, parts, n_units, f"{name}: {label}")

    n_priced = max(MOST_PRICED // max(grid.n_ranks * (grid.n_ranks - 1), 1), 1)
    parts = order(parts_of(model, shares, n_bytes, min(n_parts, n_priced)))
    messages, due_s = relayed_messages(parts)
    predicted_s = price_messages_s(model, messages, n_bytes, due_s=due_s)
    return Candidate(name, label, predicted_s, build, segment_bytes=n_bytes // n_parts)


def _describe(grid: Grid, shares: FloatArray) -> str:
    """Of what is relayed most, how much, and where."""
    relayed = shares.copy()
    every = np.arange(len(shares))
    relayed[:, every, every] = 0.0
    a, b, c = np.unravel_index(int(np.argmax(relayed)), relayed.shape)
    names = [grid.clusters[k].name for k in (a, b, c)]
    return f"as {relayed[a, b, c]:.0%} of {names[0]} to {names[1]} by {names[2]}"
