"""Aggregation at leaders: one message per ordered pair of clusters, relayed as by PACX and MagPIe.

Members send the blocks for each other cluster to their leader, the first rank of their cluster.
Leaders exchange them, sort what they received by receiver, and hand it out. Leaders need scratch
for all blocks that cross.

The leaders may also exchange through one of them, the hub: a message to it and one back per
cluster, so that with C clusters 2(C - 1) messages cross instead of C(C - 1). All blocks then pass
leaders, also those inside a cluster, so that a rank sends one message and waits for one. Blocks
between two other clusters cross two links, which costs no time if the path over the hub is no
longer than the direct one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial

import numpy as np

from gridcoll.constants import MOST_COLLECTED_BYTES
from gridcoll.model.gridmodel import GridModel, Sample
from gridcoll.plan.alltoall.cost import of_grid, priced_s
from gridcoll.plan.alltoall.exchange import (
    ScratchBlocks,
    adjacent,
    blocks,
    copy_blocks,
    exchange_inside,
    exchange_plan,
    has_both,
    keep_own,
)
from gridcoll.plan.alltoall.messages import (
    Messages,
    Weights,
    by_rank,
    inside_rows,
    messages_of,
    rows_table,
)
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm, alias
from gridcoll.schedule.paths import find_hub
from gridcoll.topology.grid import Grid

MOST_HUB_BLOCKS = 1 << 15
"""Limit of blocks at a leader, which sorts them one by one while others wait."""

_UP, _DOWN = range(2)  # tags

Place = tuple[str, int]
"""A buffer, and the number of a block in it."""


def _others(grid: Grid, cluster: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return the other clusters and their ranks, beginning with the next cluster."""
    n = len(grid.clusters)
    return [(c % n, grid.clusters[c % n].ranks) for c in range(cluster + 1, cluster + n)]


def _scratch_blocks(grid: Grid, rank: int) -> int:
    """Return the scratch of ``rank`` in blocks.

    A leader stores what leaves, what arrives, and that once more sorted. A member stores what it
    sends to the leader and receives from it.
    """
    members = grid.clusters[grid.cluster_of[rank]].ranks
    return (grid.n_ranks - len(members)) * (3 * len(members) if rank == members[0] else 2)


def leader_blocks(grid: Grid) -> int:
    """Return the scratch in blocks of the leader that needs most."""
    return max(_scratch_blocks(grid, cluster.coordinator) for cluster in grid.clusters)


def plan_leaders(grid: Grid, n_units: int, label: str = "leaders") -> Plan:
    """Return a plan with one message per ordered pair of clusters, and direct ones inside."""

    def program_of(rank: int) -> Program:
        members = grid.clusters[grid.cluster_of[rank]].ranks
        ops: list[Op] = []
        if len(grid.clusters) > 1:
            relay = _lead if rank == members[0] else _hand_over
            ops = relay(grid, members, rank, n_units)
        ops += exchange_inside(rank, members, n_units, grid.n_ranks)
        return (*ops, keep_own(rank, n_units))

    scratch = tuple(_scratch_blocks(grid, rank) for rank in range(grid.n_ranks))
    return exchange_plan(label, n_units, Programs(grid.n_ranks, program_of), scratch)


def _hand_over(grid: Grid, members: tuple[int, ...], rank: int, n_units: int) -> list[Op]:
    """Return a member's ops: a message per other cluster to the leader, and one message back."""
    ops: list[Op] = []
    leader, others, first = members[0], _others(grid, grid.cluster_of[rank]), 0
    for cluster, ranks in others:
        if adjacent(ranks):
            whole = blocks("input", ranks[0], n_units, len(ranks))
        else:
            pairs = [(target, first + k) for k, target in enumerate(ranks)]
            ops += copy_blocks("input", "scratch", pairs, n_units)
            whole = blocks("scratch", first, n_units, len(ranks))
        ops.append(Send(leader, whole, cluster))
        first += len(ranks)
    ops.append(Recv(leader, blocks("scratch", first, n_units, first), len(grid.clusters)))
    for _, ranks in others:
        places = [(first + k, source) for k, source in enumerate(ranks)]
        ops += copy_blocks("scratch", "output", places, n_units)
        first += len(ranks)
    return ops


def _lead(grid: Grid, members: tuple[int, ...], rank: int, n_units: int) -> list[Op]:
    """Return the leader's ops: collect, exchange, sort, hand out.

    Blocks that leave or arrive are stored by source, then target; sorted ones by target, then
    source.
    """
    own, ops, allocate = grid.cluster_of[rank], list[Op](), ScratchBlocks()
    others, n_remote = _others(grid, own), grid.n_ranks - len(members)
    outgoing = {cluster: allocate(len(members) * len(ranks)) for cluster, ranks in others}
    received = {cluster: allocate(len(members) * len(ranks)) for cluster, ranks in others}
    for cluster, ranks in others:
        first = outgoing[cluster]
        pairs = [(target, first + k) for k, target in enumerate(ranks)]
        ops += copy_blocks("input", "scratch", pairs, n_units)
        for at, member in enumerate(members[1:], start=1):
            place = blocks("scratch", first + at * len(ranks), n_units, len(ranks))
            ops.append(Recv(member, place, cluster))
        peer, count = ranks[0], len(members) * len(ranks)
        ops.append(Send(peer, blocks("scratch", first, n_units, count), own))
        ops.append(Recv(peer, blocks("scratch", received[cluster], n_units, count), cluster))
    for at, member in enumerate(members):
        first = into = allocate(n_remote)
        for cluster, sources in others:
            by_source = [received[cluster] + k * len(members) + at for k in range(len(sources))]
            if member == rank:
                pairs = list(zip(by_source, sources, strict=True))
                ops += copy_blocks("scratch", "output", pairs, n_units)
            else:
                pairs = [(b, into + k) for k, b in enumerate(by_source)]
                ops += copy_blocks("scratch", "scratch", pairs, n_units)
            into += len(sources)
        if member != rank:
            whole = blocks("scratch", first, n_units, n_remote)
            ops.append(Send(member, whole, len(grid.clusters)))
    return ops


def _hub_scratch_blocks(grid: Grid, hub: int, cluster: int) -> int:
    """Return the scratch in blocks of a cluster's leader.

    It holds the inputs and outputs of its members, and the blocks that cross; at the hub, those of
    all clusters.
    """
    n, sizes = grid.n_ranks, grid.ranks_per_cluster
    stored = sizes if cluster == hub else [sizes[cluster]]
    return 2 * (sizes[cluster] - 1) * n + sum(2 * size * (n - size) for size in stored)


def hub_blocks(grid: Grid, hub: int) -> int:
    """Return the scratch in blocks of the leader that needs most."""
    return max(_hub_scratch_blocks(grid, hub, c) for c in range(len(grid.clusters)))


def plan_hub(grid: Grid, hub: int, n_units: int, label: str = "hub") -> Plan:
    """Return a plan that sends all blocks through leaders, and through the one of cluster ``hub``.

    The grid must have two clusters or more.
    """
    everybody = range(grid.n_ranks)
    remote = [
        [rank for rank in everybody if grid.cluster_of[rank] != c]
        for c in range(len(grid.clusters))
    ]

    def program_of(rank: int) -> Program:
        leader = grid.clusters[grid.cluster_of[rank]].ranks[0]
        if rank == leader:
            return tuple(_lead_to_hub(grid, hub, grid.cluster_of[rank], remote, n_units))
        return (
            Send(leader, blocks("input", 0, n_units, grid.n_ranks), _UP),
            Recv(leader, blocks("output", 0, n_units, grid.n_ranks), _DOWN),
        )

    leaders = {cluster.ranks[0]: c for c, cluster in enumerate(grid.clusters)}
    scratch = tuple(
        _hub_scratch_blocks(grid, hub, leaders[r]) if r in leaders else 0 for r in everybody
    )
    return exchange_plan(label, n_units, Programs(grid.n_ranks, program_of), scratch)


def _lead_to_hub(
    grid: Grid, hub: int, cluster: int, remote: Sequence[Sequence[int]], n_units: int
) -> list[Op]:
    """Return a leader's ops: collect members' inputs, exchange at the hub, hand out outputs.

    ``remote[cluster]`` are the ranks of all other clusters. Blocks that leave a cluster are stored
    by source, and those that enter it by target. The hub stores the blocks of every cluster and
    copies them from the first order to the second.
    """
    ranks, n_ranks, allocate = [each.ranks for each in grid.clusters], grid.n_ranks, ScratchBlocks()
    members, remote_ranks = ranks[cluster], remote[cluster]
    inputs = [("input", 0), *(("scratch", allocate(n_ranks)) for _ in members[1:])]
    outputs = [("output", 0), *(("scratch", allocate(n_ranks)) for _ in members[1:])]
    stored = range(len(ranks)) if cluster == hub else [cluster]
    crossing = {c: len(ranks[c]) * len(remote[c]) for c in stored}
    places = {c: (allocate(count), allocate(count)) for c, count in crossing.items()}
    outgoing, incoming = places[cluster]
    ops: list[Op] = []
    for at, member in enumerate(members):
        if at:
            ops.append(Recv(member, blocks(*inputs[at], n_units, n_ranks), _UP))
        into = "scratch", outgoing + at * len(remote_ranks)
        ops += _copies(
            inputs[at], into, ((rank, k) for k, rank in enumerate(remote_ranks)), n_units
        )
    if cluster != hub:
        peer, count = ranks[hub][0], crossing[cluster]
        ops.append(Send(peer, blocks("scratch", outgoing, n_units, count), _UP))
        ops.append(Recv(peer, blocks("scratch", incoming, n_units, count), _DOWN))
    spokes = [c for c in stored if c != hub]
    for c in spokes if cluster == hub else ():
        ops.append(Recv(ranks[c][0], blocks("scratch", places[c][0], n_units, crossing[c]), _UP))
    if cluster == hub:
        place_of = {
            (source, target): places[c][0] + at * len(remote[c]) + k
            for c in stored
            for at, source in enumerate(ranks[c])
            for k, target in enumerate(remote[c])
        }
        for c in (*spokes, hub):
            into = "scratch", places[c][1]
            pairs = [place_of[source, target] for target in ranks[c] for source in remote[c]]
            ops += _copies(("scratch", 0), into, ((p, k) for k, p in enumerate(pairs)), n_units)
            if c != hub:
                whole = blocks(*into, n_units, crossing[c])
                ops.append(Send(ranks[c][0], whole, _DOWN))
    for at, member in enumerate(members):
        for k, neighbour in enumerate(members):
            ops += _copies(inputs[k], outputs[at], [(member, neighbour)], n_units)
        received = "scratch", incoming + at * len(remote_ranks)
        ops += _copies(received, outputs[at], enumerate(remote_ranks), n_units)
        if at:
            ops.append(Send(member, blocks(*outputs[at], n_units, n_ranks), _DOWN))
    return ops


def _copies(source: Place, into: Place, pairs: Iterable[tuple[int, int]], n_units: int) -> list[Op]:
    shifted = [(source[1] + a, into[1] + b) for a, b in pairs]
    return copy_blocks(source[0], into[0], shifted, n_units)


@lru_cache(maxsize=64)
def leader_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Return the messages of `plan_leaders`: to leaders, between them, back, and inside."""
    clusters = [cluster.ranks for cluster in grid.clusters]
    sizes, members = _sizes(grid, weights)
    n_clusters, n_ranks = len(clusters), sum(sizes)
    rows = list[tuple[float, ...]]()
    between: dict[tuple[int, int], int] = {}
    to_leader: dict[tuple[int, int], list[int]] = {}
    for c, ranks in enumerate(clusters):
        for d in ((c + step) % n_clusters for step in range(1, n_clusters)):
            to_leader[c, d] = list(range(len(rows), len(rows) + len(ranks) - 1))
            rows += [_to_leader(member, ranks[0], sizes[d], members[c]) for member in ranks[1:]]
    for c, ranks in enumerate(clusters):
        for d in ((c + step) % n_clusters for step in range(1, n_clusters)):
            between[c, d] = len(rows)
            rows.append(_between_leaders(ranks[0], clusters[d][0], sizes[c] * sizes[d]))
    needs = [(between[link], k) for link, all_members in to_leader.items() for k in all_members]
    for c, ranks in enumerate(clusters):
        for member in ranks[1:]:
            needs += [(len(rows), between[d, c]) for d in range(n_clusters) if d != c]
            rows.append(_from_leader(ranks[0], member, n_ranks - sizes[c], members[c]))
    inside = [inside_rows(ranks, by_rank(grid, weights)) for ranks in clusters]
    return messages_of([rows_table(rows), *inside], [np.array(needs, int).reshape(-1, 2)])


@lru_cache(maxsize=64)
def hub_messages(grid: Grid, hub: int, weights: Weights = ()) -> Messages:
    """Return the messages of `plan_hub`: to leaders, to the hub, from it, and to members."""
    clusters = [cluster.ranks for cluster in grid.clusters]
    sizes, members = _sizes(grid, weights)
    n_ranks = sum(sizes)
    spokes = [c for c in range(len(clusters)) if c != hub]
    crossing = [size * (n_ranks - size) for size in sizes]
    rows = list[tuple[float, ...]]()
    needs = list[tuple[int, int]]()
    to_leader: list[list[int]] = []
    for c, ranks in enumerate(clusters):
        to_leader.append(list(range(len(rows), len(rows) + len(ranks) - 1)))
        rows += [_to_leader(member, ranks[0], n_ranks, members[c]) for member in ranks[1:]]
    to_hub = {}
    for c in spokes:
        needs += [(len(rows), k) for k in to_leader[c]]
        to_hub[c] = len(rows)
        rows.append(_between_leaders(clusters[c][0], clusters[hub][0], crossing[c]))
    received = {hub: list(to_hub.values())}
    for c in spokes:
        others = [k for d, k in to_hub.items() if d != c] + to_leader[hub]
        needs += [(len(rows), k) for k in others]
        received[c] = [len(rows)]
        rows.append(_between_leaders(clusters[hub][0], clusters[c][0], crossing[c]))
    for c, ranks in enumerate(clusters):
        for member in ranks[1:]:
            needs += [(len(rows), k) for k in (*to_leader[c], *received[c])]
            rows.append(_from_leader(ranks[0], member, n_ranks, members[c]))
    return messages_of([rows_table(rows)], [np.array(needs, int).reshape(-1, 2)])


def _sizes(grid: Grid, weights: Weights) -> tuple[list[float], list[float]]:
    """Return the size of each cluster, and how many members each non-leader represents."""
    sampled = grid.ranks_per_cluster
    sizes = [
        n * weight for n, weight in zip(sampled, weights or (1.0,) * len(sampled), strict=True)
    ]
    return sizes, [(size - 1) / max(n - 1, 1) for n, size in zip(sampled, sizes, strict=True)]


def _to_leader(member: int, leader: int, n_blocks: float, members: float) -> tuple[float, ...]:
    return member, leader, n_blocks, 1, members, members


def _between_leaders(source: int, target: int, n_blocks: float) -> tuple[float, ...]:
    return source, target, n_blocks, 1, 1, 1


def _from_leader(leader: int, member: int, n_blocks: float, members: float) -> tuple[float, ...]:
    return leader, member, n_blocks, members, 1, members


@algorithm(
    "alltoall",
    "leaders",
    "tiny blocks where messages between clusters cost most",
    "PACX and MagPIe, as 001 section 4.1 tells of them",
)
def _leaders(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    grid = model.grid
    if not has_both(grid) or leader_blocks(grid) * n_bytes > MOST_COLLECTED_BYTES:
        return []
    n_messages = model.n_clusters * (model.n_clusters - 1)
    label = f"{n_messages} messages between clusters, through leaders"
    predicted_s = priced_s(model, of_grid(leader_messages), n_bytes)
    found = [Candidate.planned("leaders", label, predicted_s, partial(plan_leaders, grid))]
    return found + (_hub(model, n_bytes) if model.n_clusters > 2 else [])


def _hub(model: GridModel, n_bytes: int) -> list[Candidate]:
    grid, hub = model.grid, find_hub(model.latency_s)
    if hub_blocks(grid, hub) > min(MOST_HUB_BLOCKS, MOST_COLLECTED_BYTES // max(n_bytes, 1)):
        return []
    label = f"{2 * (model.n_clusters - 1)} messages between clusters, leaders meet at "
    label += grid.clusters[hub].name

    def messages_of(sample: Sample) -> Messages:
        part = sample.model
        return hub_messages(part.grid, find_hub(part.latency_s), sample.weights)

    predicted_s = priced_s(model, messages_of, n_bytes)
    return [Candidate.planned("leaders", label, predicted_s, partial(plan_hub, grid, hub))]


def by_host(grid: Grid) -> Grid:
    """Return the grid whose clusters are the hosts of ``grid``."""
    return grid.regroup(grid.host_of)


@algorithm(
    "alltoall",
    "nodes",
    "tiny blocks where several ranks share a host",
    "gridcoll; the leaders of 001 section 4.1, a host each",
)
def _nodes(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    if not model.grid.shares_hosts:
        return []  # before hosts are numbered, which takes 50 ms for 5,000
    hosts = by_host(model.grid)
    if not has_both(hosts) or leader_blocks(hosts) * n_bytes > MOST_COLLECTED_BYTES:
        return []
    n_messages = len(hosts.clusters) * (len(hosts.clusters) - 1)
    label = f"{n_messages} messages between hosts, through a rank of each"

    def messages_of(sample: Sample) -> Messages:
        of_hosts, cluster_of = by_host(sample.model.grid), sample.model.grid.cluster_of
        weights = (sample.weights[cluster_of[host.ranks[0]]] for host in of_hosts.clusters)
        return leader_messages(of_hosts, tuple(weights))

    predicted_s = priced_s(model, messages_of, n_bytes)
    return [Candidate.planned("nodes", label, predicted_s, partial(plan_leaders, hosts))]


alias("alltoall", "coordinator", "leaders")
