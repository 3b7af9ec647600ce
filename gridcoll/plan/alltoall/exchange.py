"""All-to-all: what holds before and after it, and the blocks that every algorithm moves.

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
    """``count`` blocks from block ``first`` on."""
    return Chunk(buffer, first * n_units, (first + count) * n_units)


def copy_blocks(source: str, into: str, pairs: Iterable[tuple[int, int]], n_units: int) -> list[Op]:
    """Copy block ``pairs[k][0]`` of one buffer to block ``pairs[k][1]`` of another.

    Adjacent blocks that stay adjacent are copied by one op.
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


class Rooms:
    """Hands out scratch from the start on, counted in blocks."""

    def __init__(self) -> None:
        self.n_blocks = 0

    def __call__(self, n_blocks: int) -> int:
        """The first of ``n_blocks`` that are free."""
        first, self.n_blocks = self.n_blocks, self.n_blocks + n_blocks
        return first


def exchange_plan(
    label: str, n_units: int, programs: Programs, scratch_blocks: Sequence[int] = ()
) -> Plan:
    """An all-to-all plan; one of empty blocks does nothing at all.

    Scratch that is known by rank, as `ByRank`, is asked for no sooner than a rank's program.
    """
    if not n_units:
        programs = Programs(len(programs), lambda _rank: ())
    if n_units and isinstance(scratch_blocks, ByRank):
        later = ByRank(len(programs), lambda rank: scratch_blocks[rank] * n_units)
        return Plan("alltoall", label, n_units, -1, programs, later)
    scratch = tuple(count * n_units for count in scratch_blocks) if n_units else ()
    return Plan("alltoall", label, n_units, -1, programs, scratch if any(scratch) else ())


def pieces_of(buffer: str, rank: int, n_units: int, piece_units: int) -> list[Chunk]:
    """The block of ``rank``, cut; whole for ``piece_units`` of 0."""
    return cut_chunk(blocks(buffer, rank, n_units), piece_units or max(n_units, 1))


def exchange_inside(rank: int, members: tuple[int, ...], n_units: int, tag: int) -> list[Op]:
    """The exchange among the ``members`` of one cluster, all of it with the same ``tag``."""
    at = members.index(rank)
    ops: list[Op] = []
    for step in range(1, len(members)):
        source = members[(at - step) % len(members)]
        target = members[(at + step) % len(members)]
        ops.append(Recv(source, blocks("output", source, n_units), tag))
        ops.append(Send(target, blocks("input", target, n_units), tag))
    return ops


def adjacent(ranks: tuple[int, ...]) -> bool:
    """Whether ``ranks``, in order, are consecutive."""
    return ranks[-1] - ranks[0] + 1 == len(ranks)


def has_both(grid: Grid) -> bool:
    """Whether there are messages both inside a cluster and between two."""
    return len(grid.clusters) > 1 and len(grid.clusters) < grid.n_ranks
