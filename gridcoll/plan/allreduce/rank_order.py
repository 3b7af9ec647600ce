"""Reductions in rank order with one fixed bracketing: the same bits from every plan and root.

As in `pieces`, the message is cut into pieces with an owner in every cluster. Owners collect the
contributions of the members, combine complete parts of the bracketing, and send these to where the
piece is combined. If ranks are scattered over clusters, few parts are complete, and more data
crosses between clusters; this is the cost of rank order.

An owner has scratch for the parts of all ranks of its cluster at once. If that is too much for the
whole message, segments reuse the space in turn: a segment waits until an earlier one has left it.
This is done only for a message of one piece. Then all ranks process the segments in the same order,
and none waits for a later one. With several pieces, owners start with their own, and would wait for
each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate

import numpy as np
from msgspec.structs import replace

from gridcoll.constants import SMALLEST_PIECE_BYTES
from gridcoll.model.gridmodel import GridModel
from gridcoll.plan.allreduce.costs import (
    Pieces,
    costs_of,
    price_pieces,
    segment_units,
    unit_bytes_of,
)
from gridcoll.plan.allreduce.lanes import can_cut, cut_columns
from gridcoll.plan.allreduce.pieces import DOWN, EVERYWHERE, UP, Piece, cut_pieces, own_first
from gridcoll.plan.bracket import Block, whole_blocks
from gridcoll.plan.folding import Slots, align
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send
from gridcoll.plan.pacing import paced_by_links
from gridcoll.plan.plan import ByRank, Plan, Program, Programs
from gridcoll.plan.registry import Candidate, algorithm
from gridcoll.schedule.paths import find_hub
from gridcoll.topology.grid import Grid
from gridcoll.topology.units import format_size


def plan_in_rank_order(
    grid: Grid,
    n_units: int,
    pieces: Sequence[Piece],
    segment_units: int,
    root: int = -1,
    label: str = "",
    most_scratch: int | None = None,
) -> Plan:
    """Return an allreduce of ``n_units`` elements, or a reduction to ``root`` if that is a rank.

    The ``pieces`` cover the message; those of a reduction have a home. Segments have up to
    ``segment_units``. ``most_scratch`` limits the units of scratch of a rank for a message of one
    piece, but two segments always fit. Without it, no segment waits for the space of another.
    """
    writer = _Writer(grid, pieces, segment_units, root, most_scratch)
    scratch = ByRank(grid.n_ranks, lambda rank: writer.scratch_of(rank).n_units)
    collective = "allreduce" if root < 0 else "reduce"
    return Plan(
        collective, label, n_units, root, Programs(grid.n_ranks, writer.program_of), scratch
    )


class _Writer:
    """Writes programs. Each part that an owner combines and each result has a slot of scratch."""

    def __init__(
        self,
        grid: Grid,
        pieces: Sequence[Piece],
        segment_units: int,
        root: int,
        most_scratch: int | None,
    ) -> None:
        self._grid = grid
        self._root = root
        self._most_scratch = most_scratch if len(pieces) == 1 else None
        self._segments = cut_pieces(pieces, segment_units)

    @cached_property
    def _blocks(self) -> tuple[Block, ...]:
        return whole_blocks(self._grid.cluster_of)

    def _blocks_of(self, cluster: int) -> list[Block]:
        return [b for b in self._blocks if self._grid.cluster_of[b.start] == cluster]

    def _up_tag(self, segment: int, block: Block) -> int:
        """Return the tag of a part that goes up. The tags of results follow all of these."""
        return segment * self._grid.n_ranks + block.start

    def _down_tag(self, segment: int) -> int:
        return len(self._segments) * self._grid.n_ranks + segment

    def scratch_of(self, rank: int) -> _SegmentScratch:
        """Return the scratch of ``rank``."""
        cluster = self._grid.cluster_of[rank]
        ours = len(self._grid.clusters[cluster])
        n_all = ours + len(self._blocks) - len(self._blocks_of(cluster))
        needs = [
            (n_all if piece.home in (cluster, EVERYWHERE) else ours) * align(stop - start)
            for piece, start, stop in self._segments
            if piece.owner(self._grid, cluster) == rank
        ]
        return _SegmentScratch(needs, self._most_scratch)

    def program_of(self, rank: int) -> Program:
        """Return the ops of ``rank``; for each segment, first those that go up, then down."""
        ops: list[Op] = []
        cluster = self._grid.cluster_of[rank]
        ranks = self._grid.clusters[cluster].ranks
        at = ranks.index(rank)
        members = ranks[at + 1 :] + ranks[:at]  # each rank begins at the next one
        segment_scratch, n_owned = self.scratch_of(rank), 0
        for segment, (piece, start, stop) in own_first(self._grid, rank, self._segments):
            contribution, result = Chunk("input", start, stop), Chunk("output", start, stop)
            owner = piece.owner(self._grid, cluster)
            if rank != owner:
                ops.append(Send(owner, contribution, self._up_tag(segment, Block(rank, rank + 1))))
                source = owner if self._root < 0 else piece.owner(self._grid, piece.home)
            else:
                slots = Slots(segment_scratch.first(n_owned), aligned=True)
                n_owned += 1
                own = slots(stop - start)
                places = {Block(rank, rank + 1): own}
                ops.append(Copy(contribution, own))
                for member in members:
                    block = Block(member, member + 1)
                    self._receive(ops, member, segment, block, places, slots)
                self._combine_own(ops, rank, segment, places, slots)
                source = rank if piece.home == EVERYWHERE else piece.owner(self._grid, piece.home)
            if source != rank and self._root in (-1, rank):
                ops.append(Recv(source, result, self._down_tag(segment), DOWN))
            if rank == owner and self._root < 0:
                ops += [Send(member, result, self._down_tag(segment)) for member in members]
        return tuple(ops)

    def _receive(
        self,
        ops: list[Op],
        peer: int,
        segment: int,
        block: Block,
        places: dict[Block, Chunk],
        slots: Slots,
    ) -> None:
        _, start, stop = self._segments[segment]
        places[block] = slots(stop - start)
        ops.append(Recv(peer, places[block], self._up_tag(segment, block), UP))

    def _combine_own(
        self, ops: list[Op], rank: int, segment: int, places: dict[Block, Chunk], slots: Slots
    ) -> None:
        """Combine a cluster's parts; then send them to where all are combined, or combine all."""
        piece, start, stop = self._segments[segment]
        cluster = self._grid.cluster_of[rank]
        ours = {block: combine(ops, block, places) for block in self._blocks_of(cluster)}
        others = [c for c in range(len(self._grid.clusters)) if c != cluster]
        for other in others:
            if piece.home in (other, EVERYWHERE):
                owner = piece.owner(self._grid, other)
                ops += [Send(owner, c, self._up_tag(segment, block)) for block, c in ours.items()]
        if piece.home not in (cluster, EVERYWHERE):
            return
        for other in others:
            for block in self._blocks_of(other):
                self._receive(ops, piece.owner(self._grid, other), segment, block, ours, slots)
        result = combine(ops, Block(0, self._grid.n_ranks), ours)
        if self._root in (-1, rank):
            ops.append(Copy(result, Chunk("output", start, stop)))
        if self._root in (-1, rank) and piece.home == EVERYWHERE:
            return
        owners = [piece.owner(self._grid, c) for c in others]
        receivers = [self._root] if self._root >= 0 else owners
        ops += [
            Send(other, result, self._down_tag(segment)) for other in receivers if other != rank
        ]


def combine(ops: list[Op], block: Block, places: Mapping[Block, Chunk]) -> Chunk:
    """Append the ops that combine ``block`` from the parts in ``places``; return its place.

    MPI_Reduce_local writes its result over its right operand.
    """
    if block in places:
        return places[block]
    left, right = (combine(ops, half, places) for half in block.halves)
    ops.append(Reduce(left, right))
    return right


class _SegmentScratch:
    """Scratch for segments that need ``needs`` units each, one after another or in turns.

    Segments reuse space if they need more than ``most_units`` in all, and more than twice the
    largest need. ``needs`` is in the order of segments in the rank's program.
    """

    def __init__(self, needs: Sequence[int], most_units: int | None) -> None:
        largest = max(needs, default=0)
        self._firsts = list(accumulate(needs, initial=0))
        if most_units is not None and self._firsts[-1] > max(most_units, 2 * largest):
            n_at_once = max(most_units // largest, 2)
            self._firsts = [largest * k for k in range(n_at_once + 1)]
        self.n_units = self._firsts[-1]

    def first(self, n_before: int) -> int:
        """Return where the scratch of the segment after ``n_before`` others starts."""
        return self._firsts[n_before % (len(self._firsts) - 1)]


MOST_SCRATCH_BYTES = 64 << 20
"""Limit of the scratch of a rank that combines the whole message. For so many bytes, an interface
takes longer than any latency, so waiting for space costs no more than waiting for the interface."""


def _candidates(
    model: GridModel, n_bytes: int, cuts: dict[str, Pieces], root: int
) -> list[Candidate]:
    """Return each of ``cuts`` at its best segment size. ``root`` is -1 for an allreduce."""
    grid = model.grid
    counts = Counter(grid.cluster_of[block.start] for block in whole_blocks(grid.cluster_of))
    n_partials = [counts[cluster] for cluster in range(model.n_clusters)]
    most_terms = max(
        len(c) + sum(n_partials) - own for c, own in zip(grid.clusters, n_partials, strict=True)
    )
    fits = MOST_SCRATCH_BYTES // (2 * most_terms)  # two segments with all their terms
    found = []
    for how, cut in cuts.items():
        pieces = [piece for piece in cut(max(n_bytes, 1)) if piece.stop > piece.start]
        longest = max(piece.stop - piece.start for piece in pieces)
        costs = costs_of(model, n_bytes, min(longest, fits) if len(pieces) == 1 else longest)
        totals = price_pieces(costs, grid, pieces, n_partials, "flat", root)
        best = int(np.argmin(totals))
        segment = int(costs.segment_bytes[best])
        label = f"{how}; {format_size(segment)} segments"

        def build(
            n_units: int, cut: Pieces = cut, segment: int = segment, label: str = label
        ) -> Plan:
            size = segment_units(n_units, segment, n_bytes)
            most_units = MOST_SCRATCH_BYTES * n_units // max(n_bytes, 1)
            pieces = cut(n_units)
            plan = plan_in_rank_order(
                grid, n_units, pieces, size, root, f"rank-order: {label}", most_units
            )
            unit_bytes = unit_bytes_of(n_units, n_bytes)
            return paced_by_links(plan, model, unit_bytes, all_send=len(pieces) > 1)

        found.append(
            Candidate(
                "rank-order",
                label,
                float(totals[best]),
                build,
                None,
                segment,
                True,
            )
        )
    return found


def _offers_columns(model: GridModel, n_bytes: int, n_each: int) -> bool:
    """Whether a plan with columns, each cut into ``n_each``, is offered.

    It pays even if its pieces are shorter than others: otherwise few ranks receive from all.
    """
    grid = model.grid
    return n_bytes >= SMALLEST_PIECE_BYTES * grid.n_ranks and can_cut(grid, n_bytes, n_each, 1)


GOOD_FOR = "operations that do not commute on ranks dealt out over clusters; reproducible sums"
SOURCE = "gridcoll; the order of mpi4py's reductions of objects"


@algorithm("allreduce", "rank-order", GOOD_FOR, SOURCE, reproducible=True)
def _allreduce(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return allreduces: coordinators exchange, one of them combines, or members own parts."""
    grid, n = model.grid, model.n_clusters
    if grid.n_ranks == 1:
        return []
    hub = find_hub(model.latency_s)
    cuts: dict[str, Pieces] = {
        "leaders exchange": lambda n_units: [Piece(0, n_units, (0,) * n, EVERYWHERE)],
        "leaders meet at " + grid.clusters[hub].name: lambda n_units: [
            Piece(0, n_units, (0,) * n, hub)
        ],
    }
    if _offers_columns(model, n_bytes, 1):
        cuts["a part per member"] = lambda n_units: cut_columns(grid, n_units, False)
    if _offers_columns(model, n_bytes, n):
        cuts["a part per member and cluster"] = lambda n_units: cut_columns(grid, n_units, True)
    return _candidates(model, n_bytes, cuts, -1)


def reduce_in_rank_order(model: GridModel, n_bytes: int, root: int) -> list[Candidate]:
    """Return reductions: the root combines all, or its cluster's members or all ranks own parts."""
    grid = model.grid
    if grid.n_ranks == 1:
        return []
    home = grid.cluster_of[root]
    owners = tuple(
        cluster.places[root] if c == home else 0 for c, cluster in enumerate(grid.clusters)
    )
    cuts: dict[str, Pieces] = {"at the root": lambda n_units: [Piece(0, n_units, owners, home)]}
    if _offers_columns(model, n_bytes, 1):
        cuts["a part per member of the root's cluster"] = lambda n_units: [
            replace(piece, home=home) for piece in cut_columns(grid, n_units, False)
        ]
    if _offers_columns(model, n_bytes, model.n_clusters):
        cuts["a part per member and cluster"] = lambda n_units: cut_columns(grid, n_units, True)
    return _candidates(model, n_bytes, cuts, root)
