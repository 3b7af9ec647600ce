"""LG with one message from neighbour to neighbour: a block of its own, and all it is to collect.

As in `alltoall_lg`, data crosses between two clusters in twice as many messages as the larger has
ranks; the local phase is one exchange of longer messages, rather than two. A rank of ``C`` clusters
of ``n`` sends ``n + C - 2`` messages, which is ``n C - 1`` in a direct exchange. It is for blocks
that cost less to copy twice than to send by themselves. Who collects so much more than others that
it has no room for more gets its own blocks by themselves, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from gridcoll.plan.alltoall.exchange import blocks, copy_blocks, exchange_plan, keep_own
from gridcoll.plan.alltoall.lg import Exchange, Message, adjacent, exchanges
from gridcoll.plan.ops import Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.topology.grid import Grid

PARCEL, OWN, ACROSS = range(3)
"""Tags."""


def parcels(all_exchanges: list[Exchange]) -> dict[tuple[int, int], list[int]]:
    """By source and collector: for whom the one has blocks that the other collects, in order."""
    found: dict[tuple[int, int], list[int]] = {}
    for exchange in all_exchanges:
        for collector, target, sources in exchange.messages:
            for source in sources:
                if source != collector:
                    found.setdefault((source, collector), []).append(target)
    return found


@dataclass(frozen=True)
class _Places:
    """Where blocks stand in the scratch of one rank.

    Attributes
    ----------
    packed, came : dict of int to int
        By neighbour, the first block of its parcel; but for those of nothing but a block of its
        own.
    collected : dict of int to int
        By receiver in another cluster, the first block of the message to it; but for those that
        carry nothing but this rank's own block. They take the room of parcels that have left.
    scattered : dict of int to int
        By collector in another cluster, the first block of its message; for those whose blocks are
        no neighbours in the output. They take the room of parcels that have been sorted, in turns
        if need be.
    n_blocks : int
    """

    packed: dict[int, int]
    came: dict[int, int]
    collected: dict[int, int]
    scattered: dict[int, int]
    n_blocks: int


@dataclass(frozen=True)
class _Desk:
    """One rank's part: its neighbours, what goes from one to another, and what crosses.

    ``full`` are the ranks that get their own blocks apart from what they are to collect.
    """

    rank: int
    neighbours: tuple[int, ...]
    parcels: dict[tuple[int, int], list[int]]
    out: tuple[Message, ...]
    come: tuple[Message, ...]
    full: frozenset[int] = frozenset()

    def gives(self, neighbour: int) -> list[int]:
        """Whose blocks are in the parcel to ``neighbour``."""
        return self._parcel(self.rank, neighbour)

    def gets(self, neighbour: int) -> list[int]:
        """Whose blocks are in the parcel from ``neighbour``."""
        return self._parcel(neighbour, self.rank)

    def _parcel(self, source: int, collector: int) -> list[int]:
        collected = self.parcels.get((source, collector), [])
        return collected if collected and collector in self.full else [*collected, collector]

    def places(self, most_blocks: int) -> _Places:
        """Lay out the scratch: ``most_blocks``, if one message after another needs no more."""
        packed, n_packed = _in_a_row(
            (mate, len(self.gives(mate))) for mate in self.neighbours if self.gives(mate) != [mate]
        )
        collected, n_collected = _in_a_row(
            (target, len(sources)) for _, target, sources in self.out if sources != (self.rank,)
        )
        first = max(n_packed, n_collected)
        came, n_came = _in_a_row(
            (mate, len(self.gets(mate)))
            for mate in self.neighbours
            if self.gets(mate) != [self.rank]
        )
        of_others = {m[0]: len(m[2]) for m in self.come if not adjacent(m[2])}
        room = max([n_came, *of_others.values()])
        room = max(room, min(sum(of_others.values()), most_blocks - first))
        scattered, at = {}, 0
        for collector, count in of_others.items():
            at = 0 if at + count > room else at
            scattered[collector] = first + at
            at += count
        came = {mate: first + place for mate, place in came.items()}
        return _Places(packed, came, collected, scattered, first + room)


def _in_a_row(sizes: Iterable[tuple[int, int]]) -> tuple[dict[int, int], int]:
    """Where each begins that has a size, one after another; and where the last ends."""
    begins, end = dict[int, int](), 0
    for key, size in sizes:
        begins[key] = end
        end += size
    return begins, end


def packed_blocks(grid: Grid) -> int:
    """The blocks of scratch of the rank that needs most.

    Between clusters of one size always less than two send buffers; where some ranks collect for
    many more than others, it may be more.
    """
    most_blocks = 2 * grid.n_ranks
    return max(desk.places(most_blocks).n_blocks for desk in _desks(grid))


def full_ranks(grid: Grid) -> frozenset[int]:
    """The ranks that get their own blocks apart from what they are to collect."""
    return _desks(grid)[0].full


def plan_lg_packed(grid: Grid, n_units: int, label: str = "lg-packed") -> Plan:
    """Parcels between neighbours, then LG's messages between clusters.

    Every block that moves is copied at its source, and once more at a collector or a neighbour.
    """
    desks = _desks(grid)
    places = [desk.places(2 * grid.n_ranks) for desk in desks]

    def program_of(rank: int) -> Program:
        desk, at = desks[rank], places[rank]
        ops = _receive_parcels(desk, at, n_units)
        ops += _receive_adjacent(desk, n_units)
        ops += _send_parcels(desk, at, n_units)
        ops += _send_across(desk, at, n_units)
        for mate, first in at.came.items():
            if rank not in desk.full:
                own = first + len(desk.gets(mate)) - 1
                ops += copy_blocks("scratch", "output", [(own, mate)], n_units)
        ops += _receive_scattered(desk, at, n_units)
        return (*ops, keep_own(rank, n_units))

    scratch = tuple(each.n_blocks for each in places)
    return exchange_plan(label, n_units, Programs(grid.n_ranks, program_of), scratch)


@lru_cache(maxsize=8)
def _desks(grid: Grid) -> list[_Desk]:
    all_exchanges = exchanges(grid)
    all_parcels = parcels(all_exchanges)
    out: list[list[Message]] = [[] for _ in range(grid.n_ranks)]
    come: list[list[Message]] = [[] for _ in range(grid.n_ranks)]
    for exchange in all_exchanges:
        for message in exchange.messages:
            out[message[0]].append(message)
            come[message[1]].append(message)
    found = []
    for rank in range(grid.n_ranks):
        members = grid.clusters[grid.cluster_of[rank]].ranks
        at = members.index(rank)
        mates = members[at + 1 :] + members[:at]
        found.append(_Desk(rank, mates, all_parcels, tuple(out[rank]), tuple(come[rank])))
    most_blocks = 2 * grid.n_ranks
    full = frozenset(each.rank for each in found if each.places(most_blocks).n_blocks > most_blocks)
    return [replace(each, full=full) for each in found] if full else found


def _receive_parcels(desk: _Desk, at: _Places, n_units: int) -> list[Op]:
    """From all neighbours; a block of our own that is by itself, straight to the output."""
    ops: list[Op] = []
    for mate in reversed(desk.neighbours):
        if mate in at.came:
            into = blocks("scratch", at.came[mate], n_units, len(desk.gets(mate)))
            ops.append(Recv(mate, into, PARCEL))
        if mate not in at.came or desk.rank in desk.full:
            ops.append(Recv(mate, blocks("output", mate, n_units), OWN))
    return ops


def _send_parcels(desk: _Desk, at: _Places, n_units: int) -> list[Op]:
    ops: list[Op] = []
    for mate in desk.neighbours:
        if mate in at.packed:
            given = list(enumerate(desk.gives(mate), start=at.packed[mate]))
            ops += copy_blocks("input", "scratch", [(to, place) for place, to in given], n_units)
            parcel = blocks("scratch", at.packed[mate], n_units, len(given))
            ops.append(Send(mate, parcel, PARCEL))
        else:
            ops.append(Send(mate, blocks("input", mate, n_units), OWN))
    apart = [mate for mate in desk.neighbours if mate in at.packed and mate in desk.full]
    return ops + [Send(mate, blocks("input", mate, n_units), OWN) for mate in apart]


def _send_across(desk: _Desk, at: _Places, n_units: int) -> list[Op]:
    """Put messages for other clusters together and send them."""
    ops: list[Op] = []
    for _, target, sources in desk.out:
        if target not in at.collected:
            ops.append(Send(target, blocks("input", target, n_units), ACROSS))
            continue
        first = at.collected[target]
        for place, source in enumerate(sources, start=first):
            if source == desk.rank:
                ops += copy_blocks("input", "scratch", [(target, place)], n_units)
            else:
                held = at.came[source] + desk.gets(source).index(target)
                ops += copy_blocks("scratch", "scratch", [(held, place)], n_units)
        ops.append(Send(target, blocks("scratch", first, n_units, len(sources)), ACROSS))
    return ops


def _receive_adjacent(desk: _Desk, n_units: int) -> list[Op]:
    """Messages of other clusters whose blocks are neighbours in the output, straight to it."""
    return [
        Recv(collector, blocks("output", sources[0], n_units, len(sources)), ACROSS)
        for collector, _, sources in desk.come
        if adjacent(sources)
    ]


def _receive_scattered(desk: _Desk, at: _Places, n_units: int) -> list[Op]:
    """The other messages of other clusters, by way of the scratch."""
    ops: list[Op] = []
    for collector, _, sources in desk.come:
        if not adjacent(sources):
            first = at.scattered[collector]
            ops.append(Recv(collector, blocks("scratch", first, n_units, len(sources)), ACROSS))
            ops += copy_blocks("scratch", "output", list(enumerate(sources, start=first)), n_units)
    return ops
