"""Allgather: every rank's block goes to all, each down its owner's tree, segment by segment.

A plan's ``n_units`` is the size of one block, unless ranks have blocks of different sizes that all
ranks know.
"""

from __future__ import annotations

from collections.abc import Sequence

from gridcoll.plan.allgather.ways import Segments, Ways, owners_before
from gridcoll.plan.blocks import Messages, Standing, copy_runs
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.statements import Statement, moved, state
from gridcoll.schedule.trees import find_shape
from gridcoll.topology.grid import Grid

state(
    Statement(
        "allgather",
        before=lambda plan, rank: {"input": [(plan.block_units[rank], moved(rank))]},
        after=lambda plan, rank: {
            "output": [(size, moved(other)) for other, size in enumerate(plan.block_units)]
        },
    )
)


def plan_allgather(ways: Ways, sizes: Sequence[int], segment_units: int, label: str = "") -> Plan:
    """Allgather of blocks of ``sizes``, by rank.

    Parameters
    ----------
    ways : Ways
    sizes : sequence of int
    segment_units : int
        Longest segment.
    label : str
    """
    segments = Segments(sizes, segment_units)

    def program_of(rank: int) -> Program:
        ops: list[Op] = []
        ours = segments.starts[rank]
        for owner in owners_before(ways, rank):
            parent, children = ways.parent(owner, rank), ways.children(owner, rank)
            for _, tag, start, stop in segments.of(owner):
                chunk = Chunk("output", start, stop)
                if owner == rank:
                    chunk = Chunk("input", start - ours, stop - ours)
                else:
                    ops.append(Recv(parent, chunk, tag, ways.stream_of[owner]))
                ops += [Send(child, chunk, tag) for child in children]
        return (*ops, *_keep_own(rank, segments.starts))

    return _plan(sizes, label, Programs(len(sizes), program_of))


def _keep_own(rank: int, starts: Sequence[int]) -> list[Op]:
    start, stop = starts[rank], starts[rank + 1]
    own = Copy(Chunk("input", 0, stop - start), Chunk("output", start, stop))
    return [own] if start < stop else []


def _plan(
    sizes: Sequence[int], label: str, programs: Programs, scratch: tuple[int, ...] = ()
) -> Plan:
    even = len(set(sizes)) == 1
    blocks = () if even else tuple(sizes)
    return Plan("allgather", label, sizes[0] if even else 0, -1, programs, scratch, blocks)


def plan_coordinators(grid: Grid, sizes: Sequence[int], shape: str, label: str = "") -> Plan:
    """Coordinators collect their clusters' blocks, exchange them, and hand all out.

    Parameters
    ----------
    grid : Grid
    sizes : sequence of int
        Blocks by rank.
    shape : str
        Of the tree down which a coordinator hands out; a name in `SHAPES`.
    label : str
    """
    writer = _Coordinators(grid, sizes, shape)
    scratch = (writer.scratch_units,) * grid.n_ranks
    return _plan(sizes, label, Programs(grid.n_ranks, writer.program_of), scratch)


class _Coordinators:
    """A cluster's blocks travel together; where its ranks are no interval, by way of scratch."""

    def __init__(self, grid: Grid, sizes: Sequence[int], shape: str) -> None:
        self._grid = grid
        self._shape = shape
        self._output = Standing("output", range(grid.n_ranks), sizes)
        self._zones: list[Standing] = []
        self.scratch_units = 0
        for cluster in grid.clusters:
            ranks = cluster.ranks
            if ranks[-1] - ranks[0] == len(ranks) - 1:
                self._zones.append(self._output)
            else:
                self._zones.append(Standing("scratch", ranks, sizes, self.scratch_units))
                self.scratch_units += sum(sizes[rank] for rank in ranks)

    def program_of(self, rank: int) -> Program:
        clusters, home = self._grid.clusters, self._grid.cluster_of[rank]
        ranks, zone = clusters[home].ranks, self._zones[home]
        peers = _Peers()
        own = Chunk("input", 0, self._output.block(rank).size)
        ops: list[Op] = []
        if rank == ranks[0]:
            ops += [Copy(own, zone.block(rank))] if own.size else []
            for member in ranks[1:]:
                ops += peers[member].receive(zone.block(member))
            for other in self._others(home):
                for chunk in self._whole(home):
                    ops += peers[clusters[other].coordinator].send(chunk)
        else:
            ops += peers[ranks[0]].send(own)
        line = clusters[home].line
        below = find_shape(self._shape).children(len(line))
        place = clusters[home].places[rank]
        above = [line[v] for v, children in enumerate(below) if place in children]
        for cluster in (home, *self._others(home)):
            source = above or [clusters[cluster].coordinator] * (cluster != home)
            for chunk in self._whole(cluster):
                for peer in source:
                    ops += peers[peer].receive(chunk)
                for child in below[place]:
                    ops += peers[line[child]].send(chunk)
            if self._zones[cluster] is not self._output:
                ops += copy_runs(clusters[cluster].ranks, self._zones[cluster], self._output)
        return tuple(ops)

    def _others(self, home: int) -> list[int]:
        """The other clusters, each cluster beginning after itself."""
        n = len(self._grid.clusters)
        return [(home + k) % n for k in range(1, n)]

    def _whole(self, cluster: int) -> list[Chunk]:
        """All blocks of ``cluster``: one chunk, or none where all are empty."""
        return self._zones[cluster].runs(self._grid.clusters[cluster].ranks)


class _Peers(dict[int, Messages]):
    """The messages with every peer."""

    def __missing__(self, peer: int) -> Messages:
        self[peer] = Messages(peer)
        return self[peer]
