"""Aggregation at leaders: one message per ordered pair of clusters, as PACX and MagPIe relay.

Members hand the blocks for each other cluster to their leader, the first rank of their cluster;
leaders exchange; each sorts what came by receiver and hands it out. Leaders need room for all that
crosses.

The leaders may also exchange through one of them, the hub: a message to it and one back per
cluster, so that with C clusters 2(C - 1) messages cross instead of C(C - 1). All blocks then pass
leaders, also those inside a cluster, so that a rank sends one message and waits for one. Blocks
between two other clusters cross two links, which costs no time where the path over the hub is no
longer than the direct one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np

from gridcoll.constants import MOST_COLLECTED_BYTES
from gridcoll.model.gridmodel import GridModel, Sample
from gridcoll.plan.alltoall.cost import of_grid, priced_s
from gridcoll.plan.alltoall.exchange import (
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
    table_of,
)
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm, alias
from gridcoll.schedule.paths import find_hub
from gridcoll.topology.grid import Grid

MOST_HUB_BLOCKS = 1 << 15
"""Most blocks at a leader, which sorts them one by one while others wait."""

_UP, _DOWN = range(2)  # tags

Place = tuple[str, int]
"""A buffer, and the block where something begins in it."""


@dataclass(frozen=True)
class _Layout:
    """Where blocks stand in the scratch of one cluster's ranks, counted in blocks.

    A leader has, per other cluster: what leaves, by source then target; what came, the same;
    what came, by target then source. A member has what it hands over, then what it is handed, each
    cluster by cluster.
    """

    grid: Grid
    cluster: int

    @property
    def members(self) -> tuple[int, ...]:
        return self.grid.clusters[self.cluster].ranks

    @property
    def others(self) -> list[int]:
        """The other clusters, each cluster beginning with another one."""
        n = len(self.grid.clusters)
        return [(self.cluster + step) % n for step in range(1, n)]

    def ranks(self, cluster: int) -> tuple[int, ...]:
        return self.grid.clusters[cluster].ranks

    @property
    def n_remote(self) -> int:
        return self.grid.n_ranks - len(self.members)

    def before(self, cluster: int) -> int:
        """How many ranks the other clusters before ``cluster`` have together."""
        total = 0
        for other in self.others:
            if other == cluster:
                break
            total += len(self.ranks(other))
        return total

    def leaves(self, cluster: int) -> int:
        return self.before(cluster) * len(self.members)

    def came(self, cluster: int) -> int:
        return (self.n_remote + self.before(cluster)) * len(self.members)

    def sorted(self, at: int) -> int:
        """What came for the ``at``-th member, all clusters after one another."""
        return 2 * self.n_remote * len(self.members) + at * self.n_remote

    def scratch_blocks(self, rank: int) -> int:
        """How many blocks of scratch ``rank`` needs."""
        if rank == self.members[0]:
            return 3 * self.n_remote * len(self.members)
        return 2 * self.n_remote


def leader_blocks(grid: Grid) -> int:
    """The blocks of scratch of the leader that needs most."""
    return max(
        _Layout(grid, c).scratch_blocks(cluster.coordinator)
        for c, cluster in enumerate(grid.clusters)
    )


def plan_leaders(grid: Grid, n_units: int, label: str = "leaders") -> Plan:
    """One message per ordered pair of clusters, between leaders; direct inside clusters."""
    layouts = [_Layout(grid, c) for c in range(len(grid.clusters))]

    def program_of(rank: int) -> Program:
        layout = layouts[grid.cluster_of[rank]]
        ops: list[Op] = []
        if len(grid.clusters) > 1:
            relay = _lead if rank == layout.members[0] else _hand_over
            ops = relay(layout, rank, n_units)
        ops += exchange_inside(rank, layout.members, n_units, grid.n_ranks)
        return (*ops, keep_own(rank, n_units))

    scratch = tuple(layouts[grid.cluster_of[r]].scratch_blocks(r) for r in range(grid.n_ranks))
    return exchange_plan(label, n_units, Programs(grid.n_ranks, program_of), scratch)


def _hand_over(layout: _Layout, rank: int, n_units: int) -> list[Op]:
    """A member: a message per other cluster to the leader, one message back."""
    ops: list[Op] = []
    leader = layout.members[0]
    for cluster in layout.others:
        ranks = layout.ranks(cluster)
        first = layout.before(cluster)
        if adjacent(ranks):
            whole = blocks("input", ranks[0], n_units, len(ranks))
        else:
            ops += copy_blocks(
                "input", "scratch", [(t, first + k) for k, t in enumerate(ranks)], n_units
            )
            whole = blocks("scratch", first, n_units, len(ranks))
        ops.append(Send(leader, whole, cluster))
    back = blocks("scratch", layout.n_remote, n_units, layout.n_remote)
    ops.append(Recv(leader, back, len(layout.grid.clusters)))
    for cluster in layout.others:
        first = layout.n_remote + layout.before(cluster)
        places = [(first + k, s) for k, s in enumerate(layout.ranks(cluster))]
        ops += copy_blocks("scratch", "output", places, n_units)
    return ops


def _lead(layout: _Layout, rank: int, n_units: int) -> list[Op]:
    """The leader: collect, exchange, sort, hand out."""
    members, ops = layout.members, list[Op]()
    for cluster in layout.others:
        ranks, first = layout.ranks(cluster), layout.leaves(cluster)
        ops += copy_blocks(
            "input", "scratch", [(t, first + k) for k, t in enumerate(ranks)], n_units
        )
        for at, member in enumerate(members[1:], start=1):
            place = blocks("scratch", first + at * len(ranks), n_units, len(ranks))
            ops.append(Recv(member, place, cluster))
        peer, count = ranks[0], len(members) * len(ranks)
        ops.append(Send(peer, blocks("scratch", first, n_units, count), layout.cluster))
        came = layout.came(cluster)
        ops.append(Recv(peer, blocks("scratch", came, n_units, count), cluster))
    for at, member in enumerate(members):
        for cluster in layout.others:
            sources, came = layout.ranks(cluster), layout.came(cluster)
            by_source = [came + k * len(members) + at for k in range(len(sources))]
            if member == rank:
                ops += copy_blocks(
                    "scratch", "output", zip(by_source, sources, strict=True), n_units
                )
            else:
                into = layout.sorted(at) + layout.before(cluster)
                places = [(b, into + k) for k, b in enumerate(by_source)]
                ops += copy_blocks("scratch", "scratch", places, n_units)
        if member != rank:
            whole = blocks("scratch", layout.sorted(at), n_units, layout.n_remote)
            ops.append(Send(member, whole, len(layout.grid.clusters)))
    return ops


@dataclass(frozen=True)
class _HubLayout:
    """Where blocks stand in a leader's scratch, counted in blocks.

    First the inputs of the other members, then their outputs. Then what leaves the cluster, by
    source, and what comes, by target; at the hub, that of every cluster.
    """

    grid: Grid
    hub: int

    @cached_property
    def ranks(self) -> list[tuple[int, ...]]:
        return [cluster.ranks for cluster in self.grid.clusters]

    @cached_property
    def remote(self) -> list[list[int]]:
        """By cluster, the ranks of all others."""
        everybody = range(self.grid.n_ranks)
        return [[r for r in everybody if self.grid.cluster_of[r] != c] for c in self.clusters]

    @property
    def clusters(self) -> range:
        return range(len(self.grid.clusters))

    @property
    def spokes(self) -> list[int]:
        return [cluster for cluster in self.clusters if cluster != self.hub]

    def input_of(self, at: int) -> Place:
        """Of the ``at``-th member, at its leader."""
        return ("scratch", (at - 1) * self.grid.n_ranks) if at else ("input", 0)

    def output_of(self, at: int, cluster: int) -> Place:
        n_others = len(self.ranks[cluster]) - 1
        return ("scratch", (n_others + at - 1) * self.grid.n_ranks) if at else ("output", 0)

    def crossing(self, cluster: int) -> int:
        """Blocks that leave ``cluster``, and as many that come."""
        return len(self.ranks[cluster]) * len(self.remote[cluster])

    @cached_property
    def _ends(self) -> list[list[int]]:
        """By cluster, where its leader keeps what crosses: the hub's, of every cluster."""
        ends = []
        for cluster in self.clusters:
            mine = [2 * (len(self.ranks[cluster]) - 1) * self.grid.n_ranks]
            for kept in self.clusters if cluster == self.hub else (cluster,):
                mine.append(mine[-1] + 2 * self.crossing(kept))
            ends.append(mine)
        return ends

    def leaves(self, at: int, cluster: int) -> int:
        """Where what leaves ``cluster`` begins, at the leader of cluster ``at``."""
        return self._ends[at][cluster if at == self.hub else 0]

    def comes(self, at: int, cluster: int) -> int:
        return self.leaves(at, cluster) + self.crossing(cluster)

    def scratch_blocks(self, rank: int) -> int:
        cluster = self.grid.cluster_of[rank]
        return self._ends[cluster][-1] if rank == self.ranks[cluster][0] else 0


def hub_blocks(grid: Grid, hub: int) -> int:
    """The blocks of scratch of the leader that needs most."""
    n, sizes = grid.n_ranks, [len(cluster) for cluster in grid.clusters]
    kept = [2 * (size - 1) * n for size in sizes]
    crossing = [2 * size * (n - size) for size in sizes]
    return max(kept[hub] + sum(crossing), *(k + c for k, c in zip(kept, crossing, strict=True)))


def plan_hub(grid: Grid, hub: int, n_units: int, label: str = "hub") -> Plan:
    """Everything through leaders, who meet at that of cluster ``hub``: of two clusters or more."""
    layout = _HubLayout(grid, hub)

    def program_of(rank: int) -> Program:
        cluster = grid.cluster_of[rank]
        leader = layout.ranks[cluster][0]
        if rank != leader:
            return (
                Send(leader, blocks("input", 0, n_units, grid.n_ranks), _UP),
                Recv(leader, blocks("output", 0, n_units, grid.n_ranks), _DOWN),
            )
        meet = _sort(layout, n_units) if cluster == hub else _meet(layout, cluster, n_units)
        return (
            *_collect(layout, cluster, n_units), *meet, *_hand_out(layout, cluster, n_units),
        )  # fmt: skip

    scratch = tuple(map(layout.scratch_blocks, range(grid.n_ranks)))
    return exchange_plan(label, n_units, Programs(grid.n_ranks, program_of), scratch)


def _copies(source: Place, into: Place, pairs: Iterable[tuple[int, int]], n_units: int) -> list[Op]:
    shifted = [(source[1] + a, into[1] + b) for a, b in pairs]
    return copy_blocks(source[0], into[0], shifted, n_units)


def _collect(layout: _HubLayout, cluster: int, n_units: int) -> list[Op]:
    """A leader: its members' inputs, and of these what leaves."""
    members, remote = layout.ranks[cluster], layout.remote[cluster]
    ops: list[Op] = []
    for at, member in enumerate(members):
        source = layout.input_of(at)
        if at:
            ops.append(Recv(member, blocks(*source, n_units, layout.grid.n_ranks), _UP))
        into = "scratch", layout.leaves(cluster, cluster) + at * len(remote)
        ops += _copies(source, into, ((rank, k) for k, rank in enumerate(remote)), n_units)
    return ops


def _meet(layout: _HubLayout, cluster: int, n_units: int) -> list[Op]:
    """The leader of another cluster: everything to the hub, everything from it."""
    peer, count = layout.ranks[layout.hub][0], layout.crossing(cluster)
    return [
        Send(peer, blocks("scratch", layout.leaves(cluster, cluster), n_units, count), _UP),
        Recv(peer, blocks("scratch", layout.comes(cluster, cluster), n_units, count), _DOWN),
    ]


def _sort(layout: _HubLayout, n_units: int) -> list[Op]:
    """The hub: what leaves clusters, by source, becomes what comes to clusters, by target."""
    hub, ranks, remote = layout.hub, layout.ranks, layout.remote
    ops: list[Op] = []
    for cluster in layout.spokes:
        place = blocks("scratch", layout.leaves(hub, cluster), n_units, layout.crossing(cluster))
        ops.append(Recv(ranks[cluster][0], place, _UP))
    place_of = {
        (source, target): layout.leaves(hub, cluster) + at * len(remote[cluster]) + k
        for cluster in layout.clusters
        for at, source in enumerate(ranks[cluster])
        for k, target in enumerate(remote[cluster])
    }
    for cluster in (*layout.spokes, hub):
        into = layout.comes(hub, cluster)
        pairs = [
            place_of[source, target] for target in ranks[cluster] for source in remote[cluster]
        ]
        ops += copy_blocks(
            "scratch", "scratch", ((place, into + k) for k, place in enumerate(pairs)), n_units
        )
        if cluster != hub:
            whole = blocks("scratch", into, n_units, layout.crossing(cluster))
            ops.append(Send(ranks[cluster][0], whole, _DOWN))
    return ops


def _hand_out(layout: _HubLayout, cluster: int, n_units: int) -> list[Op]:
    """A leader: its members' outputs, from neighbours and from what came."""
    members, remote = layout.ranks[cluster], layout.remote[cluster]
    ops: list[Op] = []
    for at, member in enumerate(members):
        into = layout.output_of(at, cluster)
        for k, neighbour in enumerate(members):
            ops += _copies(layout.input_of(k), into, [(member, neighbour)], n_units)
        came = "scratch", layout.comes(cluster, cluster) + at * len(remote)
        ops += _copies(came, into, enumerate(remote), n_units)
        if at:
            ops.append(Send(member, blocks(*into, n_units, layout.grid.n_ranks), _DOWN))
    return ops


@lru_cache(maxsize=64)
def leader_messages(grid: Grid, weights: Weights = ()) -> Messages:
    """Of `plan_leaders`: to leaders, between them, back, and inside."""
    clusters = [cluster.ranks for cluster in grid.clusters]
    sizes, members = _sizes(grid, weights)
    n_clusters, n_ranks = len(clusters), sum(sizes)
    found = list[tuple[float, ...]]()
    between: dict[tuple[int, int], int] = {}
    handed: dict[tuple[int, int], list[int]] = {}
    for c, ranks in enumerate(clusters):
        for d in ((c + step) % n_clusters for step in range(1, n_clusters)):
            handed[c, d] = list(range(len(found), len(found) + len(ranks) - 1))
            found += [_to_leader(member, ranks[0], sizes[d], members[c]) for member in ranks[1:]]
    for c, ranks in enumerate(clusters):
        for d in ((c + step) % n_clusters for step in range(1, n_clusters)):
            between[c, d] = len(found)
            found.append(_between_leaders(ranks[0], clusters[d][0], sizes[c] * sizes[d]))
    needs = [(between[link], k) for link, all_members in handed.items() for k in all_members]
    for c, ranks in enumerate(clusters):
        for member in ranks[1:]:
            needs += [(len(found), between[d, c]) for d in range(n_clusters) if d != c]
            found.append(_from_leader(ranks[0], member, n_ranks - sizes[c], members[c]))
    inside = [inside_rows(ranks, by_rank(grid, weights)) for ranks in clusters]
    return messages_of([table_of(found), *inside], [np.array(needs, int).reshape(-1, 2)])


@lru_cache(maxsize=64)
def hub_messages(grid: Grid, hub: int, weights: Weights = ()) -> Messages:
    """Of `plan_hub`: to leaders, to the hub, from it, and to members."""
    clusters = [cluster.ranks for cluster in grid.clusters]
    sizes, members = _sizes(grid, weights)
    n_ranks = sum(sizes)
    spokes = [c for c in range(len(clusters)) if c != hub]
    crossing = [size * (n_ranks - size) for size in sizes]
    found = list[tuple[float, ...]]()
    needs = list[tuple[int, int]]()
    handed: list[list[int]] = []
    for c, ranks in enumerate(clusters):
        handed.append(list(range(len(found), len(found) + len(ranks) - 1)))
        found += [_to_leader(member, ranks[0], n_ranks, members[c]) for member in ranks[1:]]
    to_hub = {}
    for c in spokes:
        needs += [(len(found), k) for k in handed[c]]
        to_hub[c] = len(found)
        found.append(_between_leaders(clusters[c][0], clusters[hub][0], crossing[c]))
    came = {hub: list(to_hub.values())}
    for c in spokes:
        others = [k for d, k in to_hub.items() if d != c] + handed[hub]
        needs += [(len(found), k) for k in others]
        came[c] = [len(found)]
        found.append(_between_leaders(clusters[hub][0], clusters[c][0], crossing[c]))
    for c, ranks in enumerate(clusters):
        for member in ranks[1:]:
            needs += [(len(found), k) for k in (*handed[c], *came[c])]
            found.append(_from_leader(ranks[0], member, n_ranks, members[c]))
    return messages_of([table_of(found)], [np.array(needs, int).reshape(-1, 2)])


def _sizes(grid: Grid, weights: Weights) -> tuple[list[float], list[float]]:
    """By cluster: all ranks, and for how many members besides the leader each one stands."""
    sampled = [len(cluster) for cluster in grid.clusters]
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

    def messages_of(some: Sample) -> Messages:
        part = some.model
        return hub_messages(part.grid, find_hub(part.latency_s), some.weights)

    predicted_s = priced_s(model, messages_of, n_bytes)
    return [Candidate.planned("leaders", label, predicted_s, partial(plan_hub, grid, hub))]


def by_host(grid: Grid) -> Grid:
    """The grid whose clusters are the hosts of ``grid``."""
    return grid.regroup(grid.host_of)


@algorithm(
    "alltoall",
    "nodes",
    "tiny blocks where several ranks share a host",
    "gridcoll; the leaders of 001 section 4.1, a host each",
)
def _nodes(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    hosts = by_host(model.grid)
    if not has_both(hosts) or leader_blocks(hosts) * n_bytes > MOST_COLLECTED_BYTES:
        return []
    n_messages = len(hosts.clusters) * (len(hosts.clusters) - 1)
    label = f"{n_messages} messages between hosts, through a rank of each"

    def messages_of(some: Sample) -> Messages:
        of_hosts, cluster_of = by_host(some.model.grid), some.model.grid.cluster_of
        weights = (some.weights[cluster_of[host.ranks[0]]] for host in of_hosts.clusters)
        return leader_messages(of_hosts, tuple(weights))

    predicted_s = priced_s(model, messages_of, n_bytes)
    return [Candidate.planned("nodes", label, predicted_s, partial(plan_leaders, hosts))]


alias("alltoall", "coordinator", "leaders")
