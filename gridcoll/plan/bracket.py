"""The bracket: a fixed order to combine all ranks' contributions, whatever the grid, root or plan.

Contributions are in rank order and are combined in pairs, pairs of pairs, and so on: ``((0 1)
(2 3)) ((4 5) 6)``. mpi4py's reductions of objects use the same order. If ranks of one cluster make
up a whole part of the bracket, they can combine that part among themselves.
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
        """The two parts that are combined to this one, which must have two ranks or more."""
        middle = self.start + (1 << (self.stop - self.start - 1).bit_length() - 1)
        return Block(self.start, middle), Block(middle, self.stop)


@lru_cache(maxsize=16)
def whole_blocks(cluster_of: tuple[int, ...]) -> tuple[Block, ...]:
    """Return the largest parts of the bracket that lie in one cluster each, in rank order.

    ``cluster_of[rank]`` is the cluster of ``rank``.
    """
    n = len(cluster_of)
    run_ends = [n] * n  # the next rank of another cluster
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
    """Return the rank to which ``rank`` sends its part of ``block``; -1 for the first rank."""
    return rank & (rank - 1) if rank != block.start else -1


def children_in(block: Block, rank: int) -> tuple[int, ...]:
    """Return the ranks whose parts of ``block`` the given rank appends to its own, in order."""
    children = []
    step = 1
    while rank + step < block.stop and not rank & step:
        children.append(rank + step)
        step *= 2
    return tuple(children)
