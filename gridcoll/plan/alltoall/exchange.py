"""All-to-all: its statement, and the helpers that every algorithm uses to move blocks.

A plan's ``n_units`` is the size of one block. Block ``j`` of a rank's input goes to rank ``j``;
block ``j`` of its output comes from rank ``j``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gridcoll.plan.blocks import cut_chunk
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Send
from gridcoll.plan.plan import ByRank, Plan, Programs
from gridcoll.plan.statements import Runs, Statement, moved, state
from gridcoll.topology.grid import Grid


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
    """Return the chunk of ``count`` blocks from block ``first`` on."""
    return Chunk(buffer, first * n_units, (first + count) * n_units)


def copy_blocks(source: str, into: str, pairs: Iterable[tuple[int, int]], n_units: int) -> list[Op]:
    """Return ops that copy block ``pairs[k][0]`` of one buffer to block ``pairs[k][1]`` of another.

    One op copies adjacent blocks that stay adjacent.
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
    """Return the op that copies the block that ``rank`` has for itself."""
    return Copy(blocks("input", rank, n_units), blocks("output", rank, n_units))


class ScratchBlocks:
    """Allocates scratch, counted in blocks, from its start."""

    def __init__(self) -> None:
        self.n_blocks = 0

    def __call__(self, n_blocks: int) -> int:
        """Allocate ``n_blocks`` and return the number of the first one."""
        first, self.n_blocks = self.n_blocks, self.n_blocks + n_blocks
        return first


class BlockWriter:
    """Writes ops that send and receive several blocks as one message, and counts scratch."""

    def __init__(self, n_units: int) -> None:
        self.n_units = n_units
        self.allocate = ScratchBlocks()

    def send(self, peer: int, source: str, where: Sequence[int], tag: int) -> list[Op]:
        """Send the blocks at ``where`` of a buffer, in this order.

        They are copied if they are not adjacent.
        """
        ops: list[Op] = []
        first = where[0]
        if list(where) != list(range(first, first + len(where))):
            first = self.allocate(len(where))
            pairs = [(block, first + k) for k, block in enumerate(where)]
            ops, source = copy_blocks(source, "scratch", pairs, self.n_units), "scratch"
        return [*ops, Send(peer, blocks(source, first, self.n_units, len(where)), tag)]

    def receive(self, peer: int, ranks: Sequence[int], tag: int, stream: int = 0) -> list[Op]:
        """Receive a message with a block for this rank from each of ``ranks``."""
        n = len(ranks)
        if list(ranks) == list(range(ranks[0], ranks[0] + n)):
            return [Recv(peer, blocks("output", ranks[0], self.n_units, n), tag, stream)]
        first = self.allocate(n)
        pairs = [(first + k, rank) for k, rank in enumerate(ranks)]
        return [
            Recv(peer, blocks("scratch", first, self.n_units, n), tag, stream),
            *copy_blocks("scratch", "output", pairs, self.n_units),
        ]


def exchange_plan(
    label: str, n_units: int, programs: Programs, scratch_blocks: Sequence[int] = ()
) -> Plan:
    """Return an all-to-all plan. For empty blocks, its programs are empty.

    If ``scratch_blocks`` is a `ByRank`, it is read only when the scratch of a rank is asked for.
    """
    if not n_units:
        programs = Programs(len(programs), lambda _rank: ())
    if n_units and isinstance(scratch_blocks, ByRank):
        scratch_units = ByRank(len(programs), lambda rank: scratch_blocks[rank] * n_units)
        return Plan("alltoall", label, n_units, -1, programs, scratch_units)
    scratch = tuple(count * n_units for count in scratch_blocks) if n_units else ()
    return Plan("alltoall", label, n_units, -1, programs, scratch if any(scratch) else ())


def pieces_of(buffer: str, rank: int, n_units: int, piece_units: int) -> list[Chunk]:
    """Return the block of ``rank`` in pieces of ``piece_units``, or whole if that is 0."""
    return cut_chunk(blocks(buffer, rank, n_units), piece_units or max(n_units, 1))


def exchange_inside(rank: int, members: tuple[int, ...], n_units: int, tag: int) -> list[Op]:
    """Return the ops of the exchange among the ``members`` of a cluster, all with one ``tag``."""
    at = members.index(rank)
    ops: list[Op] = []
    for step in range(1, len(members)):
        source = members[(at - step) % len(members)]
        target = members[(at + step) % len(members)]
        ops.append(Recv(source, blocks("output", source, n_units), tag))
        ops.append(Send(target, blocks("input", target, n_units), tag))
    return ops


def adjacent(ranks: tuple[int, ...]) -> bool:
    """Whether ``ranks``, which are sorted, are consecutive."""
    return ranks[-1] - ranks[0] + 1 == len(ranks)


def has_both(grid: Grid) -> bool:
    """Whether there are messages both inside clusters and between clusters."""
    return len(grid.clusters) > 1 and len(grid.clusters) < grid.n_ranks
