"""The bracket: one way to combine all ranks' contributions, whatever the grid, root or plan.

Contributions stand in rank order and are combined in pairs, pairs of pairs, and so on: ``((0 1)
(2 3)) ((4 5) 6)``. It is the order of mpi4py's reductions of objects, too. Ranks of one cluster
that make a whole part of it can combine that part among themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Block(NamedTuple):
    """A part of the bracket: ranks ``start`` to ``stop``."""

    start: int
    stop: int

    @property
    def halves(self) -> tuple[Block, Block]:
        """The two parts it is combined of; for two ranks or more."""
        middle = self.start + (1 << (self.stop - self.start - 1).bit_length() - 1)
        return Block(self.start, middle), Block(middle, self.stop)


def whole_blocks(cluster_of: Sequence[int]) -> tuple[Block, ...]:
    """The largest parts of the bracket that lie in one cluster each, in rank order.

    ``cluster_of[rank]`` names the rank's cluster.
    """
    found: list[Block] = []
    rest = [Block(0, len(cluster_of))]
    while rest:
        block = rest.pop()
        if len(set(cluster_of[block.start : block.stop])) == 1:
            found.append(block)
        else:
            rest += reversed(block.halves)
    return tuple(found)


def parent_in(block: Block, rank: int) -> int:
    """Whom ``rank`` sends its part of ``block`` to; -1 for the first rank, who gets all of it."""
    return rank & (rank - 1) if rank != block.start else -1


def children_in(block: Block, rank: int) -> tuple[int, ...]:
    """Whose parts of ``block`` ``rank`` appends to its own, in that order."""
    children = []
    step = 1
    while rank + step < block.stop and not rank & step:
        children.append(rank + step)
        step *= 2
    return tuple(children)
