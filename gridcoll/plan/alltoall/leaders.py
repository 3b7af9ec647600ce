"""Aggregation at coordinators: one message per ordered pair of clusters, as PACX and MagPIe relay.

Members hand the blocks for each other cluster to their coordinator; coordinators exchange; each
sorts what came by receiver and hands it out. Coordinators need room for all that crosses.
"""

from __future__ import annotations

from dataclasses import dataclass

from gridcoll.plan.alltoall.exchange import blocks, copy_blocks, exchange_plan, keep_own
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.topology.grid import Grid


@dataclass(frozen=True)
class _Layout:
    """Where blocks stand in the scratch of one cluster's ranks, counted in blocks.

    A coordinator has, per other cluster: what leaves, by source then target; what came, the same;
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


def coordinator_blocks(grid: Grid) -> int:
    """The blocks of scratch of the coordinator that needs most."""
    return max(
        _Layout(grid, c).scratch_blocks(cluster.coordinator)
        for c, cluster in enumerate(grid.clusters)
    )


def plan_coordinator(grid: Grid, n_units: int, label: str = "coordinator") -> Plan:
    """One message per ordered pair of clusters, between coordinators; direct inside clusters."""
    layouts = [_Layout(grid, c) for c in range(len(grid.clusters))]

    def program_of(rank: int) -> Program:
        layout = layouts[grid.cluster_of[rank]]
        ops: list[Op] = []
        if len(grid.clusters) > 1:
            relay = _coordinate if rank == layout.members[0] else _hand_over
            ops = relay(layout, rank, n_units)
        members = layout.members
        at = members.index(rank)
        for step in range(1, len(members)):
            source = members[(at - step) % len(members)]
            target = members[(at + step) % len(members)]
            ops.append(Recv(source, blocks("output", source, n_units), grid.n_ranks))
            ops.append(Send(target, blocks("input", target, n_units), grid.n_ranks))
        return (*ops, keep_own(rank, n_units))

    scratch = tuple(layouts[grid.cluster_of[r]].scratch_blocks(r) for r in range(grid.n_ranks))
    return exchange_plan(label, n_units, Programs(grid.n_ranks, program_of), scratch)


def _hand_over(layout: _Layout, rank: int, n_units: int) -> list[Op]:
    """A member: a message per other cluster to the coordinator, one message back."""
    ops: list[Op] = []
    coordinator = layout.members[0]
    for cluster in layout.others:
        ranks = layout.ranks(cluster)
        first = layout.before(cluster)
        if ranks[-1] - ranks[0] + 1 == len(ranks):
            whole = blocks("input", ranks[0], n_units, len(ranks))
        else:
            ops += copy_blocks(
                "input", "scratch", [(t, first + k) for k, t in enumerate(ranks)], n_units
            )
            whole = blocks("scratch", first, n_units, len(ranks))
        ops.append(Send(coordinator, whole, cluster))
    back = blocks("scratch", layout.n_remote, n_units, layout.n_remote)
    ops.append(Recv(coordinator, back, len(layout.grid.clusters)))
    for cluster in layout.others:
        first = layout.n_remote + layout.before(cluster)
        places = [(first + k, s) for k, s in enumerate(layout.ranks(cluster))]
        ops += copy_blocks("scratch", "output", places, n_units)
    return ops


def _coordinate(layout: _Layout, rank: int, n_units: int) -> list[Op]:
    """The coordinator: collect, exchange, sort, hand out."""
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
