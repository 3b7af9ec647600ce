"""Trees for the blocks of all ranks, one per owner, computed by arithmetic.

An allgather sends every block down its owner's tree. A reduce-scatter combines it on the path up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, zip_longest
from typing import NamedTuple, Protocol, TypeVar

from gridcoll.errors import PlanError
from gridcoll.plan.paths import Paths
from gridcoll.plan.trees import cut_segments
from gridcoll.topology.grid import Grid

T = TypeVar("T")


class BlockTrees(Protocol):
    """A tree per owner of a block.

    ``order`` has all ranks. A rank first handles the blocks of the owners just before it in this
    order. ``stream_of[owner]`` is the stream of the owner's segments.
    """

    order: tuple[int, ...]
    stream_of: tuple[int, ...]

    def parent(self, owner: int, rank: int) -> int:
        """Return the rank that sends the owner's block to ``rank``; -1 for the owner."""

    def children(self, owner: int, rank: int) -> Sequence[int]:
        """Return the ranks to which ``rank`` forwards the owner's block, in order."""

    def upward_order(self, rank: int) -> list[list[int]]:
        """Return all owners in the order in which ``rank`` handles their blocks when these go up.

        The blocks of the owners in one list are handled at the same time.
        """


class RingTrees:
    """Chains from each rank to the next around ``order``, which end just before the owner."""

    def __init__(self, order: Sequence[int]) -> None:
        if sorted(order) != list(range(len(order))):
            raise PlanError(f"ring: must visit every rank once, got {list(order)}")
        self.order = tuple(order)
        self.stream_of = (0,) * len(order)
        self._place = {rank: at for at, rank in enumerate(order)}

    def parent(self, owner: int, rank: int) -> int:
        return -1 if rank == owner else self.order[self._place[rank] - 1]

    def children(self, owner: int, rank: int) -> Sequence[int]:
        following = self.order[(self._place[rank] + 1) % len(self.order)]
        return () if following == owner else (following,)

    def upward_order(self, rank: int) -> list[list[int]]:
        at = self._place[rank] + 1
        return [[owner] for owner in (*self.order[at:], *self.order[:at])]


class LaneTrees:
    """Trees in which a block enters every cluster and every host once.

    The owner sends its block to one rank of each other cluster, to one rank of each other host of
    its cluster, and to the other ranks of its host. A rank that gets the block from outside its
    cluster or host forwards it there in the same way. Members take turns in receiving, for any
    sizes of clusters and hosts.

    With ``paths``, a block of cluster ``i`` enters cluster ``j`` from cluster ``paths[i][j]``.
    """

    def __init__(self, grid: Grid, paths: Paths = ()) -> None:
        n = len(grid.clusters)
        self._previous = paths or [[c] * n for c in range(n)]
        self._next: dict[tuple[int, int], list[int]] = {}
        """The clusters to which blocks of one cluster go on from another one, by both."""
        for home, before in enumerate(self._previous):
            for c in [*range(home + 1, n), *range(home)]:
                self._next.setdefault((home, before[c]), []).append(c)
        self._entries = [cluster.in_turns for cluster in grid.clusters]
        self._nodes = [
            [tuple(process.rank for process in node) for node in cluster.nodes]
            for cluster in grid.clusters
        ]
        # Node by node, so that all ranks of a node meet other owners in the same order.
        self.order = tuple(rank for cluster in grid.clusters for rank in cluster.line)
        self.stream_of = grid.cluster_of
        self._place = {rank: at for at, rank in enumerate(self.order)}
        self._first = tuple(accumulate(grid.ranks_per_cluster, initial=0))
        self._node_of = {
            rank: at for nodes in self._nodes for at, node in enumerate(nodes) for rank in node
        }

    def entry(self, owner: int, cluster: int) -> int:
        """Return the rank of another cluster that gets the owner's block from outside."""
        ranks = self._entries[cluster]
        turn = self._place[owner]
        if turn >= self._first[cluster]:
            turn -= len(ranks)
        return ranks[turn % len(ranks)]

    def parent(self, owner: int, rank: int) -> int:
        if rank == owner:
            return -1
        source = self._source(owner, self.stream_of[rank])
        if rank == source:
            cluster = self._previous[self.stream_of[owner]][self.stream_of[rank]]
            return self._source(owner, cluster)
        node = self._node_of[rank]
        if node == self._node_of[source]:
            return source
        node_entry = self._node_entry(owner, self._nodes[self.stream_of[rank]][node])
        return source if rank == node_entry else node_entry

    def children(self, owner: int, rank: int) -> Sequence[int]:
        cluster = self.stream_of[rank]
        at, nodes = self._node_of[rank], self._nodes[cluster]
        source = self._source(owner, cluster)
        if rank != source and (
            at == self._node_of[source] or rank != self._node_entry(owner, nodes[at])
        ):
            return ()
        same_node = _others_after(nodes[at], nodes[at].index(rank))
        if rank != source:
            return same_node
        other_nodes = [self._node_entry(owner, node) for node in _others_after(nodes, at)]
        return [
            *(self.entry(owner, c) for c in self._next.get((self.stream_of[owner], cluster), ())),
            *other_nodes,
            *same_node,
        ]

    def upward_order(self, rank: int) -> list[list[int]]:
        """Return other clusters' blocks in one list, then those of our cluster, our own block last.

        All other clusters get their sums at the same time, so that no link waits for the sums of
        others, and all entry ranks are busy at any time. The order is the same for all ranks of a
        node, since one of them collects their sums. A block whose sum also comes in from other
        clusters is among the last ones, too.
        """
        home = self.stream_of[rank]
        nodes, at = self._nodes[home], self._node_of[rank]
        same_node = nodes[at]
        size, shift = len(self._entries[home]), self._place[same_node[-1]] - self._first[home] + 1
        elsewhere = [owner for owner in self.order if self.stream_of[owner] != home]
        relayed = [owner for owner in elsewhere if (self.stream_of[owner], home) in self._next]
        far_owners = [
            owner for owner in elsewhere if (self.stream_of[owner], home) not in self._next
        ]
        turns = [far_owners[k : k + size] for k in range(0, len(far_owners), size)]
        near_owners = [owner for node in _others_after(nodes, at) for owner in node]
        own = same_node.index(rank)
        far_owners = [owner for turn in turns for owner in [*turn[shift:], *turn[:shift]]]
        nearest = [*near_owners, *_others_after(same_node, own), *relayed, rank]
        return [far_owners, nearest] if far_owners else [nearest]

    def _source(self, owner: int, cluster: int) -> int:
        """Return the rank of ``cluster`` that gets the owner's block first."""
        return owner if self.stream_of[owner] == cluster else self.entry(owner, cluster)

    def _node_entry(self, owner: int, node: tuple[int, ...]) -> int:
        """Return the rank of another node of a cluster that gets the owner's block first."""
        return node[self._place[owner] % len(node)]


def _others_after(things: Sequence[T], at: int) -> Sequence[T]:
    """Return all things but ``things[at]``, beginning with the next one, going round."""
    return [*things[at + 1 :], *things[:at]]


class Segment(NamedTuple):
    """A part of the owner's block: units ``start`` to ``stop``, counted from the first block."""

    owner: int
    tag: int
    start: int
    stop: int


class Segments:
    """The blocks of all ranks, one after another in rank order, cut into numbered segments."""

    def __init__(self, sizes: Sequence[int], segment_units: int) -> None:
        self._cuts = {size: cut_segments(size, segment_units) for size in set(sizes)}
        self._sizes = sizes
        self.starts = tuple(accumulate(sizes, initial=0))

    @cached_property
    def _tags(self) -> tuple[int, ...]:
        return tuple(accumulate((len(self._cuts[size]) for size in self._sizes), initial=0))

    def of(self, owner: int) -> Iterator[Segment]:
        """Yield the segments of the owner's block."""
        start, tag = self.starts[owner], self._tags[owner]
        for k, (low, high) in enumerate(self._cuts[self._sizes[owner]]):
            yield Segment(owner, tag + k, start + low, start + high)


def side_by_side(segments: Segments, owners: Iterable[int]) -> Iterator[Segment]:
    """Yield the first segments of all ``owners``, then the second ones, and so on."""
    for same_index in zip_longest(*(segments.of(owner) for owner in owners)):
        yield from (segment for segment in same_index if segment is not None)


def owners_backwards(trees: BlockTrees, rank: int) -> list[int]:
    """Return all owners: ``rank`` itself, then backwards in the order of ``trees``, going round."""
    at = trees.order.index(rank)
    return [trees.order[(at - step) % len(trees.order)] for step in range(len(trees.order))]
