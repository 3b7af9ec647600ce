"""Allreduce in pieces: reduce inside clusters, combine between them, broadcast inside, in segments.

The message is cut into pieces. Each piece has an owner in every cluster, which collects it from its
cluster. The owners of a piece combine it, all of them or one (its home), and distribute the result.
One piece owned by the coordinators is the papers' scheme for short messages (004 §2.2); a piece per
member is reduce-scatter, allreduce per lane and allgather, all at once. No op waits for a phase: a
segment goes on as soon as it is there.

Every element is combined at one rank, or at the owners in the same order and at the same places
in memory: all ranks get the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gridcoll.plan.folding import Incoming, Slots, Term, fold, n_fold_slots
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import ByRank, Plan, Program, Programs
from gridcoll.plan.statements import Contribution, Statement, moved, state
from gridcoll.plan.trees import cut_segments
from gridcoll.schedule.trees import find_shape
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


@dataclass(frozen=True)
class Piece:
    """Units ``start`` to ``stop`` of the message.

    Attributes
    ----------
    owners : tuple of int
        ``owners[cluster]``: place in the cluster's `line` of who collects it.
    home : int
        The cluster whose owner combines it: two WAN latencies, every byte crosses the WAN once.
        `EVERYWHERE`: each owner gets all partial results and combines them: one WAN latency.
    """

    start: int
    stop: int
    owners: tuple[int, ...]
    home: int = EVERYWHERE

    def owner(self, grid: Grid, cluster: int) -> int:
        """The rank that collects this piece in ``cluster``."""
        return grid.clusters[cluster].line[self.owners[cluster]]


class Segment(NamedTuple):
    """Units ``start`` to ``stop`` of the message, of ``piece``."""

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
    """Allreduce of ``n_units`` elements in ``pieces``, which cover the message.

    Segments have up to ``segment_units``. ``shape``, a name in `SHAPES`, is that of the tree inside
    clusters, its root at the piece's owner.
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
    """The segments of all ``pieces``: first all the first ones."""
    segments = [
        (k, Segment(piece, piece.start + start, piece.start + stop))
        for piece in pieces
        for k, (start, stop) in enumerate(cut_segments(piece.stop - piece.start, segment_units))
    ]
    segments.sort(key=lambda entry: (entry[0], entry[1].start))
    return [segment for _, segment in segments]


def own_first(grid: Grid, rank: int, segments: Sequence[Segment]) -> list[tuple[int, Segment]]:
    """``segments`` with their numbers, those of ``rank``'s own pieces first, then of the next
    ranks'.

    So not all ranks send to the same owner at the same time.
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
        for late in (False, True)
        for entry in entries
        if (entry[1].piece.start < first) == late
    ]


@lru_cache(maxsize=1024)
def _tree(shape: str, size: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Parents (-1 at the root) and children by place."""
    children = find_shape(shape).children(size)
    parents = [-1] * size
    for place, sends in enumerate(children):
        for child in sends:
            parents[child] = place
    return tuple(parents), children


@dataclass(frozen=True)
class _Place:
    """A rank's place in the tree of one piece."""

    parent: int
    children: tuple[int, ...]


class _Writer:
    """Writes programs. Scratch is the exchange zone, then slots for what is being combined.

    The zone holds the partial results of every cluster and the sum of all, each as long as the
    message and at the same place on every owner: a vectorised operation may treat elements of
    other alignments otherwise, and all owners must get the same bits.
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
        """The tree lies over the cluster's line turned so that the owner comes first."""
        cluster = self._grid.clusters[self._grid.cluster_of[rank]]
        line = cluster.line
        first, size = piece.owners[self._grid.cluster_of[rank]], len(line)
        parents, children = _tree(self._shape, size)
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
        """How much scratch ``rank`` needs."""
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
        """The ops of ``rank``; for each segment, first what goes up, then what comes down."""
        ops: list[Op] = []
        slots = Slots(self._zone_units(rank))
        cluster = self._grid.cluster_of[rank]
        segments = list(enumerate(self._segments))
        if self._shape == "flat":  # in others a rank waits for what others must send it in turn
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
        """Send our partial result to all other owners, get theirs, combine all."""
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
        """Get the partial results of all other owners, combine all, send them the result."""
        ours = slots(result.size)
        fold(ops, terms, ours, slots)
        others = [c for c in range(len(self._grid.clusters)) if c != cluster]
        partial: list[tuple[int, Term]] = [(cluster, ours)]
        partial += [(c, Incoming(piece.owner(self._grid, c), tag, UP)) for c in others]
        fold(ops, partial, result, slots)
        ops += [Send(piece.owner(self._grid, c), result, tag + len(self._segments)) for c in others]
