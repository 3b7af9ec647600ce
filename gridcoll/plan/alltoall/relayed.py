"""A direct exchange with detours: parts of blocks go through a third cluster.

Detours go around thin links (`model.routing`) and long ways (`model.quickest_routes`), which say
what share of the data takes which path. Every block is cut into parts, so that the parts of all
blocks between two clusters match the shares. One rank of the third cluster stores and forwards a
relayed part; its ranks take turns.

All long blocks take as long as the busiest wire. The parts of each block leave evenly over that
time, so that the load of links and interfaces is even and none idles. If ranks sent block after
block instead, fast interfaces would finish early, and wires between slow ones would wait in turn.
Short blocks leave at once, those first that still take longest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import pairwise, product, repeat
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from gridcoll.constants import DETOUR_GAIN, LINK_PACE, SHORTEST_PACED_BYTES
from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.model.plogp import FloatArray
from gridcoll.model.quickest_routes import MOST_CLUSTERS, quickest_routes
from gridcoll.model.routing import busy_s, direct_routes, whole_parts
from gridcoll.plan.alltoall.cost import MOST_PACED_RANKS, overflows, price_messages_s
from gridcoll.plan.alltoall.exchange import exchange_plan, keep_own
from gridcoll.plan.alltoall.messages import IntArray, Messages, messages_of, rows_table
from gridcoll.plan.ops import Chunk, Op, Recv, Send
from gridcoll.plan.pacing import thin_links
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.grid import Grid

PARTS_BETWEEN = 16
"""Least number of parts of all blocks between two clusters, to match the shares within a few %."""

SHORTEST_PART = 4 << 10
"""Least length of a part: a message costs as much as some kilobytes."""

LONGEST_PART = 1 << 16
"""Greatest length of a part, since a relay forwards a part only when it has all of it."""

LEAST_SPREAD = 0.25
"""Blocks are spread over at least this fraction of the time, even if their paths are long."""

MOST_ORDERED_RANKS = 64
"""With more ranks, only one order of the parts is priced, which then takes 0.1 to 0.2 s."""

MOST_PRICED = 8000
"""Limit of messages to price. So many take some 20 ms."""

MOST_PARTS = 32
"""Limit of parts of a block. A relayed block is one part late, which is then negligible."""

MOST_RELAY_BUFFERS = 2
"""Limit of a relay's scratch, as a multiple of its own send buffer."""

LEAST_RELAY_BYTES = 1 << 18
"""A relay may always have so much scratch. Short blocks would wait for the space of others, which
may take a latency, only to save a few bytes."""


class Part(NamedTuple):
    """Part ``number`` of ``of`` parts of the block from ``source`` to ``target``.

    ``relay`` is -1 if the part is sent directly. The part leaves when the fraction ``passed`` of
    the time has passed, or at ``due_s``.
    """

    source: int
    target: int
    number: int
    of: int
    relay: int
    passed: float
    due_s: float = 0.0


def n_parts_of(grid: Grid, n_bytes: int) -> int:
    """Return the number of parts into which a block of ``n_bytes`` is cut."""
    fewest = min(len(a) * len(b) for a in grid.clusters for b in grid.clusters if a is not b)
    wanted = max(-(-PARTS_BETWEEN // fewest), -(-n_bytes // LONGEST_PART))
    return max(1, min(wanted, n_bytes // SHORTEST_PART, MOST_PARTS))


def cut_and_route(grid: Grid, counts: IntArray, n_inside: int = 1) -> list[Part]:
    """Return all parts of all blocks, those of each pair of ranks evenly over the time.

    ``counts[a, b, c]`` parts go from cluster ``a`` to ``b`` through ``c``, the sum over all blocks
    between the two. A block inside a cluster has ``n_inside`` parts.
    """
    clusters = [cluster.ranks for cluster in grid.clusters]
    n = len(clusters)
    found: list[Part] = []
    for a, sources in enumerate(clusters):
        for b, targets in enumerate(clusters):
            n_blocks = len(sources) * len(targets)
            total = n_blocks * n_inside if a == b else int(counts[a, b].sum())
            path_of_part = repeat(b) if a == b else _in_turn(counts[a, b])
            used = [a + b] * n
            after = ((b - a) % n + 0.5) / n  # clusters begin at different times
            # Consecutive turns have different sources, and each source goes through its targets.
            turns = product(range(total // n_blocks), range(len(targets)), range(len(sources)))
            for k, ((number, step, at), via) in enumerate(zip(turns, path_of_part, strict=False)):
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


def _in_turn(counts: IntArray) -> Iterator[int]:
    """Yield each path as often as ``counts`` says, evenly over all turns."""
    used = np.flatnonzero(counts).tolist()
    total = int(counts.sum())
    due, wanted = [0] * len(used), [int(counts[via]) for via in used]
    for _ in range(total):
        due = [credit + share for credit, share in zip(due, wanted, strict=True)]
        choice = due.index(max(due))
        due[choice] -= total
        yield used[choice]


def parts_of(model: GridModel, shares: FloatArray, n_bytes: int, n_parts: int) -> tuple[Part, ...]:
    """Return all parts of blocks of ``n_bytes`` in the order in which they are due.

    Blocks between clusters that use relays are cut into ``n_parts``.
    """
    return _parts_of(ModelKey(model), shares.tobytes(), n_bytes, n_parts)


@lru_cache(maxsize=16)
def _parts_of(key: ModelKey, share_bytes: bytes, n_bytes: int, n_parts: int) -> tuple[Part, ...]:
    model, n = key.model, key.model.n_clusters
    shares = np.frombuffer(share_bytes).reshape(n, n, n)
    demand, host_bytes_per_s = model.exchange_demand
    sizes = np.array(model.grid.ranks_per_cluster)
    n_direct = max(min(n_parts, -(-n_bytes // LONGEST_PART)), 1)
    every = np.arange(n)
    cut = np.where(shares[every[:, None], every, every] < 1.0, n_parts, n_direct)
    np.fill_diagonal(cut, 0)
    rates = model.link_bytes_per_s, host_bytes_per_s, model.uplinks
    counts = whole_parts(shares, cut * np.outer(sizes, sizes), demand, *rates)
    parts = cut_and_route(model.grid, counts, n_direct)
    return _in_time(model, parts, n_bytes, float(busy_s(counts, demand, *rates).max()))


def _in_time(
    model: GridModel, parts: Sequence[Part], n_bytes: int, lasts_s: float
) -> tuple[Part, ...]:
    """Return ``parts`` in the order in which they are due.

    The busiest wire takes ``lasts_s`` per byte of a block. Parts with a longer path end earlier, so
    that all arrive at about the same time. Parts go over a thin link no faster than it carries.
    """
    cluster_of = model.grid.cluster_of
    sizes = np.array(sorted({n_bytes / part.of for part in parts}))
    _, one_way_s = model.gap_and_one_way_s(sizes)
    at = {size: k for k, size in enumerate(sizes.tolist())}
    loads = np.zeros((model.n_clusters,) * 2)
    hops: list[tuple[int, int]] = []
    remaining_paths_s: list[float] = []
    for part in parts:
        size = n_bytes / part.of
        a, b = cluster_of[part.source], cluster_of[part.target]
        k = at[size]
        if part.relay < 0:
            hops.append((a, b))
            remaining_paths_s.append(one_way_s[a, b, k])
        else:
            c = cluster_of[part.relay]
            hops.append((a, c))
            remaining_paths_s.append(one_way_s[a, c, k] + one_way_s[c, b, k])
            loads[c, b] += size
        loads[hops[-1]] += size
    thin = thin_links(model)
    ends_s = lasts_s * n_bytes + min(remaining_paths_s, default=0.0)
    carried_s = np.where(thin, LINK_PACE * loads / model.link_bytes_per_s, 0.0)
    timed = []
    for part, hop, remaining_s in zip(parts, hops, remaining_paths_s, strict=True):
        due_s = LINK_PACE * part.passed * max(ends_s - remaining_s, ends_s * LEAST_SPREAD)
        due_s = max(due_s, part.passed * carried_s[hop] - model.latency_s[hop])
        timed.append(part._replace(due_s=float(due_s)))
    return tuple(sorted(timed, key=attrgetter("due_s")))


def relayed_first(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return ``parts`` with the same times, but each source sends its relayed parts first."""
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
    max_buffers: int = MOST_RELAY_BUFFERS,
    least_bytes: int = LEAST_RELAY_BYTES,
) -> Plan:
    """Return a plan that sends all parts in this order when they are due, some through relays.

    A relay has scratch for ``max_buffers`` send buffers, and at least ``least_bytes``. When that is
    full, it receives no further part until it has forwarded others. These wait only for their
    receivers, which receive at once, so there is no deadlock.
    """
    stored = [0] * grid.n_ranks
    room_units = max(max_buffers * grid.n_ranks * n_units, least_bytes)
    most_parts = max((part.of for part in parts), default=1)
    for part in parts:
        if part.relay >= 0:
            start, stop = _bounds(part, n_units)
            stored[part.relay] += stop - start
    stored = [min(each, room_units) for each in stored]

    def program_of(rank: int) -> Program:
        receives: list[Op] = []
        sends: list[Op] = []
        forward: deque[Send] = deque()
        next_unit = 0
        for part in parts:
            if rank not in part[:2] and rank != part.relay:
                continue
            start, stop = _bounds(part, n_units)
            if start == stop:
                continue
            due_us = int(part.due_s * 1e6)
            direct, first_hop, second_hop = tags_of(
                part.number, most_parts, part.source, part.target, grid.n_ranks
            )
            if rank == part.source:
                first = part.target * n_units
                chunk = Chunk("input", first + start, first + stop)
                if part.relay < 0:
                    sends.append(Send(part.target, chunk, direct, due_us=due_us))
                else:
                    sends.append(Send(part.relay, chunk, first_hop, due_us=due_us))
            elif rank == part.target:
                first = part.source * n_units
                chunk = Chunk("output", first + start, first + stop)
                if part.relay < 0:
                    receives.append(Recv(part.source, chunk, direct))
                else:
                    receives.append(Recv(part.relay, chunk, second_hop, 1))
            else:
                # If scratch is full, start over in the space of forwarded parts.
                if next_unit + stop - start > room_units:
                    while forward and forward[0].chunk.start >= next_unit:
                        receives.append(forward.popleft())
                    next_unit = 0
                chunk = Chunk("scratch", next_unit, next_unit + stop - start)
                while forward and overlap(forward[0].chunk, chunk):
                    receives.append(forward.popleft())
                next_unit = chunk.stop
                receives.append(Recv(part.source, chunk, first_hop))
                forward.append(Send(part.target, chunk, second_hop))
        return (*receives, *forward, *sends, keep_own(rank, n_units))

    plan = exchange_plan(label, n_units, Programs(grid.n_ranks, program_of))
    return replace(plan, scratch_units=tuple(stored) if any(stored) else ())


def tags_of(
    number: int, most_parts: int, source: int, target: int, n_ranks: int
) -> tuple[int, int, int]:
    """Return the tags of a part that is sent directly, of its first hop and of its second hop.

    They distinguish direct parts, first hops by target, and second hops by source.
    """
    zones = 0, 1 + target, 1 + n_ranks + source
    direct, first_hop, second_hop = (number + most_parts * zone for zone in zones)
    return direct, first_hop, second_hop


def _bounds(part: Part, n_units: int) -> tuple[int, int]:
    return n_units * part.number // part.of, n_units * (part.number + 1) // part.of


def overlap(one: Chunk, other: Chunk) -> bool:
    """Whether two chunks of one buffer have units in common."""
    return max(one.start, other.start) < min(one.stop, other.stop)


def relayed_messages(parts: Sequence[Part]) -> tuple[Messages, FloatArray]:
    """Return the messages of `plan_relayed`, and when each is due, (M,)."""
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


def longest_way_first(
    model: GridModel, n_bytes: int, paced: bool, parts: Sequence[Part]
) -> tuple[Part, ...]:
    """Return ``parts`` in the order of how long each takes from its source, the longest first.

    That is the latency of its way and the time on links, with the parts that follow it on the same
    link: a thin link must begin early (Jackson's rule: the job with the longest time after the
    machine goes first). All are due at once, or if ``paced``, each just in time for the end, so
    that links are sent what they carry.
    """
    cluster_of, rates, latency_s = model.grid.cluster_of, model.link_bytes_per_s, model.latency_s
    remaining_s = [0.0] * len(parts)
    second: dict[tuple[int, int], list[int]] = {}
    first: dict[tuple[int, int], list[int]] = {}
    for k, part in enumerate(parts):
        a, b = cluster_of[part.source], cluster_of[part.target]
        if part.relay >= 0:
            c = cluster_of[part.relay]
            second.setdefault((c, b), []).append(k)
            first.setdefault((a, c), []).append(k)
        else:
            first.setdefault((a, b), []).append(k)
    for hops in (second, first):
        for (a, b), numbers in hops.items():
            per_byte_s = 0.0 if a == b else 1.0 / float(rates[a, b])
            least_s = 0.0
            # What has the longest way behind this link passes it first; go from the last to it.
            for k in sorted(numbers, key=lambda k: (remaining_s[k], -k)):
                least_s = max(remaining_s[k], least_s) + per_byte_s * n_bytes / parts[k].of
                remaining_s[k] = least_s + float(latency_s[a, b])
    order = sorted(range(len(parts)), key=lambda k: (-remaining_s[k], k))
    longest_s = remaining_s[order[0]] if paced and parts else 0.0
    return tuple(
        parts[k]._replace(due_s=LINK_PACE * max(longest_s - remaining_s[k], 0.0)) for k in order
    )


def may_overflow(model: GridModel, parts: Sequence[Part], n_bytes: int) -> bool:
    """Whether a queue overflows if all ``parts`` are sent at once."""
    cluster_of, loads = model.grid.cluster_of, np.zeros((model.n_clusters,) * 2)
    for part in parts:
        hops = [cluster_of[part.source], cluster_of[part.target]]
        if part.relay >= 0:
            hops.insert(1, cluster_of[part.relay])
        for hop in pairwise(hops):
            loads[hop] += n_bytes / part.of
    np.fill_diagonal(loads, 0.0)
    return overflows(model, loads)


@algorithm(
    "alltoall",
    "relayed",
    "where some links are much thinner or some ways much longer than others",
    "gridcoll; concurrent flow (Shahrokhi and Matula 1990) over time, by mirror prox",
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if model.n_clusters < 3 or grid.n_ranks > MOST_PACED_RANKS or not n_bytes:
        return []
    is_few = grid.n_ranks <= MOST_ORDERED_RANKS
    found = []
    if n_bytes >= SHORTEST_PACED_BYTES and model.exchange_routes.gain >= DETOUR_GAIN:
        routes = model.exchange_routes
        label = f"{routes.gain:.2g} times the direct way's throughput"
        found += _by_the_clock(model, label, routes.shares, n_bytes)
    if model.n_clusters <= MOST_CLUSTERS and (is_few or not found):
        quickest = quickest_routes(model, n_bytes)
        if quickest.gain >= DETOUR_GAIN:
            label = f"{quickest.gain:.2g} times as fast as the direct way"
            if is_few or n_bytes >= SHORTEST_PACED_BYTES:
                found += _by_the_clock(model, label, quickest.shares, n_bytes)
            full_label = f"{label}, {_describe(grid, quickest.shares)}"
            found += at_once_candidates("relayed", full_label, model, quickest.shares, n_bytes)
    return found


def _by_the_clock(
    model: GridModel, label: str, shares: FloatArray, n_bytes: int
) -> list[Candidate]:
    """Return candidates whose parts leave evenly over the time, in one or two orders."""
    full_label = f"{label}, {_describe(model.grid, shares)}"
    found = [spread_candidate("relayed", full_label, model, shares, n_bytes)]
    if model.grid.n_ranks <= MOST_ORDERED_RANKS and n_bytes <= LONGEST_PART:
        order = f"{full_label}, what is relayed first"
        found.append(spread_candidate("relayed", order, model, shares, n_bytes, relayed_first))
    return found


def at_once_candidates(
    name: str, label: str, model: GridModel, shares: FloatArray, n_bytes: int
) -> list[Candidate]:
    """Return a candidate that sends all parts at once, the longest way first.

    If they would overflow a queue, they leave just in time; but there is no such candidate for long
    ones, since any delay of theirs would add to the end.
    """
    if n_bytes > LONGEST_PART:
        return []
    paced = may_overflow(model, parts_of(model, shares, n_bytes, 1), n_bytes)
    if paced and n_bytes >= SHORTEST_PACED_BYTES:
        return []
    order = partial(longest_way_first, model, n_bytes, paced)
    full_label = f"{label}, the longest way first"
    return [spread_candidate(name, full_label, model, shares, n_bytes, order)]


def direct_shares(model: GridModel) -> FloatArray:
    """Return the shares of routes, (C, C, C), with which no block is relayed."""
    return direct_routes(model.n_clusters).astype(float)


def spread_candidate(
    name: str,
    label: str,
    model: GridModel,
    shares: FloatArray,
    n_bytes: int,
    order: Callable[[Sequence[Part]], Sequence[Part]] = tuple,
) -> Candidate:
    """Return a candidate that spreads all blocks over the time that the busiest wire takes.

    ``shares`` say how much of the data takes which path. If there are many parts, fewer and longer
    ones are priced, which take at least as long.
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
    """Describe the pair of clusters with the largest relayed share: how much, and through which."""
    relayed = shares.copy()
    every = np.arange(len(shares))
    relayed[:, every, every] = 0.0
    a, b, c = np.unravel_index(int(np.argmax(relayed)), relayed.shape)
    names = [grid.clusters[k].name for k in (a, b, c)]
    return f"as {relayed[a, b, c]:.0%} of {names[0]} to {names[1]} by {names[2]}"
