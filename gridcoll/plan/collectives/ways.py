"""The ways that every rank's block takes to all others: a tree per owner, known by arithmetic.

An allgather sends every block down its owner's tree; a reduce-scatter combines it on the way up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate, zip_longest
from typing import NamedTuple, Protocol

from gridcoll.errors import PlanError
from gridcoll.plan.collectives.bcast import cut_segments
from gridcoll.topology.grid import Grid


class Ways(Protocol):
    """A tree per owner.

    ``order`` holds all ranks; blocks of owners soon before a rank in it are handled first.
    ``cluster_of[owner]`` is the stream that the owner's segments come over.
    """

    order: tuple[int, ...]
    stream_of: tuple[int, ...]

    def parent(self, owner: int, rank: int) -> int:
        """Who ``rank`` has the owner's block from; -1 for its owner."""

    def children(self, owner: int, rank: int) -> Sequence[int]:
        """Who ``rank`` hands the owner's block to, in order."""

    def upwards(self, rank: int) -> list[list[int]]:
        """All owners as ``rank`` serves them when blocks go up; those of a list side by side."""


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
    """Straight to every rank of the owner's cluster, and to one of each other cluster.

    That one hands it to its own. The members of a cluster take turns in doing so, whatever the
    sizes of clusters.
    """

    def __init__(self, grid: Grid) -> None:
        self._clusters = [cluster.ranks for cluster in grid.clusters]
        self.order = tuple(rank for ranks in self._clusters for rank in ranks)
        self.stream_of = grid.cluster_of
        self._place = {rank: at for at, rank in enumerate(self.order)}
        self._first = tuple(accumulate(map(len, self._clusters), initial=0))

    def entry(self, owner: int, cluster: int) -> int:
        """The rank of another cluster that the owner sends to."""
        ranks = self._clusters[cluster]
        turn = self._place[owner]
        if turn >= self._first[cluster]:
            turn -= len(ranks)
        return ranks[turn % len(ranks)]

    def parent(self, owner: int, rank: int) -> int:
        if rank == owner:
            return -1
        cluster = self.stream_of[rank]
        if cluster == self.stream_of[owner]:
            return owner
        entry = self.entry(owner, cluster)
        return owner if rank == entry else entry

    def children(self, owner: int, rank: int) -> Sequence[int]:
        cluster = self.stream_of[rank]
        if rank == owner:
            n = len(self._clusters)
            others = [self.entry(owner, (cluster + k) % n) for k in range(1, n)]
            return [*others, *self._neighbours(rank, cluster)]
        if cluster != self.stream_of[owner] and rank == self.entry(owner, cluster):
            return self._neighbours(rank, cluster)
        return ()

    def upwards(self, rank: int) -> list[list[int]]:
        """Other clusters' blocks first, all entries busy at any time; then ours, our own last."""
        home = self.stream_of[rank]
        ranks = self._clusters[home]
        far = [owner for owner in self.order if self.stream_of[owner] != home]
        turns = [far[k : k + len(ranks)] for k in range(0, len(far), len(ranks))]
        at = ranks.index(rank) + 1
        return [*([*turn[at:], *turn[:at]] for turn in turns), [*ranks[at:], *ranks[:at]]]

    def _neighbours(self, rank: int, cluster: int) -> Sequence[int]:
        """The others of the rank's cluster, each beginning after itself."""
        ranks = self._clusters[cluster]
        at = self._place[rank] - self._first[cluster]
        return ranks[at + 1 :] + ranks[:at]


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
