"""Scatter and gather with detours around thin links: pieces of blocks go through a third cluster.

The schedule is made piece by piece. Whenever the root's interface is free, the next piece goes to
the cluster with the longest remaining time, over the path on which it arrives first: the direct one
or one through a host of another cluster. A gather is the same schedule reversed in time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
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
from gridcoll.topology.grid import Cluster, Grid

MOST_RANKS = 64
"""Limit of ranks, since every rank computes the whole schedule."""

SHORTEST_PIECE = 8 << 10
MOST_PIECES = 16
"""Limit of pieces of a block. A relay delays the block by one piece."""

MOST_STEPS = 20_000
"""Limit of paths that are compared for a schedule: some 50 ms. Blocks are cut into fewer pieces if
there are many clusters, and nothing is relayed if there are too many."""

LONGEST_BYTES = 4 << 20
"""Limit of a block, since relays store whole pieces."""


class Hop(NamedTuple):
    """A message from ``sender`` to ``receiver``: piece ``number`` of the block of ``target``."""

    start_s: float
    arrival_s: float
    sender: int
    receiver: int
    target: int
    number: int


_Times = tuple[float, float, int, int]
"""When a piece leaves, when it arrives, its sender, and its receiver."""


class _Wires:
    """When interfaces and links are free again; all pieces have one size."""

    def __init__(
        self,
        port_s: list[float],
        one_way_s: list[list[float]],
        link_s: list[list[float]],
        uplink_s: list[float],
        grid: Grid,
    ) -> None:
        self.port_s = port_s
        self.one_way_s = one_way_s
        self.link_s = link_s
        self.uplink_s = uplink_s
        self.cluster_of = grid.cluster_of
        self.host_of = grid.host_of
        self.port_free_s: defaultdict[int, float] = defaultdict(float)
        self.first_s: dict[int, float] = {}
        self.n_in: defaultdict[int, int] = defaultdict(int)
        self.link_free_s: defaultdict[tuple[int, int], float] = defaultdict(float)
        self.leaving_free_s = [0.0] * len(uplink_s)
        self.entering_free_s = [0.0] * len(uplink_s)

    def times(self, sender: int, receiver: int, ready_s: float) -> tuple[float, float]:
        """Return when a piece would leave and when it would arrive."""
        a, b = self.cluster_of[sender], self.cluster_of[receiver]
        start_s = max(ready_s, self.port_free_s[self.host_of[sender]], self.link_free_s[a, b])
        if a != b:
            start_s = max(start_s, self.leaving_free_s[a], self.entering_free_s[b])
        arrival_s = start_s + self.one_way_s[a][b]
        host = self.host_of[receiver]
        # In any order of arrival, an interface receives one piece at a time.
        interface_s = self.first_s.get(host, arrival_s) + self.n_in[host] * self.port_s[b]
        return start_s, max(arrival_s, interface_s)

    def take(self, sender: int, receiver: int, start_s: float, arrival_s: float) -> None:
        a, b = self.cluster_of[sender], self.cluster_of[receiver]
        if self.host_of[sender] == self.host_of[receiver]:
            return
        self.port_free_s[self.host_of[sender]] = start_s + self.port_s[a]
        host = self.host_of[receiver]
        self.first_s[host] = min(self.first_s.get(host, arrival_s), arrival_s)
        self.n_in[host] += 1
        if a != b:
            self.link_free_s[a, b] = start_s + self.link_s[a][b]
            # A piece that waits for its link does not delay others at an uplink.
            if self.uplink_s[a]:
                self.leaving_free_s[a] = (self.leaving_free_s[a] or start_s) + self.uplink_s[a]
            if self.uplink_s[b]:
                self.entering_free_s[b] = (self.entering_free_s[b] or start_s) + self.uplink_s[b]


def make_schedule(
    model: GridModel,
    root: int,
    n_bytes: int,
    n_pieces: int,
    *,
    inward: bool = False,
    only_direct: bool = False,
) -> list[Hop]:
    """Return all hops of a scatter of ``n_bytes`` per rank from ``root``.

    Each block is cut into ``n_pieces``. ``inward`` takes the rates and latencies of links in the
    opposite direction, for a gather. ``only_direct`` relays nothing.
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
        grid,
    )
    home = grid.cluster_of[root]
    remaining = {
        c: [(rank, k) for k in range(n_pieces) for rank in cluster.ranks if rank != root]
        for c, cluster in enumerate(grid.clusters)
    }
    remaining = {c: pieces for c, pieces in remaining.items() if pieces}
    for pieces in remaining.values():
        pieces.reverse()
    turns: defaultdict[int, int] = defaultdict(int)
    hops: list[Hop] = []
    while remaining:
        free_s = wires.port_free_s[grid.host_of[root]]
        options = []
        for c, pieces in remaining.items():
            relays = [] if only_direct else grid.clusters
            paths = _paths(wires, relays, turns, root, home, c, pieces[-1][0])
            last_s = _last_s(wires, paths, len(pieces))
            # A path is no help if its piece would arrive after the last one of all paths.
            early_paths = [path for path in paths if path[-1][1] <= last_s * (1 + 1e-9)]
            best = min(early_paths, key=lambda path: (max(path[0][0], free_s), path[-1][1]))
            options.append((best[0][0] > free_s * (1 + 1e-9), free_s - last_s, c, best))
        *_, c, path = min(options, key=lambda each: each[:3])
        target, number = remaining[c].pop()
        if not remaining[c]:
            del remaining[c]
        for start_s, arrival_s, sender, receiver in path:
            wires.take(sender, receiver, start_s, arrival_s)
            hops.append(Hop(start_s, arrival_s, sender, receiver, target, number))
        if len(path) > 1:
            turns[grid.cluster_of[path[0][3]]] += 1
    return hops


def _last_s(wires: _Wires, paths: Sequence[Sequence[_Times]], n: int) -> float:
    """Return when the last of ``n`` pieces arrives if all ``paths`` are fully used."""
    firsts = sorted((path[-1][1], _period_s(wires, path)) for path in paths)
    rate, carried = 0.0, 0.0
    for k, (first_s, period_s) in enumerate(firsts):
        # Until time T, a path whose first piece arrives at a has carried 1 + (T - a) / period.
        rate += 1.0 / period_s
        carried += 1.0 - first_s / period_s
        last_s = (n - carried) / rate
        if k + 1 == len(firsts) or last_s <= firsts[k + 1][0]:
            return max(last_s, firsts[0][0])
    return 0.0


def _period_s(wires: _Wires, path: Sequence[_Times]) -> float:
    """Return how long a piece occupies the slowest link of a path, or the root's interface."""
    cluster_of = wires.cluster_of
    hops = [(cluster_of[a], cluster_of[b]) for _, _, a, b in path]
    links_s = [wires.link_s[a][b] for a, b in hops]
    uplinks_s = [max(wires.uplink_s[a], wires.uplink_s[b]) for a, b in hops if a != b]
    return max(wires.port_s[cluster_of[path[0][2]]], *links_s, *uplinks_s, 1e-12)


def _paths(
    wires: _Wires,
    clusters: Sequence[Cluster],
    turns: dict[int, int],
    root: int,
    home: int,
    there: int,
    target: int,
) -> list[list[_Times]]:
    """Return the direct path, then one through a host of each other cluster, as lists of hops."""
    start_s, arrival_s = wires.times(root, target, 0.0)
    found = [[(start_s, arrival_s, root, target)]]
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
    """Return the scatter with these ``hops``."""
    return _plan("scatter", model, root, n_pieces, hops, n_units, label)


def plan_collected(
    model: GridModel, root: int, n_pieces: int, hops: Sequence[Hop], n_units: int, label: str = ""
) -> Plan:
    """Return the gather whose hops are ``hops`` reversed in time."""
    end_s = max(hop.arrival_s for hop in hops)
    reversed_hops = [
        Hop(end_s - hop.arrival_s, end_s - hop.start_s, hop.receiver, hop.sender, *hop[4:])
        for hop in reversed(hops)
    ]
    return _plan("gather", model, root, n_pieces, reversed_hops, n_units, label)


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
        stored: dict[tuple[int, int], Chunk] = {}
        next_unit = 0
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
                if key not in stored:
                    stored[key] = Chunk("scratch", next_unit, next_unit + stop - start)
                    next_unit += stop - start
                chunk = stored[key]
            tag = hop.target * n_pieces + hop.number
            if rank == hop.receiver:
                events.append((hop.arrival_s, Recv(hop.sender, chunk, tag)))
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
    most = min(MOST_PIECES, MOST_STEPS // ((model.grid.n_ranks - 1) * model.n_clusters**2))
    if not most:
        return []
    n_pieces = min(n_bytes // SHORTEST_PIECE, most)
    hops = make_schedule(model, root, n_bytes, n_pieces, inward=inward)
    direct = make_schedule(model, root, n_bytes, n_pieces, inward=inward, only_direct=True)
    n_relayed = len(hops) - len(direct)
    predicted_s, direct_s = (max(hop.arrival_s for hop in each) for each in (hops, direct))
    if not n_relayed or predicted_s > (1 - LEAST_SAVED) * direct_s:
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
