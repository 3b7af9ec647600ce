"""Scatter and gather with detours around thin links: pieces of blocks go through a third cluster.

The schedule is made piece by piece: whenever the root's interface is free, the next piece goes to
the cluster with the longest remaining time, over the path on which it arrives first, direct or
through a host of another cluster. A gather is the same backwards in time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from gridcoll.constants import LEAST_SAVED, LINK_PACE
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.wires import links_of
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.packed_trees import is_unlike
from gridcoll.plan.plan import Plan, Program, Programs, scratch_of
from gridcoll.plan.registry import Algorithm, Candidate, register
from gridcoll.topology.grid import Cluster

MOST_RANKS = 64
"""Most ranks: every rank computes the whole schedule."""

SHORTEST_PIECE = 8 << 10
MOST_PIECES = 16
"""Pieces of a block; a relay delays the block by one piece."""

LONGEST_BYTES = 4 << 20
"""Of a block: pieces are kept whole by relays."""


class Hop(NamedTuple):
    """Piece ``number`` of the block of ``target`` from ``sender`` to ``receiver``."""

    start_s: float
    there_s: float
    sender: int
    receiver: int
    target: int
    number: int


_Times = tuple[float, float, int, int]
"""When a piece leaves and arrives, and its sender and receiver."""


@dataclass
class _Wires:
    """When interfaces and links are free again; all pieces have one size."""

    port_s: list[float]
    one_way_s: list[list[float]]
    link_s: list[list[float]]
    up_s: list[float]
    cluster_of: Sequence[int]
    host_of: Sequence[int]

    def __post_init__(self) -> None:
        self.out_s: defaultdict[int, float] = defaultdict(float)
        self.first_s: dict[int, float] = {}
        self.n_in: defaultdict[int, int] = defaultdict(int)
        self.pipe_s: defaultdict[tuple[int, int], float] = defaultdict(float)
        self.leaves_s = [0.0] * len(self.up_s)
        self.enters_s = [0.0] * len(self.up_s)

    def times(self, sender: int, receiver: int, ready_s: float) -> tuple[float, float]:
        """When a piece would leave and arrive."""
        a, b = self.cluster_of[sender], self.cluster_of[receiver]
        start_s = max(ready_s, self.out_s[self.host_of[sender]], self.pipe_s[a, b])
        if a != b:
            start_s = max(start_s, self.leaves_s[a], self.enters_s[b])
        there_s = start_s + self.one_way_s[a][b]
        host = self.host_of[receiver]
        # Whatever order pieces come in, an interface takes in one at a time.
        all_in_s = self.first_s.get(host, there_s) + self.n_in[host] * self.port_s[b]
        return start_s, max(there_s, all_in_s)

    def take(self, sender: int, receiver: int, start_s: float, there_s: float) -> None:
        a, b = self.cluster_of[sender], self.cluster_of[receiver]
        if self.host_of[sender] == self.host_of[receiver]:
            return
        self.out_s[self.host_of[sender]] = start_s + self.port_s[a]
        host = self.host_of[receiver]
        self.first_s[host] = min(self.first_s.get(host, there_s), there_s)
        self.n_in[host] += 1
        if a != b:
            self.pipe_s[a, b] = start_s + self.link_s[a][b]
            # A piece that waits for its link does not keep others from an uplink.
            if self.up_s[a]:
                self.leaves_s[a] = (self.leaves_s[a] or start_s) + self.up_s[a]
            if self.up_s[b]:
                self.enters_s[b] = (self.enters_s[b] or start_s) + self.up_s[b]


def make_schedule(
    model: GridModel,
    root: int,
    n_bytes: int,
    n_pieces: int,
    *,
    inward: bool = False,
    only_straight: bool = False,
) -> list[Hop]:
    """All hops of a scatter of ``n_bytes`` per rank from ``root``.

    Each block is cut into ``n_pieces``. ``inward``: over links as they are the other way, for a
    gather. ``only_straight``: nothing is relayed.
    """
    grid = model.grid
    piece = n_bytes / n_pieces
    gap_s, one_way_s = (each[..., 0] for each in model.gap_and_one_way_s(np.array([piece])))
    link_s = piece / links_of(model)
    np.fill_diagonal(link_s, 0.0)
    if inward:
        one_way_s, link_s = one_way_s.T, link_s.T
    wires = _Wires(
        gap_s.diagonal().tolist(),
        one_way_s.tolist(),
        link_s.tolist(),
        (piece / model.uplinks).tolist(),
        grid.cluster_of,
        grid.host_of,
    )
    home = grid.cluster_of[root]
    left = {
        c: [(rank, k) for k in range(n_pieces) for rank in cluster.ranks if rank != root]
        for c, cluster in enumerate(grid.clusters)
    }
    left = {c: pieces for c, pieces in left.items() if pieces}
    for pieces in left.values():
        pieces.reverse()
    turns: defaultdict[int, int] = defaultdict(int)
    hops: list[Hop] = []
    while left:
        free_s = wires.out_s[grid.host_of[root]]
        options = []
        for c, pieces in left.items():
            ways = _ways(wires, grid.clusters, turns, root, home, c, pieces[-1][0])
            ways = ways[:1] if only_straight else ways
            last_s = _last_s(wires, ways, len(pieces))
            # Those that would come after the last one of the others are no help.
            ahead = [way for way in ways if way[-1][1] <= last_s * (1 + 1e-9)]
            best = min(ahead, key=lambda way: (max(way[0][0], free_s), way[-1][1]))
            options.append((best[0][0] > free_s * (1 + 1e-9), free_s - last_s, c, best))
        *_, c, way = min(options, key=lambda each: each[:3])
        target, number = left[c].pop()
        if not left[c]:
            del left[c]
        for start_s, there_s, sender, receiver in way:
            wires.take(sender, receiver, start_s, there_s)
            hops.append(Hop(start_s, there_s, sender, receiver, target, number))
        if len(way) > 1:
            turns[grid.cluster_of[way[0][3]]] += 1
    return hops


def _last_s(wires: _Wires, ways: Sequence[Sequence[_Times]], n: int) -> float:
    """When the last of ``n`` pieces arrives, if all ``ways`` are fully used."""
    firsts = sorted((way[-1][1], _period_s(wires, way)) for way in ways)
    rate, carried = 0.0, 0.0
    for k, (first_s, period_s) in enumerate(firsts):
        # By T, each way that has begun at a has carried 1 + (T - a) / period.
        rate += 1.0 / period_s
        carried += 1.0 - first_s / period_s
        last_s = (n - carried) / rate
        if k + 1 == len(firsts) or last_s <= firsts[k + 1][0]:
            return max(last_s, firsts[0][0])
    return 0.0


def _period_s(wires: _Wires, way: Sequence[_Times]) -> float:
    """How long a piece keeps the slowest link of a way, or the root's interface."""
    cluster_of = wires.cluster_of
    hops = [(cluster_of[a], cluster_of[b]) for _, _, a, b in way]
    links_s = [wires.link_s[a][b] for a, b in hops]
    ups_s = [max(wires.up_s[a], wires.up_s[b]) for a, b in hops if a != b]
    return max(wires.port_s[cluster_of[way[0][2]]], *links_s, *ups_s, 1e-12)


def _ways(
    wires: _Wires,
    clusters: Sequence[Cluster],
    turns: dict[int, int],
    root: int,
    home: int,
    there: int,
    target: int,
) -> list[list[_Times]]:
    """The direct path, then one through a host of each other cluster: hops with times and ranks."""
    start_s, there_s = wires.times(root, target, 0.0)
    found = [[(start_s, there_s, root, target)]]
    if there == home:
        return found
    for via, cluster in enumerate(clusters):
        if via in (home, there):
            continue
        relay = cluster.ranks[turns[via] % len(cluster)]
        first = wires.times(root, relay, 0.0)
        second = wires.times(relay, target, first[1])
        found.append([(*first, root, relay), (*second, relay, target)])
    return found


def plan_relayed(
    model: GridModel, root: int, n_pieces: int, hops: Sequence[Hop], n_units: int, label: str = ""
) -> Plan:
    """The scatter that ``hops`` are."""
    return _plan("scatter", model, root, n_pieces, hops, n_units, label)


def plan_collected(
    model: GridModel, root: int, n_pieces: int, hops: Sequence[Hop], n_units: int, label: str = ""
) -> Plan:
    """The gather that is ``hops`` backwards in time."""
    end_s = max(hop.there_s for hop in hops)
    turned = [
        Hop(end_s - hop.there_s, end_s - hop.start_s, hop.receiver, hop.sender, *hop[4:])
        for hop in reversed(hops)
    ]
    return _plan("gather", model, root, n_pieces, turned, n_units, label)


def _plan(
    collective: str,
    model: GridModel,
    root: int,
    n_pieces: int,
    hops: Sequence[Hop],
    n_units: int,
    label: str,
) -> Plan:
    bounds = [n_units * k // n_pieces for k in range(n_pieces + 1)]
    at_root, at_end = ("input", "output") if collective == "scatter" else ("output", "input")

    def program_of(rank: int) -> Program:
        held: dict[tuple[int, int], Chunk] = {}
        top = 0
        events: list[tuple[float, Op]] = []
        for hop in hops:
            start, stop = bounds[hop.number], bounds[hop.number + 1]
            if rank not in (hop.sender, hop.receiver) or start == stop:
                continue
            if rank == root:
                first = hop.target * n_units
                chunk = Chunk(at_root, first + start, first + stop)
            elif rank == hop.target:
                chunk = Chunk(at_end, start, stop)
            else:
                key = hop.target, hop.number
                if key not in held:
                    held[key] = Chunk("scratch", top, top + stop - start)
                    top += stop - start
                chunk = held[key]
            tag = hop.target * n_pieces + hop.number
            if rank == hop.receiver:
                events.append((hop.there_s, Recv(hop.sender, chunk, tag)))
                continue
            # A relay has no due time for a piece, which may arrive late.
            own = rank in (root, hop.target)
            due_us = int(LINK_PACE * hop.start_s * 1e6) if own else 0
            events.append((hop.start_s, Send(hop.receiver, chunk, tag, due_us=due_us)))
        ops = [op for _, op in sorted(events, key=lambda event: event[0])]
        if rank == root and n_units:
            there, here = (
                Chunk(at_root, root * n_units, (root + 1) * n_units),
                Chunk(at_end, 0, n_units),
            )
            ops.append(Copy(there, here) if collective == "scatter" else Copy(here, there))
        return tuple(ops)

    programs = Programs(model.grid.n_ranks, program_of)
    scratch = tuple(scratch_of(program) for program in programs)
    return Plan(collective, label, n_units, root, programs, scratch if any(scratch) else ())


def _candidates(
    model: GridModel, n_bytes: int, root: int, *, planner: Callable[..., Plan], inward: bool
) -> list[Candidate]:
    if (
        model.n_clusters < 3
        or model.grid.n_ranks > MOST_RANKS
        or not SHORTEST_PIECE <= n_bytes <= LONGEST_BYTES
        or not is_unlike(model)
    ):
        return []
    n_pieces = min(n_bytes // SHORTEST_PIECE, MOST_PIECES)
    hops = make_schedule(model, root, n_bytes, n_pieces, inward=inward)
    straight = make_schedule(model, root, n_bytes, n_pieces, inward=inward, only_straight=True)
    n_relayed = len(hops) - len(straight)
    predicted_s, straight_s = (max(hop.there_s for hop in each) for each in (hops, straight))
    if not n_relayed or predicted_s > (1 - LEAST_SAVED) * straight_s:
        return []
    label = f"{n_relayed} of {len(hops) - n_relayed} pieces by a third cluster"
    plan, segment = partial(planner, model, root, n_pieces, hops), n_bytes // n_pieces
    return [Candidate.planned("relayed", label, predicted_s, plan, segment_bytes=segment)]


for _collective, _planner in (("scatter", plan_relayed), ("gather", plan_collected)):
    register(
        _collective,
        Algorithm(
            "relayed",
            "long blocks where some links from the root's cluster are thin",
            "gridcoll; list scheduling (Graham 1966) over interfaces and links",
            partial(_candidates, planner=_planner, inward=_collective == "gather"),
        ),
    )
