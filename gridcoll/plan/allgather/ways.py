"""Trees for the blocks of all ranks, one per owner, computed by arithmetic.

An allgather sends every block down its owner's tree; a reduce-scatter combines it on the way up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, zip_longest
from typing import NamedTuple, Protocol, TypeVar

from gridcoll.errors import PlanError
from gridcoll.plan.trees import cut_segments
from gridcoll.topology.grid import Grid

T = TypeVar("T")


class Ways(Protocol):
    """A tree per owner.

    ``order`` holds all ranks; a rank first handles blocks of owners shortly before it.
    ``stream_of[owner]`` is the stream that the owner's segments come over.
    """

    order: tuple[int, ...]
    stream_of: tuple[int, ...]

    def parent(self, owner: int, rank: int) -> int:
        """The rank that sends the owner's block to ``rank``; -1 for the owner."""

    def children(self, owner: int, rank: int) -> Sequence[int]:
        """The ranks to which ``rank`` forwards the owner's block, in order."""

    def upwards(self, rank: int) -> list[list[int]]:
        """All owners in the order of ``rank`` when blocks go up; those of a list at once."""


class RingWays:
    """From each rank to the next, around ``order``, ending before the owner."""

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

    def upwards(self, rank: int) -> list[list[int]]:
        at = self._place[rank] + 1
        return [[owner] for owner in (*self.order[at:], *self.order[:at])]


class LaneWays:
    """To one rank of each other cluster, to one of each other host of the own, and to those beside.

    A rank that gets it from outside forwards it likewise, in its cluster or host. So a block enters
    every host once. Members take turns in receiving, for any sizes of clusters and hosts.
    """

    def __init__(self, grid: Grid) -> None:
        self._entries = [cluster.in_turns for cluster in grid.clusters]
        self._nodes = [
            [tuple(process.rank for process in node) for node in cluster.nodes]
            for cluster in grid.clusters
        ]
        # Node by node: then the ranks of a node meet all other owners in one order.
        self.order = tuple(rank for cluster in grid.clusters for rank in cluster.line)
        self.stream_of = grid.cluster_of
        self._place = {rank: at for at, rank in enumerate(self.order)}
        self._first = tuple(accumulate(map(len, grid.clusters), initial=0))
        self._node_of = {
            rank: at for nodes in self._nodes for at, node in enumerate(nodes) for rank in node
        }

    def entry(self, owner: int, cluster: int) -> int:
        """The rank of another cluster that the owner sends to."""
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
            return owner
        node = self._node_of[rank]
        if node == self._node_of[source]:
            return source
        door = self._door(owner, self._nodes[self.stream_of[rank]][node])
        return source if rank == door else door

    def children(self, owner: int, rank: int) -> Sequence[int]:
        cluster = self.stream_of[rank]
        at, nodes = self._node_of[rank], self._nodes[cluster]
        source = self._source(owner, cluster)
        if rank != source and (at == self._node_of[source] or rank != self._door(owner, nodes[at])):
            return ()
        beside = _after(nodes[at], nodes[at].index(rank))
        if rank != source:
            return beside
        away = [self._door(owner, node) for node in _after(nodes, at)]
        if rank != owner:
            return [*away, *beside]
        n = len(self._nodes)
        return [*(self.entry(owner, (cluster + k) % n) for k in range(1, n)), *away, *beside]

    def upwards(self, rank: int) -> list[list[int]]:
        """Other clusters' blocks first, all entries busy at any time; then ours, our own last.

        In one order for all ranks of a node, whose sums one of them collects.
        """
        home = self.stream_of[rank]
        nodes, at = self._nodes[home], self._node_of[rank]
        beside = nodes[at]
        size, behind = len(self._entries[home]), self._place[beside[-1]] - self._first[home] + 1
        far = [owner for owner in self.order if self.stream_of[owner] != home]
        turns = [far[k : k + size] for k in range(0, len(far), size)]
        near = [owner for node in _after(nodes, at) for owner in node]
        own = beside.index(rank)
        return [
            *([*turn[behind:], *turn[:behind]] for turn in turns),
            [*near, *_after(beside, own), rank],
        ]

    def _source(self, owner: int, cluster: int) -> int:
        """The rank of ``cluster`` that gets the owner's block first."""
        return owner if self.stream_of[owner] == cluster else self.entry(owner, cluster)

    def _door(self, owner: int, node: tuple[int, ...]) -> int:
        """The rank of another node of a cluster that gets the owner's block first."""
        return node[self._place[owner] % len(node)]


def _after(things: Sequence[T], at: int) -> Sequence[T]:
    """All others, beginning with the one after ``things[at]``, going round."""
    return [*things[at + 1 :], *things[:at]]


class Segment(NamedTuple):
    """Units ``start`` to ``stop`` of the owner's block, counted from the first block's start."""

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
        """The segments of the owner's block."""
        start, tag = self.starts[owner], self._tags[owner]
        for k, (low, high) in enumerate(self._cuts[self._sizes[owner]]):
            yield Segment(owner, tag + k, start + low, start + high)


def side_by_side(segments: Segments, owners: Iterable[int]) -> Iterator[Segment]:
    """The first segments of all ``owners``, then the second ones, and so on."""
    for together in zip_longest(*(segments.of(owner) for owner in owners)):
        yield from (segment for segment in together if segment is not None)


def owners_before(ways: Ways, rank: int) -> list[int]:
    """All owners: ``rank`` itself, then those before it in the order of ``ways``, going round."""
    at = ways.order.index(rank)
    return [ways.order[(at - step) % len(ways.order)] for step in range(len(ways.order))]
