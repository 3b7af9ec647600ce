"""Trees over a grid: transfers between clusters, and a shape inside each cluster."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from msgspec import Struct

from gridcoll.errors import PlanError, UsageError
from gridcoll.schedule.trees import find_shape
from gridcoll.topology.grid import Grid

SMALLEST_SEGMENT = 1024
"""Bytes of the smallest segment; shorter messages take hardly less time."""

LARGEST_SEGMENT = 1 << 28
"""Bytes of the largest segment. MPI counts bytes in an int, and a plan for a size class may be used
for messages twice as long."""


class RankTree(Struct, frozen=True, dict=True):
    """A tree over ranks: ``children[rank]`` in the order in which the rank sends to them."""

    root: int
    children: tuple[tuple[int, ...], ...]

    @cached_property
    def parent(self) -> tuple[int, ...]:
        """``parent[rank]``, -1 for the root. Raises `PlanError` unless the tree spans all ranks."""
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
    """Return ``(start, stop)`` of each segment of a message; the last one may be shorter.

    Raises `UsageError` if the segment size is less than 1.
    """
    if segment_units < 1:
        raise UsageError(f"segment size: must be at least 1, got {segment_units}")
    return tuple(
        (start, min(start + segment_units, n_units)) for start in range(0, n_units, segment_units)
    )


class GridTree(Struct, frozen=True, dict=True):
    """A broadcast tree in terms of clusters, so that it can be priced without listing ranks.

    The members of a cluster form a line: first the rank at which the message enters, then the
    others. The shape of the cluster is laid over that line. The relay is the place in the line that
    sends to other clusters.
    """

    root: int
    transfers: tuple[tuple[int, int], ...]
    """Pairs of clusters (sender, receiver), in the order in which a sender sends."""
    shapes: tuple[str, ...]
    """``shapes[cluster]``, a name in `SHAPES`."""
    relays: tuple[int, ...]
    """``relays[cluster]``: a place in the line. Place 0 is the coordinator. If relays are at last
    places, chains make up a chain of chains, in which no rank sends anything twice."""
    lane: int = 0
    """Rotates the lines, so that several trees use the interfaces and flows of several hosts."""

    @cached_property
    def outgoing(self) -> tuple[tuple[int, ...], ...]:
        """``outgoing[cluster]``: the clusters to which it sends, in order."""
        return tuple(
            tuple(receiver for sender, receiver in self.transfers if sender == cluster)
            for cluster in range(len(self.shapes))
        )

    def line(self, grid: Grid, cluster: int) -> tuple[int, ...]:
        """Return the ranks of ``cluster`` in the order over which the shape is laid.

        Lane 0 is `Cluster.line` from the root or the coordinator on. In the root's cluster, other
        lanes rotate the line after the root, so that it ends at another member. In other clusters,
        another member is first; over all lanes, each member is first equally often.
        """
        members = grid.clusters[cluster]
        if cluster == grid.cluster_of[self.root]:
            return members.line_from(self.root, self.lane)
        return members.line_from(members.in_turns[self.lane % len(members)])

    def rank_at(self, grid: Grid, cluster: int, place: int) -> int:
        """Return the rank at ``place`` of the line of ``cluster``, without making the line."""
        members = grid.clusters[cluster]
        has_root = cluster == grid.cluster_of[self.root]
        if place == 0:
            return self.root if has_root else members.in_turns[self.lane % len(members)]
        if members.shares_nodes:
            return self.line(grid, cluster)[place]
        ranks = members.ranks
        if not has_root:
            return ranks[(place + self.lane) % len(ranks)]
        turn = (place - 1 + self.lane) % (len(ranks) - 1)
        return ranks[(ranks.index(self.root) + 1 + turn) % len(ranks)]

    def expand(self, grid: Grid) -> RankTree:
        """Return the tree over ranks. A relay sends to other clusters before its own."""
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
    """Return a tree with a chain inside every cluster, whose last rank is the relay."""
    relays = tuple(len(cluster) - 1 for cluster in grid.clusters)
    return GridTree(root, tuple(transfers), ("chain",) * len(relays), relays, lane)
