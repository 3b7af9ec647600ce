"""The bracket: one way to combine all ranks' contributions, whatever the grid, root or plan.

Contributions stand in rank order and are combined in pairs, pairs of pairs, and so on: ``((0 1)
(2 3)) ((4 5) 6)``. It is the order of mpi4py's reductions of objects, too. Ranks of one cluster
that make a whole part of it can combine that part among themselves.
"""

from __future__ import annotations

from functools import lru_cache
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


@lru_cache(maxsize=16)
def whole_blocks(cluster_of: tuple[int, ...]) -> tuple[Block, ...]:
    """The largest parts of the bracket that lie in one cluster each, in rank order.

    ``cluster_of[rank]`` names the rank's cluster.
    """
    n = len(cluster_of)
    run_ends = [n] * n  # where the next rank of another cluster is
    for rank in range(n - 2, -1, -1):
        alike = cluster_of[rank] == cluster_of[rank + 1]
        run_ends[rank] = run_ends[rank + 1] if alike else rank + 1
    found: list[Block] = []
    rest = [Block(0, n)]
    while rest:
        block = rest.pop()
        if block.stop <= run_ends[block.start]:
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
