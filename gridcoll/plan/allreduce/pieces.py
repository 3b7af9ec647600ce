"""Allreduce in pieces: reduce inside clusters, combine between them, broadcast inside, in segments.

The message is cut into pieces. Each piece has an owner in every cluster, which collects it from the
members. All owners of a piece combine it, or only the one in its home cluster, and distribute the
result. One piece owned by the coordinators is the papers' scheme for short messages (004 §2.2). A
piece per member is reduce-scatter, allreduce per lane and allgather, all at once. No op waits for a
phase: a segment is sent on as soon as it has arrived.

Every element is combined at one rank, or at all owners in the same order and at the same alignment
in memory, so that all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from gridcoll.plan.folding import Incoming, Slots, Term, fold, n_fold_slots
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import ByRank, Plan, Program, Programs
from gridcoll.plan.statements import Contribution, Statement, moved, state
from gridcoll.plan.trees import cut_segments
from gridcoll.schedule.trees import find_tree
from gridcoll.topology.grid import Grid

state(
    Statement(
        "allreduce",
        before=lambda plan, rank: {"input": [(plan.n_units, moved(rank))]},
        after=lambda plan, rank: {
            "output": [
                (plan.n_units, tuple(Contribution(other, 0) for other in range(plan.n_ranks)))
            ]
        },
    )
)

EVERYWHERE = -1
"""The home of a piece that all its owners combine."""

UP, DOWN = 0, 1
"""Streams: contributions go up, results go down."""


class Piece(Struct, frozen=True):
    """Units ``start`` to ``stop`` of the message.

    Attributes
    ----------
    owners : tuple of int
        ``owners[cluster]``: place in the cluster's `line` of the rank that collects it.
    home : int
        The cluster whose owner combines it: two WAN latencies, every byte crosses the WAN once.
        With `EVERYWHERE`, each owner gets all partial results and combines them: one WAN latency.
    """

    start: int
    stop: int
    owners: tuple[int, ...]
    home: int = EVERYWHERE

    def owner(self, grid: Grid, cluster: int) -> int:
        """Return the rank that collects this piece in ``cluster``."""
        return grid.clusters[cluster].line[self.owners[cluster]]


class Segment(NamedTuple):
    """Units ``start`` to ``stop`` of the message, a part of ``piece``."""

    piece: Piece
    start: int
    stop: int


def plan_allreduce(
    grid: Grid,
    n_units: int,
    pieces: Sequence[Piece],
    segment_units: int,
    shape: str,
    label: str = "",
) -> Plan:
    """Return an allreduce of ``n_units`` elements in ``pieces``, which cover the message.

    Segments have up to ``segment_units``. ``shape``, a name in `SHAPES`, is the shape of the tree
    inside clusters, whose root is the owner of the piece.
    """
    writer = _Writer(grid, n_units, tuple(pieces), segment_units, shape)
    scratch = ByRank(grid.n_ranks, writer.scratch_units)
    return Plan("allreduce", label, n_units, -1, Programs(grid.n_ranks, writer.program_of), scratch)


def keeps_rank_order(grid: Grid, pieces: Sequence[Piece], shape: str) -> bool:
    """Whether contributions are combined in rank order, as non-commutative operations need.

    Clusters must be intervals of ranks, and so must the subtrees inside them.
    """
    if any(c.line != tuple(range(c.ranks[0], c.ranks[0] + len(c))) for c in grid.clusters):
        return False
    if shape == "flat":
        return True
    return shape in ("chain", "binomial") and not any(any(piece.owners) for piece in pieces)


def cut_pieces(pieces: Sequence[Piece], segment_units: int) -> list[Segment]:
    """Return the segments of all ``pieces``: the first segment of each, then the second ones."""
    segments = [
        (k, Segment(piece, piece.start + start, piece.start + stop))
        for piece in pieces
        for k, (start, stop) in enumerate(cut_segments(piece.stop - piece.start, segment_units))
    ]
    segments.sort(key=lambda entry: (entry[0], entry[1].start))
    return [segment for _, segment in segments]


def own_first(grid: Grid, rank: int, segments: Sequence[Segment]) -> list[tuple[int, Segment]]:
    """Return ``segments`` with their numbers, beginning with the pieces that ``rank`` owns.

    Those of the next ranks follow, so that ranks do not all send to the same owner at a time.
    """
    cluster = grid.cluster_of[rank]
    place = grid.clusters[cluster].places[rank]
    owned = [s.start for s in segments if s.piece.owners[cluster] == place]
    first = min(owned, default=0)
    rounds: list[list[tuple[int, Segment]]] = []
    for number, segment in enumerate(segments):
        if not rounds or segment.start < rounds[-1][-1][1].start:
            rounds.append([])
        rounds[-1].append((number, segment))
    return [
        entry
        for entries in rounds
        for after_own in (False, True)
        for entry in entries
        if (entry[1].piece.start < first) == after_own
    ]


class _Place(Struct, frozen=True):
    """A rank's place in the tree of one piece."""

    parent: int
    children: tuple[int, ...]


class _Writer:
    """Writes programs. Scratch is the exchange zone, then slots for the terms being combined.

    The zone holds the partial results of all clusters and their sum, each as long as the message
    and at the same place on every owner. A vectorised operation may treat elements at other
    alignments differently, but all owners must get the same bits.
    """

    # A segment's number is its tag on the way up.

    def __init__(
        self, grid: Grid, n_units: int, pieces: tuple[Piece, ...], segment_units: int, shape: str
    ) -> None:
        self._grid = grid
        self._n_units = n_units
        self._shape = shape
        self._pieces = [piece for piece in pieces if piece.start < piece.stop]
        self._segments = cut_pieces(self._pieces, segment_units)

    def _place(self, rank: int, piece: Piece) -> _Place:
        """Return the place of ``rank`` in the tree of ``piece``.

        The tree is laid over the cluster's line, rotated so that the owner comes first.
        """
        cluster = self._grid.clusters[self._grid.cluster_of[rank]]
        line = cluster.line
        first, size = piece.owners[self._grid.cluster_of[rank]], len(line)
        parents, children = find_tree(self._shape, size)
        place = (cluster.places[rank] - first) % size
        parent = parents[place]
        return _Place(
            line[(parent + first) % size] if parent >= 0 else -1,
            tuple(line[(child + first) % size] for child in children[place]),
        )

    def _zone_units(self, rank: int) -> int:
        cluster = self._grid.cluster_of[rank]
        shared = len(self._grid.clusters) > 1 and any(
            piece.home == EVERYWHERE and piece.owner(self._grid, cluster) == rank
            for piece in self._pieces
        )
        return (len(self._grid.clusters) + 1) * self._n_units if shared else 0

    def scratch_units(self, rank: int) -> int:
        """Return the scratch of ``rank`` in units."""
        total = self._zone_units(rank)
        cluster, n_clusters = self._grid.cluster_of[rank], len(self._grid.clusters)
        for piece in self._pieces:
            place = self._place(rank, piece)
            n_slots = n_fold_slots(rank, place.children)
            if place.parent < 0 and piece.home == cluster and n_clusters > 1:
                others = [c for c in range(n_clusters) if c != cluster]
                n_slots += 1 + n_fold_slots(cluster, others)
            total += n_slots * (piece.stop - piece.start)
        return total

    def program_of(self, rank: int) -> Program:
        """Return the ops of ``rank``; for each segment, first those that go up, then down."""
        ops: list[Op] = []
        slots = Slots(self._zone_units(rank))
        cluster = self._grid.cluster_of[rank]
        segments = list(enumerate(self._segments))
        if (
            self._shape == "flat"
        ):  # in other shapes, a rank waits for data from others, in their order
            segments = own_first(self._grid, rank, self._segments)
        for tag, (piece, start, stop) in segments:
            place = self._place(rank, piece)
            terms: list[tuple[int, Term]] = [(rank, Chunk("input", start, stop))]
            terms += [(child, Incoming(child, tag, UP)) for child in place.children]
            result = Chunk("output", start, stop)
            if place.parent >= 0:
                if place.children:
                    fold(ops, terms, result, slots)
                    ops.append(Send(place.parent, result, tag))
                else:
                    ops.append(Send(place.parent, Chunk("input", start, stop), tag))
                ops.append(Recv(place.parent, result, tag + len(self._segments), DOWN))
            elif len(self._grid.clusters) == 1:
                fold(ops, terms, result, slots)
            elif piece.home == EVERYWHERE:
                self._exchange(ops, terms, cluster, piece, tag, result, slots)
            elif piece.home == cluster:
                self._combine(ops, terms, cluster, piece, tag, result, slots)
            else:
                fold(ops, terms, result, slots)
                home = piece.owner(self._grid, piece.home)
                ops.append(Send(home, result, tag))
                ops.append(Recv(home, result, tag + len(self._segments), DOWN))
            ops += [Send(child, result, tag + len(self._segments)) for child in place.children]
        return tuple(ops)

    def _exchange(
        self,
        ops: list[Op],
        terms: Sequence[tuple[int, Term]],
        cluster: int,
        piece: Piece,
        tag: int,
        result: Chunk,
        slots: Slots,
    ) -> None:
        """Send our partial result to all other owners, receive theirs, and combine all."""
        n_clusters = len(self._grid.clusters)
        zone = [
            Chunk("scratch", c * self._n_units + result.start, c * self._n_units + result.stop)
            for c in range(n_clusters + 1)
        ]
        fold(ops, terms, zone[cluster], slots)
        others = [c for c in range(n_clusters) if c != cluster]
        ops += [Send(piece.owner(self._grid, c), zone[cluster], tag) for c in others]
        ops += [Recv(piece.owner(self._grid, c), zone[c], tag, UP) for c in others]
        fold(ops, list(enumerate(zone[:-1])), zone[-1], slots)
        ops.append(Copy(zone[-1], result))

    def _combine(
        self,
        ops: list[Op],
        terms: Sequence[tuple[int, Term]],
        cluster: int,
        piece: Piece,
        tag: int,
        result: Chunk,
        slots: Slots,
    ) -> None:
        """Receive the partial results of all other owners, combine all, and send the result."""
        ours = slots(result.size)
        fold(ops, terms, ours, slots)
        others = [c for c in range(len(self._grid.clusters)) if c != cluster]
        partials: list[tuple[int, Term]] = [(cluster, ours)]
        partials += [(c, Incoming(piece.owner(self._grid, c), tag, UP)) for c in others]
        fold(ops, partials, result, slots)
        ops += [Send(piece.owner(self._grid, c), result, tag + len(self._segments)) for c in others]
