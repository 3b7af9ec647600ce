"""A tree over a grid: transfers between clusters, a shape inside each, and where they meet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from gridcoll.errors import PlanError, UsageError
from gridcoll.schedule.trees import find_shape
from gridcoll.topology.grid import Grid

SMALLEST_SEGMENT = 1024
"""Bytes; shorter messages cost hardly less."""

LARGEST_SEGMENT = 1 << 28
"""MPI counts bytes in an int, and a plan for a size class may serve messages twice as long."""


@dataclass(frozen=True)
class RankTree:
    """A tree over ranks: ``children[rank]`` in the order they are sent to."""

    root: int
    children: tuple[tuple[int, ...], ...]

    @cached_property
    def parent(self) -> tuple[int, ...]:
        """``parent[rank]``, -1 at the root. Raises `PlanError` unless it spans all ranks."""
        parent = [-1] * len(self.children)
        seen, frontier = {self.root}, [self.root]
        while frontier:
            rank = frontier.pop()
            for child in self.children[rank]:
                if child in seen:
                    raise PlanError(f"tree: rank {child} is reached twice")
                seen.add(child)
                parent[child] = rank
                frontier.append(child)
        if len(seen) != len(parent):
            missing = min(set(range(len(parent))) - seen)
            raise PlanError(f"tree: rank {missing} is not reached from root {self.root}")
        return tuple(parent)


def cut_segments(n_units: int, segment_units: int) -> tuple[tuple[int, int], ...]:
    """``(start, stop)`` of the segments of a message; the last one may be shorter.

    Raises `UsageError` for a segment size below one.
    """
    if segment_units < 1:
        raise UsageError(f"segment size: must be at least 1, got {segment_units}")
    return tuple(
        (start, min(start + segment_units, n_units)) for start in range(0, n_units, segment_units)
    )


@dataclass(frozen=True)
class GridTree:
    """A broadcast tree in terms of clusters, so that it can be priced without listing ranks.

    A cluster's members stand in a line: the rank the message enters at, then the others. Its shape
    is laid over that line; its relay is the place in the line that sends to other clusters.
    """

    root: int
    transfers: tuple[tuple[int, int], ...]
    """Sender and receiver cluster, in the order the sender sends."""
    shapes: tuple[str, ...]
    """``shapes[cluster]``, a name in `SHAPES`."""
    relays: tuple[int, ...]
    """``relays[cluster]``: place in the line. 0 is the coordinator; the last place makes a chain of
    chains, in which no rank sends anything twice."""
    lane: int = 0
    """Rotates the lines, so that several trees use the interfaces and flows of several hosts."""

    @cached_property
    def outgoing(self) -> tuple[tuple[int, ...], ...]:
        """``outgoing[cluster]``: the clusters it sends to, in order."""
        return tuple(
            tuple(receiver for sender, receiver in self.transfers if sender == cluster)
            for cluster in range(len(self.shapes))
        )

    def line(self, grid: Grid, cluster: int) -> tuple[int, ...]:
        """The ranks of ``cluster`` in the order the shape is laid over.

        Lane 0 is `Cluster.line` from the root, or the coordinator, on. In the root's cluster, other
        lanes turn the line behind the root, so that it ends at another member; elsewhere another
        one is first: lane after lane, each equally often.
        """
        members = grid.clusters[cluster]
        if cluster == grid.cluster_of[self.root]:
            return members.line_from(self.root, self.lane)
        return members.line_from(members.in_turns[self.lane % len(members)])

    def rank_at(self, grid: Grid, cluster: int, place: int) -> int:
        """The rank at ``place`` of the line of ``cluster``, without writing the line."""
        members = grid.clusters[cluster]
        of_root = cluster == grid.cluster_of[self.root]
        if place == 0:
            return self.root if of_root else members.in_turns[self.lane % len(members)]
        if members.shares_nodes:
            return self.line(grid, cluster)[place]
        ranks = members.ranks
        if not of_root:
            return ranks[(place + self.lane) % len(ranks)]
        turn = (place - 1 + self.lane) % (len(ranks) - 1)
        return ranks[(ranks.index(self.root) + 1 + turn) % len(ranks)]

    def expand(self, grid: Grid) -> RankTree:
        """The tree over ranks. A relay serves other clusters before its own."""
        lines = [self.line(grid, cluster) for cluster in range(len(grid.clusters))]
        children: list[tuple[int, ...]] = [()] * grid.n_ranks
        for cluster, line in enumerate(lines):
            inside = find_shape(self.shapes[cluster]).children(len(line))
            for place, rank in enumerate(line):
                children[rank] = tuple(line[child] for child in inside[place])
            if not 0 <= self.relays[cluster] < len(line):
                raise PlanError(
                    f"cluster {cluster}: relay place {self.relays[cluster]} of {len(line)}"
                )
            relay = line[self.relays[cluster]]
            outward = tuple(lines[receiver][0] for receiver in self.outgoing[cluster])
            children[relay] = outward + children[relay]
        return RankTree(self.root, tuple(children))


def chain_tree(
    grid: Grid, root: int, transfers: Iterable[tuple[int, int]], lane: int = 0
) -> GridTree:
    """A chain inside every cluster, whose last rank relays."""
    relays = tuple(len(cluster) - 1 for cluster in grid.clusters)
    return GridTree(root, tuple(transfers), ("chain",) * len(relays), relays, lane)
