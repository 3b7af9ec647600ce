"""Aggregation at several leaders of each cluster, one for each lane, by the nearest ways.

The ranks of every cluster are cut into as many lanes. A member hands each lane's leader its blocks
for the ranks of that lane in all clusters; leaders of a lane exchange, by way of other clusters
where that is nearer; each hands its lane's members all their blocks at once. A member sends a
message per lane and gets one back; a single leader would carry what all of them share here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, permutations

import numpy as np

from gridcoll.constants import LEAST_SAVED, MOST_COLLECTED_BYTES
from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.exchange import Rooms, blocks, copy_blocks, exchange_plan, has_both
from gridcoll.plan.alltoall.messages import Messages, messages_of, rows_table
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import ByRank, Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.grid import Grid

N_LANES = (2, 4, 8)

MOST_MESSAGES = 2500
"""So many take some 20 ms to count and price, with what each waits for."""

FEWEST_INSIDE = 8
"""Ranks of the largest cluster: on three sites of four, two leaders took 13 to 16 ms where one took
13 to 14 (8 and 256 bytes, MPICH and Open MPI), though 2 to 18 % less was predicted."""

AS_GOOD = 1.03
"""Fewer leaders are taken where more are predicted to save less than this: on 88 hosts that share
two cores, 4 and 8 leaders took 1.7 and 2.0 of the limit under MPICH, where 1.07 and 1.04 were
predicted."""

LEAST_GAIN = 1.1
"""Offered where the longest way is so many times the nearest one, or messages cost something."""

Ways = tuple[tuple[tuple[int, ...], ...], ...]
"""Clusters from each to each, both included."""


@dataclass(frozen=True)
class Lanes:
    """Who leads, and which way what goes from cluster to cluster takes."""

    grid: Grid
    n_lanes: int
    ways: Ways

    @cached_property
    def targets(self) -> list[list[tuple[int, ...]]]:
        """By lane and cluster, the ranks of the lane."""
        n, clusters = self.n_lanes, [cluster.ranks for cluster in self.grid.clusters]
        return [
            [
                tuple(rank for at, rank in enumerate(ranks) if at * n // len(ranks) == lane)
                for ranks in clusters
            ]
            for lane in range(n)
        ]

    def leader(self, lane: int, cluster: int) -> int:
        """The first of the lane's ranks; of a cluster that has none in it, members take turns."""
        ranks = self.grid.clusters[cluster].ranks
        of_lane = self.targets[lane][cluster]
        return of_lane[0] if of_lane else ranks[lane * len(ranks) // self.n_lanes]

    @cached_property
    def lane_of(self) -> list[int]:
        """By rank."""
        found = [0] * self.grid.n_ranks
        for lane, by_cluster in enumerate(self.targets):
            for rank in (rank for ranks in by_cluster for rank in ranks):
                found[rank] = lane
        return found

    @cached_property
    def led(self) -> list[list[int]]:
        """By rank, the lanes that it leads."""
        found: list[list[int]] = [[] for _ in range(self.grid.n_ranks)]
        for lane in range(self.n_lanes):
            for cluster in range(len(self.grid.clusters)):
                found[self.leader(lane, cluster)].append(lane)
        return found

    @cached_property
    def wanted(self) -> list[list[int]]:
        """By lane, its ranks in all clusters: what a member hands the leader."""
        return [[rank for ranks in lane for rank in ranks] for lane in self.targets]

    @cached_property
    def through(self) -> list[list[tuple[int, int]]]:
        """By cluster, whose blocks for whom it passes on."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.grid.clusters]
        for source, target in permutations(range(len(self.grid.clusters)), 2):
            for cluster in self.ways[source][target][1:-1]:
                found[cluster].append((source, target))
        return found

    @cached_property
    def order(self) -> list[list[int]]:
        """By cluster, the others: first those over most links."""
        every = range(len(self.grid.clusters))
        return [
            sorted((d for d in every if d != c), key=lambda d: -len(self.ways[c][d])) for c in every
        ]

    def tag(self, lane: int, source: int, target: int) -> int:
        """Of blocks on their way between clusters; those of lanes come first, then `back`."""
        n = len(self.grid.clusters)
        return self.n_lanes + 1 + (source * n + target) * self.n_lanes + lane

    @property
    def back(self) -> int:
        return self.n_lanes

    def hops(self, lane: int, source: int, target: int) -> list[tuple[int, int]]:
        """From leader to leader."""
        leaders = (self.leader(lane, cluster) for cluster in self.ways[source][target])
        return list(pairwise(leaders))


def plan_lanes(lanes: Lanes, n_units: int, label: str = "lanes") -> Plan:
    """Every member to its cluster's leaders, these to one another, and back."""
    n_ranks = lanes.grid.n_ranks
    writers = ByRank(n_ranks, lambda rank: _Writer(lanes, rank, n_units))
    programs = Programs(n_ranks, lambda rank: writers[rank].program)
    scratch = ByRank(n_ranks, lambda rank: writers[rank].n_blocks)
    return exchange_plan(label, n_units, programs, scratch)


class _Writer:
    """The program of one rank, and its scratch."""

    def __init__(self, lanes: Lanes, rank: int, n_units: int) -> None:
        self._lanes, self._rank, self._n_units = lanes, rank, n_units
        self._cluster = lanes.grid.cluster_of[rank]
        self._members = lanes.grid.clusters[self._cluster].ranks
        self._room = Rooms()
        ops: list[Op] = []
        at, n = self._members.index(rank), lanes.n_lanes
        for lane in ((at + k) % n for k in range(n)):
            ops += self._hand_over(lane)
        came = {lane: self._lead(ops, lane) for lane in lanes.led[rank]}
        for lane, places in came.items():
            ops += self._hand_out(lane, places)
        mine = lanes.lane_of[rank]
        if mine not in lanes.led[rank]:
            leader = lanes.leader(mine, self._cluster)
            ops.append(Recv(leader, blocks("output", 0, n_units, lanes.grid.n_ranks), lanes.back))
        self.program: Program = tuple(ops)
        self.n_blocks = self._room.n_blocks

    def _hand_over(self, lane: int) -> list[Op]:
        """To the leader of ``lane`` what we have for it."""
        wanted = self._lanes.wanted[lane]
        if lane in self._lanes.led[self._rank] or not wanted:
            return []
        first = self._room(len(wanted))
        pairs = [(rank, first + k) for k, rank in enumerate(wanted)]
        return [
            *copy_blocks("input", "scratch", pairs, self._n_units),
            Send(
                self._lanes.leader(lane, self._cluster),
                blocks("scratch", first, self._n_units, len(wanted)),
                lane,
            ),
        ]

    def _lead(self, ops: list[Op], lane: int) -> dict[tuple[int, int], int]:
        """Collect and exchange; where then the block of each source for each of ours is."""
        lanes, n_units = self._lanes, self._n_units
        wanted, place = lanes.wanted[lane], dict[tuple[int, int], int]()
        for member in self._members:
            first = self._room(len(wanted))
            place |= {(member, target): first + k for k, target in enumerate(wanted)}
            if member == self._rank:
                pairs = [(rank, first + k) for k, rank in enumerate(wanted)]
                ops += copy_blocks("input", "scratch", pairs, n_units)
            elif wanted:
                ops.append(Recv(member, blocks("scratch", first, n_units, len(wanted)), lane))
        for other in lanes.order[self._cluster]:
            theirs = lanes.targets[lane][other]
            if theirs:
                first = self._room(len(theirs) * len(self._members))
                pairs = [
                    (place[member, target], first + k * len(theirs) + at)
                    for k, member in enumerate(self._members)
                    for at, target in enumerate(theirs)
                ]
                ops += copy_blocks("scratch", "scratch", pairs, n_units)
                whole = blocks("scratch", first, n_units, len(pairs))
                _, to = lanes.hops(lane, self._cluster, other)[0]
                ops.append(Send(to, whole, lanes.tag(lane, self._cluster, other)))
        for source, target in lanes.through[self._cluster]:
            n_blocks = len(lanes.grid.clusters[source]) * len(lanes.targets[lane][target])
            if n_blocks:
                tag, way = lanes.tag(lane, source, target), lanes.ways[source][target]
                at = way.index(self._cluster)
                whole = blocks("scratch", self._room(n_blocks), n_units, n_blocks)
                ops.append(Recv(lanes.leader(lane, way[at - 1]), whole, tag, tag))
                ops.append(Send(lanes.leader(lane, way[at + 1]), whole, tag))
        ours = lanes.targets[lane][self._cluster]
        for other in lanes.order[self._cluster] if ours else ():
            sources = lanes.grid.clusters[other].ranks
            n_blocks = len(sources) * len(ours)
            first, tag = self._room(n_blocks), lanes.tag(lane, other, self._cluster)
            whole = blocks("scratch", first, n_units, n_blocks)
            ops.append(Recv(lanes.hops(lane, other, self._cluster)[-1][0], whole, tag, tag))
            for k, source in enumerate(sources):
                for at, target in enumerate(ours):
                    place[source, target] = first + k * len(ours) + at
        return place

    def _hand_out(self, lane: int, place: dict[tuple[int, int], int]) -> list[Op]:
        """All their blocks to the lane's members here."""
        lanes, n_ranks, ops = self._lanes, self._lanes.grid.n_ranks, list[Op]()
        for target in lanes.targets[lane][self._cluster]:
            if target == self._rank:
                pairs = [(place[source, target], source) for source in range(n_ranks)]
                ops += copy_blocks("scratch", "output", pairs, self._n_units)
                continue
            first = self._room(n_ranks)
            pairs = [(place[source, target], first + source) for source in range(n_ranks)]
            ops += copy_blocks("scratch", "scratch", pairs, self._n_units)
            ops.append(Send(target, blocks("scratch", first, self._n_units, n_ranks), lanes.back))
        return ops


@lru_cache(maxsize=64)
def lane_messages(lanes: Lanes) -> Messages:
    """Of `plan_lanes`."""
    clusters = [cluster.ranks for cluster in lanes.grid.clusters]
    rows: list[tuple[float, ...]] = []
    needs: list[tuple[int, int]] = []
    handed: dict[tuple[int, int], list[int]] = {}
    for lane, wanted in enumerate(lanes.wanted):
        for c, ranks in enumerate(clusters):
            leader = lanes.leader(lane, c)
            others = [rank for rank in ranks if rank != leader and wanted]
            handed[lane, c] = list(range(len(rows), len(rows) + len(others)))
            rows += [(rank, leader, len(wanted), 1, 1, 1) for rank in others]
    came: dict[tuple[int, int], list[int]] = {}
    for lane, targets in enumerate(lanes.targets):
        for c, ranks in enumerate(clusters):
            for d in lanes.order[c]:
                if not targets[d]:
                    continue
                needs += [(len(rows), k) for k in handed[lane, c]]
                hops = lanes.hops(lane, c, d)
                needs += [(len(rows) + k + 1, len(rows) + k) for k in range(len(hops) - 1)]
                rows += [(*hop, len(ranks) * len(targets[d]), 1, 1, 1) for hop in hops]
                came.setdefault((lane, d), []).append(len(rows) - 1)
    for lane, targets in enumerate(lanes.targets):
        for c in range(len(clusters)):
            for target in targets[c][1:]:
                needs += [(len(rows), k) for k in (*handed[lane, c], *came.get((lane, c), ()))]
                rows.append((targets[c][0], target, lanes.grid.n_ranks, 1, 1, 1))
    return messages_of([rows_table(rows)], [np.array(needs, int).reshape(-1, 2)])


@lru_cache(maxsize=64)
def nearest_ways(key: ModelKey) -> Ways:
    """Of short messages from cluster to cluster; straight on where others save nothing."""
    _, one_way_s = key.model.gap_and_one_way_s(np.array([8.0]))
    least_s, n = np.array(one_way_s[..., 0]), key.model.n_clusters
    after = np.tile(np.arange(n), (n, 1))
    np.fill_diagonal(least_s, 0.0)
    for via in range(n):
        by_s = least_s[:, via, None] + least_s[None, via, :]
        shorter = by_s < least_s * (1 - 1e-9)
        least_s = np.where(shorter, by_s, least_s)
        after = np.where(shorter, after[:, via, None], after)
    found = []
    for source in range(n):
        row = []
        for target in range(n):
            way = [source]
            while way[-1] != target:
                way.append(int(after[way[-1], target]))
            row.append(tuple(way))
        found.append(tuple(row))
    return tuple(found)


def _n_messages(grid: Grid, ways: Ways, n_lanes: int) -> int:
    n_hops = sum(len(way) - 1 for row in ways for way in row)
    return (grid.n_ranks + n_hops) * n_lanes + grid.n_ranks


@algorithm(
    "alltoall",
    "lanes",
    "short blocks where messages cost most, or some ways are much longer than others",
    "gridcoll; leaders of 001 section 4.1, several in each cluster",
    fewest_inside=FEWEST_INSIDE,
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    most, n = max(map(len, grid.clusters)), model.n_clusters
    if not has_both(grid) or N_LANES[0] * (grid.n_ranks + n * (n - 1)) > MOST_MESSAGES:
        return []
    gap_s, one_way_s = model.gap_and_one_way_s(np.array([float(n_bytes)]))
    ways = nearest_ways(ModelKey(model))
    longest_s = max(
        sum(float(one_way_s[a, b, 0]) for a, b in pairwise(way)) for row in ways for way in row
    )
    between_s = np.where(np.eye(n, dtype=bool), 0.0, one_way_s[..., 0])
    costs = (grid.n_ranks - 1) * gap_s.min() >= LEAST_SAVED * one_way_s.max()
    if not costs and between_s.max() < LEAST_GAIN * longest_s:
        return []
    found: list[tuple[float, Lanes]] = []
    for n_lanes in N_LANES:
        # A leader keeps what all members have for its lane, twice, as much that came, and sorted.
        collected = 4 * most * -(-grid.n_ranks // n_lanes) * n_bytes
        if n_lanes > most or collected > MOST_COLLECTED_BYTES:
            continue
        if _n_messages(grid, ways, n_lanes) > MOST_MESSAGES:
            break
        lanes = Lanes(grid, n_lanes, ways)
        found.append((price_messages_s(model, lane_messages(lanes), n_bytes), lanes))
    if not found:
        return []
    enough_s = AS_GOOD * min(predicted_s for predicted_s, _ in found)
    predicted_s, best = next(each for each in found if each[0] <= enough_s)
    n_longest = max(len(way) for row in ways for way in row) - 1
    label = f"{best.n_lanes} leaders of each cluster"
    label += f", by up to {n_longest} links" if n_longest > 1 else ""

    def plan(n_units: int, full_label: str) -> Plan:
        return plan_lanes(best, n_units, full_label)

    return [Candidate.planned("lanes", label, predicted_s, plan)]
