"""Aggregation at coordinators that meet at one: a message to it and one back per cluster.

Everything passes coordinators, neighbours' blocks too, so that a rank has one message to send and
one to wait for. Blocks between two other clusters pass the hub, and so cross two links: that costs
no time where the way over the hub is no longer than the straight one, and saves messages. With C
clusters 2(C - 1) cross instead of C(C - 1).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from gridcoll.plan.alltoall.exchange import blocks, copy_blocks, exchange_plan
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.topology.grid import Grid

_UP, _DOWN = range(2)  # tags

Place = tuple[str, int]
"""A buffer, and the block where something begins in it."""


@dataclass(frozen=True)
class _Layout:
    """Where blocks stand in a coordinator's scratch, counted in blocks.

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
        """Of the ``at``-th member, at its coordinator."""
        return ("scratch", (at - 1) * self.grid.n_ranks) if at else ("input", 0)

    def output_of(self, at: int, cluster: int) -> Place:
        n_others = len(self.ranks[cluster]) - 1
        return ("scratch", (n_others + at - 1) * self.grid.n_ranks) if at else ("output", 0)

    def crossing(self, cluster: int) -> int:
        """Blocks that leave ``cluster``, and as many that come."""
        return len(self.ranks[cluster]) * len(self.remote[cluster])

    @cached_property
    def _ends(self) -> list[list[int]]:
        """By cluster, where its coordinator keeps what crosses: the hub's, of every cluster."""
        ends = []
        for cluster in self.clusters:
            mine = [2 * (len(self.ranks[cluster]) - 1) * self.grid.n_ranks]
            for kept in self.clusters if cluster == self.hub else (cluster,):
                mine.append(mine[-1] + 2 * self.crossing(kept))
            ends.append(mine)
        return ends

    def leaves(self, at: int, cluster: int) -> int:
        """Where what leaves ``cluster`` begins, at the coordinator of cluster ``at``."""
        return self._ends[at][cluster if at == self.hub else 0]

    def comes(self, at: int, cluster: int) -> int:
        return self.leaves(at, cluster) + self.crossing(cluster)

    def scratch_blocks(self, rank: int) -> int:
        cluster = self.grid.cluster_of[rank]
        return self._ends[cluster][-1] if rank == self.ranks[cluster][0] else 0


def hub_blocks(grid: Grid, hub: int) -> int:
    """The blocks of scratch of the coordinator that needs most."""
    n, sizes = grid.n_ranks, [len(cluster) for cluster in grid.clusters]
    kept = [2 * (size - 1) * n for size in sizes]
    crossing = [2 * size * (n - size) for size in sizes]
    return max(kept[hub] + sum(crossing), *(k + c for k, c in zip(kept, crossing, strict=True)))


def plan_hub(grid: Grid, hub: int, n_units: int, label: str = "hub") -> Plan:
    """Everything through coordinators, who meet at that of cluster ``hub``.

    Parameters
    ----------
    grid : Grid
        Of two clusters or more.
    hub : int
        A cluster.
    n_units : int
        Size of a block.
    label : str
    """
    layout = _Layout(grid, hub)

    def program_of(rank: int) -> Program:
        cluster = grid.cluster_of[rank]
        coordinator = layout.ranks[cluster][0]
        if rank != coordinator:
            return (
                Send(coordinator, blocks("input", 0, n_units, grid.n_ranks), _UP),
                Recv(coordinator, blocks("output", 0, n_units, grid.n_ranks), _DOWN),
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


def _collect(layout: _Layout, cluster: int, n_units: int) -> list[Op]:
    """A coordinator: its members' inputs, and of these what leaves."""
    members, remote = layout.ranks[cluster], layout.remote[cluster]
    ops: list[Op] = []
    for at, member in enumerate(members):
        source = layout.input_of(at)
        if at:
            ops.append(Recv(member, blocks(*source, n_units, layout.grid.n_ranks), _UP))
        into = "scratch", layout.leaves(cluster, cluster) + at * len(remote)
        ops += _copies(source, into, ((rank, k) for k, rank in enumerate(remote)), n_units)
    return ops


def _meet(layout: _Layout, cluster: int, n_units: int) -> list[Op]:
    """The coordinator of another cluster: everything to the hub, everything from it."""
    peer, count = layout.ranks[layout.hub][0], layout.crossing(cluster)
    return [
        Send(peer, blocks("scratch", layout.leaves(cluster, cluster), n_units, count), _UP),
        Recv(peer, blocks("scratch", layout.comes(cluster, cluster), n_units, count), _DOWN),
    ]


def _sort(layout: _Layout, n_units: int) -> list[Op]:
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


def _hand_out(layout: _Layout, cluster: int, n_units: int) -> list[Op]:
    """A coordinator: its members' outputs, from neighbours and from what came."""
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
