"""Aggregation at several leaders of each cluster, one per lane, over the shortest paths.

The ranks of every cluster are cut into as many lanes. A member sends the leader of each lane its
blocks for the ranks of that lane in all clusters. The leaders of a lane exchange these, through
other clusters if that path is shorter. Each leader then sends every member of its lane all its
blocks at once. So a member sends a message per lane and gets one back, and the leaders of a cluster
share the traffic that a single leader would carry alone.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from itertools import pairwise, permutations

import numpy as np
from msgspec import Struct

from gridcoll.constants import DETOUR_GAIN, LEAST_SAVED, MOST_COLLECTED_BYTES
from gridcoll.model.gridmodel import GridModel, ModelKey
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.exchange import (
    ScratchBlocks,
    blocks,
    copy_blocks,
    exchange_plan,
    has_both,
)
from gridcoll.plan.alltoall.messages import Messages, messages_of, rows_table
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import ByRank, Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.topology.grid import Grid

N_LANES = (2, 4, 8)

MOST_MESSAGES = 2500
"""Limit of messages. With their dependences, so many take some 20 ms to count and price."""

MIN_LARGEST_CLUSTER = 8
"""Least size of the largest cluster. On three sites of four ranks, two leaders took 13 to 16 ms and
one took 13 to 14 (8 and 256 bytes, MPICH and Open MPI), although 2 to 18 % less was predicted."""

AS_GOOD_FACTOR = 1.03
"""Fewer leaders are taken if they are predicted to take at most this times the least. On 88 hosts
that share two cores, 4 and 8 leaders took 1.7 and 2.0 times the lower bound under MPICH, but 1.07
and 1.04 were predicted."""

Paths = tuple[tuple[tuple[int, ...], ...], ...]
"""``paths[source][target]``: the clusters on the path between two clusters, both ends included."""


class Lanes(Struct, frozen=True, dict=True):
    """Which ranks lead, and over which paths blocks go from cluster to cluster."""

    grid: Grid
    n_lanes: int
    paths: Paths

    @cached_property
    def targets(self) -> list[list[tuple[int, ...]]]:
        """``targets[lane][cluster]``: the ranks of the lane."""
        n, clusters = self.n_lanes, [cluster.ranks for cluster in self.grid.clusters]
        return [
            [
                tuple(rank for at, rank in enumerate(ranks) if at * n // len(ranks) == lane)
                for ranks in clusters
            ]
            for lane in range(n)
        ]

    def leader(self, lane: int, cluster: int) -> int:
        """Return the first rank of the lane in ``cluster``.

        If the lane has no rank there, members of the cluster take turns in leading such lanes.
        """
        ranks = self.grid.clusters[cluster].ranks
        of_lane = self.targets[lane][cluster]
        return of_lane[0] if of_lane else ranks[lane * len(ranks) // self.n_lanes]

    @cached_property
    def lane_of(self) -> list[int]:
        """The lane of each rank."""
        found = [0] * self.grid.n_ranks
        for lane, by_cluster in enumerate(self.targets):
            for rank in (rank for ranks in by_cluster for rank in ranks):
                found[rank] = lane
        return found

    @cached_property
    def lanes_led(self) -> list[list[int]]:
        """The lanes that each rank leads."""
        found: list[list[int]] = [[] for _ in range(self.grid.n_ranks)]
        for lane in range(self.n_lanes):
            for cluster in range(len(self.grid.clusters)):
                found[self.leader(lane, cluster)].append(lane)
        return found

    @cached_property
    def lane_ranks(self) -> list[list[int]]:
        """The ranks of each lane in all clusters. A member sends the leader its blocks for them."""
        return [[rank for ranks in lane for rank in ranks] for lane in self.targets]

    @cached_property
    def relayed_pairs(self) -> list[list[tuple[int, int]]]:
        """The pairs of source and target cluster whose blocks each cluster forwards."""
        found: list[list[tuple[int, int]]] = [[] for _ in self.grid.clusters]
        for source, target in permutations(range(len(self.grid.clusters)), 2):
            for cluster in self.paths[source][target][1:-1]:
                found[cluster].append((source, target))
        return found

    @cached_property
    def order(self) -> list[list[int]]:
        """The other clusters of each cluster, those over most links first."""
        every = range(len(self.grid.clusters))
        return [
            sorted((d for d in every if d != c), key=lambda d: -len(self.paths[c][d]))
            for c in every
        ]

    def tag(self, lane: int, source: int, target: int) -> int:
        """Return the tag of blocks between two clusters.

        Lower tags are those of messages to leaders, one per lane, and `return_tag`.
        """
        n = len(self.grid.clusters)
        return self.n_lanes + 1 + (source * n + target) * self.n_lanes + lane

    @property
    def return_tag(self) -> int:
        return self.n_lanes

    def hops(self, lane: int, source: int, target: int) -> list[tuple[int, int]]:
        """Return the hops of the path between two clusters, as pairs of leaders."""
        leaders = (self.leader(lane, cluster) for cluster in self.paths[source][target])
        return list(pairwise(leaders))


def plan_lanes(lanes: Lanes, n_units: int, label: str = "lanes") -> Plan:
    """Return a plan: members send to their leaders, these exchange and send the results back."""
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
        self._allocate = ScratchBlocks()
        ops: list[Op] = []
        at, n = self._members.index(rank), lanes.n_lanes
        for lane in ((at + k) % n for k in range(n)):
            ops += self._send_to_leader(lane)
        places_by_lane = {lane: self._lead(ops, lane) for lane in lanes.lanes_led[rank]}
        for lane, places in places_by_lane.items():
            ops += self._return_blocks(lane, places)
        own_lane = lanes.lane_of[rank]
        if own_lane not in lanes.lanes_led[rank]:
            leader = lanes.leader(own_lane, self._cluster)
            ops.append(
                Recv(leader, blocks("output", 0, n_units, lanes.grid.n_ranks), lanes.return_tag)
            )
        self.program: Program = tuple(ops)
        self.n_blocks = self._allocate.n_blocks

    def _send_to_leader(self, lane: int) -> list[Op]:
        """Send the leader of ``lane`` our blocks for the ranks of that lane."""
        lane_ranks = self._lanes.lane_ranks[lane]
        if lane in self._lanes.lanes_led[self._rank] or not lane_ranks:
            return []
        first = self._allocate(len(lane_ranks))
        pairs = [(rank, first + k) for k, rank in enumerate(lane_ranks)]
        return [
            *copy_blocks("input", "scratch", pairs, self._n_units),
            Send(
                self._lanes.leader(lane, self._cluster),
                blocks("scratch", first, self._n_units, len(lane_ranks)),
                lane,
            ),
        ]

    def _lead(self, ops: list[Op], lane: int) -> dict[tuple[int, int], int]:
        """Collect blocks and exchange them with the leaders of the lane in other clusters.

        Return, by source and target, where the blocks for our members of the lane are in scratch.
        """
        lanes, n_units = self._lanes, self._n_units
        lane_ranks, place = lanes.lane_ranks[lane], dict[tuple[int, int], int]()
        for member in self._members:
            first = self._allocate(len(lane_ranks))
            place |= {(member, target): first + k for k, target in enumerate(lane_ranks)}
            if member == self._rank:
                pairs = [(rank, first + k) for k, rank in enumerate(lane_ranks)]
                ops += copy_blocks("input", "scratch", pairs, n_units)
            elif lane_ranks:
                ops.append(Recv(member, blocks("scratch", first, n_units, len(lane_ranks)), lane))
        for other in lanes.order[self._cluster]:
            theirs = lanes.targets[lane][other]
            if theirs:
                first = self._allocate(len(theirs) * len(self._members))
                pairs = [
                    (place[member, target], first + k * len(theirs) + at)
                    for k, member in enumerate(self._members)
                    for at, target in enumerate(theirs)
                ]
                ops += copy_blocks("scratch", "scratch", pairs, n_units)
                chunk = blocks("scratch", first, n_units, len(pairs))
                _, to = lanes.hops(lane, self._cluster, other)[0]
                ops.append(Send(to, chunk, lanes.tag(lane, self._cluster, other)))
        for source, target in lanes.relayed_pairs[self._cluster]:
            n_blocks = len(lanes.grid.clusters[source]) * len(lanes.targets[lane][target])
            if n_blocks:
                tag, path = lanes.tag(lane, source, target), lanes.paths[source][target]
                at = path.index(self._cluster)
                chunk = blocks("scratch", self._allocate(n_blocks), n_units, n_blocks)
                ops.append(Recv(lanes.leader(lane, path[at - 1]), chunk, tag, tag))
                ops.append(Send(lanes.leader(lane, path[at + 1]), chunk, tag))
        ours = lanes.targets[lane][self._cluster]
        for other in lanes.order[self._cluster] if ours else ():
            sources = lanes.grid.clusters[other].ranks
            n_blocks = len(sources) * len(ours)
            first, tag = self._allocate(n_blocks), lanes.tag(lane, other, self._cluster)
            chunk = blocks("scratch", first, n_units, n_blocks)
            ops.append(Recv(lanes.hops(lane, other, self._cluster)[-1][0], chunk, tag, tag))
            for k, source in enumerate(sources):
                for at, target in enumerate(ours):
                    place[source, target] = first + k * len(ours) + at
        return place

    def _return_blocks(self, lane: int, place: dict[tuple[int, int], int]) -> list[Op]:
        """Send the members of the lane in this cluster all their blocks."""
        lanes, n_ranks, ops = self._lanes, self._lanes.grid.n_ranks, list[Op]()
        for target in lanes.targets[lane][self._cluster]:
            if target == self._rank:
                pairs = [(place[source, target], source) for source in range(n_ranks)]
                ops += copy_blocks("scratch", "output", pairs, self._n_units)
                continue
            first = self._allocate(n_ranks)
            pairs = [(place[source, target], first + source) for source in range(n_ranks)]
            ops += copy_blocks("scratch", "scratch", pairs, self._n_units)
            ops.append(
                Send(target, blocks("scratch", first, self._n_units, n_ranks), lanes.return_tag)
            )
        return ops


@lru_cache(maxsize=64)
def lane_messages(lanes: Lanes) -> Messages:
    """Return the messages of `plan_lanes`."""
    clusters = [cluster.ranks for cluster in lanes.grid.clusters]
    rows: list[tuple[float, ...]] = []
    needs: list[tuple[int, int]] = []
    to_leader: dict[tuple[int, int], list[int]] = {}
    for lane, lane_ranks in enumerate(lanes.lane_ranks):
        for c, ranks in enumerate(clusters):
            leader = lanes.leader(lane, c)
            others = [rank for rank in ranks if rank != leader and lane_ranks]
            to_leader[lane, c] = list(range(len(rows), len(rows) + len(others)))
            rows += [(rank, leader, len(lane_ranks), 1, 1, 1) for rank in others]
    arrived: dict[tuple[int, int], list[int]] = {}
    for lane, targets in enumerate(lanes.targets):
        for c, ranks in enumerate(clusters):
            for d in lanes.order[c]:
                if not targets[d]:
                    continue
                needs += [(len(rows), k) for k in to_leader[lane, c]]
                hops = lanes.hops(lane, c, d)
                needs += [(len(rows) + k + 1, len(rows) + k) for k in range(len(hops) - 1)]
                rows += [(*hop, len(ranks) * len(targets[d]), 1, 1, 1) for hop in hops]
                arrived.setdefault((lane, d), []).append(len(rows) - 1)
    for lane, targets in enumerate(lanes.targets):
        for c in range(len(clusters)):
            for target in targets[c][1:]:
                needs += [
                    (len(rows), k) for k in (*to_leader[lane, c], *arrived.get((lane, c), ()))
                ]
                rows.append((targets[c][0], target, lanes.grid.n_ranks, 1, 1, 1))
    return messages_of([rows_table(rows)], [np.array(needs, int).reshape(-1, 2)])


@lru_cache(maxsize=64)
def shortest_paths(key: ModelKey) -> Paths:
    """Return the shortest paths of short messages between clusters (Floyd and Warshall).

    The direct link is used unless another path saves time.
    """
    _, one_way_s = key.model.gap_and_one_way_s(np.array([8.0]))
    least_s, n = np.array(one_way_s[..., 0]), key.model.n_clusters
    next_cluster = np.tile(np.arange(n), (n, 1))
    np.fill_diagonal(least_s, 0.0)
    for via in range(n):
        via_s = least_s[:, via, None] + least_s[None, via, :]
        shorter = via_s < least_s * (1 - 1e-9)
        least_s = np.where(shorter, via_s, least_s)
        next_cluster = np.where(shorter, next_cluster[:, via, None], next_cluster)
    following: list[list[int]] = next_cluster.tolist()
    found = []
    for source in range(n):
        row = []
        for target in range(n):
            path = [source]
            while path[-1] != target:
                path.append(following[path[-1]][target])
            row.append(tuple(path))
        found.append(tuple(row))
    return tuple(found)


def _n_messages(grid: Grid, paths: Paths, n_lanes: int) -> int:
    n_hops = sum(len(path) - 1 for row in paths for path in row)
    return (grid.n_ranks + n_hops) * n_lanes + grid.n_ranks


@algorithm(
    "alltoall",
    "lanes",
    "short blocks where messages cost most, or some ways are much longer than others",
    "gridcoll; leaders of 001 section 4.1, several in each cluster",
    min_largest_cluster=MIN_LARGEST_CLUSTER,
)
def _candidates(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    most, n = max(grid.ranks_per_cluster), model.n_clusters
    if not has_both(grid) or N_LANES[0] * (grid.n_ranks + n * (n - 1)) > MOST_MESSAGES:
        return []
    gap_s, one_way_s = model.gap_and_one_way_s(np.array([float(n_bytes)]))
    paths = shortest_paths(ModelKey(model))
    longest_s = max(
        sum(float(one_way_s[a, b, 0]) for a, b in pairwise(path)) for row in paths for path in row
    )
    between_s = np.where(np.eye(n, dtype=bool), 0.0, one_way_s[..., 0])
    messages_cost = (grid.n_ranks - 1) * gap_s.min() >= LEAST_SAVED * one_way_s.max()
    if not messages_cost and between_s.max() < DETOUR_GAIN * longest_s:
        return []
    found: list[tuple[float, Lanes]] = []
    for n_lanes in N_LANES:
        # A leader stores its members' blocks twice, as many received ones, and these once sorted.
        collected = 4 * most * -(-grid.n_ranks // n_lanes) * n_bytes
        if n_lanes > most or collected > MOST_COLLECTED_BYTES:
            continue
        if _n_messages(grid, paths, n_lanes) > MOST_MESSAGES:
            break
        lanes = Lanes(grid, n_lanes, paths)
        found.append((price_messages_s(model, lane_messages(lanes), n_bytes), lanes))
    if not found:
        return []
    enough_s = AS_GOOD_FACTOR * min(predicted_s for predicted_s, _ in found)
    predicted_s, best = next(each for each in found if each[0] <= enough_s)
    n_longest = max(len(path) for row in paths for path in row) - 1
    label = f"{best.n_lanes} leaders of each cluster"
    label += f", by up to {n_longest} links" if n_longest > 1 else ""

    def plan(n_units: int, full_label: str) -> Plan:
        return plan_lanes(best, n_units, full_label)

    return [Candidate.planned("lanes", label, predicted_s, plan)]
