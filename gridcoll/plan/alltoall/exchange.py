"""All-to-all: every rank has a block for every rank. Without regard to clusters: direct, pairwise.

A plan's ``n_units`` is the size of one block. Block ``j`` of a rank's input goes to rank ``j``;
block ``j`` of its output comes from rank ``j``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import Plan, Program, Programs
from gridcoll.plan.statements import Runs, Statement, moved, state
from gridcoll.plan.trees import cut_segments

N_PAIRWISE_SLOTS = 2
"""Sends that a rank has under way at once in a pairwise exchange."""


def _after(plan: Plan, rank: int) -> dict[str, Runs]:
    """Block ``j`` is what rank ``j`` had for ``rank``."""
    n = plan.n_units
    return {"output": [(n, moved(other, rank * n)) for other in range(plan.n_ranks)]}


state(
    Statement(
        "alltoall",
        before=lambda plan, rank: {"input": [(plan.n_ranks * plan.n_units, moved(rank))]},
        after=_after,
    )
)


def blocks(buffer: str, first: int, n_units: int, count: int = 1) -> Chunk:
    """``count`` blocks from block ``first`` on."""
    return Chunk(buffer, first * n_units, (first + count) * n_units)


def copy_blocks(source: str, into: str, pairs: Iterable[tuple[int, int]], n_units: int) -> list[Op]:
    """Copy block ``pairs[k][0]`` of one buffer to block ``pairs[k][1]`` of another.

    Neighbours that stay neighbours are one op.
    """
    runs: list[list[int]] = []
    for at, to in pairs:
        if runs and (at, to) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1][2] += 1
        else:
            runs.append([at, to, 1])
    return [
        Copy(blocks(source, at, n_units, count), blocks(into, to, n_units, count))
        for at, to, count in runs
    ]


def keep_own(rank: int, n_units: int) -> Copy:
    """The block that a rank has for itself."""
    return Copy(blocks("input", rank, n_units), blocks("output", rank, n_units))


def exchange_plan(
    label: str,
    n_units: int,
    programs: Programs,
    scratch_blocks: Sequence[int] = (),
) -> Plan:
    """An all-to-all plan; one of empty blocks does nothing at all."""
    if not n_units:
        programs = Programs(len(programs), lambda _rank: ())
    scratch = tuple(count * n_units for count in scratch_blocks)
    return Plan("alltoall", label, n_units, -1, programs, scratch if any(scratch) else ())


def pieces_of(buffer: str, rank: int, n_units: int, piece_units: int) -> list[Chunk]:
    """The block of ``rank``, cut; whole for ``piece_units`` of 0."""
    first = rank * n_units
    return [
        Chunk(buffer, first + start, first + stop)
        for start, stop in cut_segments(n_units, piece_units or max(n_units, 1))
    ]


def plan_direct(
    order: Sequence[int], n_units: int, label: str = "direct", piece_units: int = 0
) -> Plan:
    """Everybody sends every block to its receiver, all at once.

    Parameters
    ----------
    order : sequence of int
        All ranks. Each serves those after it in this order, going round, so that at no time all
        send to the same one.
    n_units : int
        Size of a block.
    label : str
    piece_units : int
        Blocks are cut into messages of this size: shorter ones need not wait for a rendezvous.
        0 leaves them whole.
    """
    place = {rank: k for k, rank in enumerate(order)}
    n_ranks = len(order)

    def program_of(rank: int) -> Program:
        at = place[rank]
        ops: list[Op] = []
        for step in range(1, n_ranks):
            source = order[(at - step) % n_ranks]
            target = order[(at + step) % n_ranks]
            come = pieces_of("output", source, n_units, piece_units)
            leave = pieces_of("input", target, n_units, piece_units)
            ops += (Recv(source, chunk, tag) for tag, chunk in enumerate(come))
            ops += (Send(target, chunk, tag) for tag, chunk in enumerate(leave))
        return (*ops, keep_own(rank, n_units))

    return exchange_plan(label, n_units, Programs(n_ranks, program_of))


def far_first_peers(
    clusters: Sequence[Sequence[int]], far_order: Sequence[Sequence[int]], rank: int
) -> list[int]:
    """The other ranks as `plan_far_first` serves them."""
    cluster, at = next((c, ranks.index(rank)) for c, ranks in enumerate(clusters) if rank in ranks)
    peers = [
        ranks[(at + step) % len(ranks)]
        for ranks in (clusters[c] for c in (*far_order[cluster], cluster))
        for step in range(len(ranks))
    ]
    return [peer for peer in peers if peer != rank]


def plan_far_first(
    clusters: Sequence[Sequence[int]],
    far_order: Sequence[Sequence[int]],
    n_units: int,
    label: str = "far-first",
    piece_units: int = 0,
) -> Plan:
    """A direct exchange in which blocks with a long way leave first.

    Parameters
    ----------
    clusters : sequence of sequence of int
        The ranks of each cluster. The ranks of one serve those of another each from another one
        on, so that they do not all send to the same.
    far_order : sequence of sequence of int
        By cluster, the others in the order they are served; its own members come last.
    n_units : int
        Size of a block.
    label : str
    piece_units : int
        As for `plan_direct`.
    """
    n_ranks = sum(map(len, clusters))

    def program_of(rank: int) -> Program:
        others = far_first_peers(clusters, far_order, rank)
        receives = [
            Recv(peer, chunk, tag)
            for peer in others
            for tag, chunk in enumerate(pieces_of("output", peer, n_units, piece_units))
        ]
        sends = [
            Send(peer, chunk, tag)
            for peer in others
            for tag, chunk in enumerate(pieces_of("input", peer, n_units, piece_units))
        ]
        return (*receives, *sends, keep_own(rank, n_units))

    return exchange_plan(label, n_units, Programs(n_ranks, program_of))


def plan_pairwise(n_ranks: int, n_units: int, label: str = "pairwise") -> Plan:
    """A direct exchange with only a few sends under way per rank.

    In step ``s`` rank ``r`` exchanges with ``r xor s`` where the number of ranks is a power of two,
    else it sends to ``r + s`` and receives from ``r - s``. Blocks leave through a few slots of
    scratch, so that a send starts when an earlier one has ended.
    """
    two_power = n_ranks & (n_ranks - 1) == 0

    def program_of(rank: int) -> Program:
        sends: list[Op] = []
        receives: list[Op] = []
        for step in range(1, n_ranks):
            source = rank ^ step if two_power else (rank - step) % n_ranks
            target = rank ^ step if two_power else (rank + step) % n_ranks
            slot = blocks("scratch", (step - 1) % N_PAIRWISE_SLOTS, n_units)
            receives.append(Recv(source, blocks("output", source, n_units), 0))
            sends.append(Copy(blocks("input", target, n_units), slot))
            sends.append(Send(target, slot, 0))
        return (*receives, *sends, keep_own(rank, n_units))

    slots = min(N_PAIRWISE_SLOTS, n_ranks - 1)
    return exchange_plan(label, n_units, Programs(n_ranks, program_of), (slots,) * n_ranks)
