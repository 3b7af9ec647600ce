"""What a plan sends between clusters: messages and units, counted off its ops."""

from __future__ import annotations

from dataclasses import dataclass

from gridcoll.plan.ops import Send
from gridcoll.plan.plan import Plan
from gridcoll.topology.grid import Grid


@dataclass(frozen=True)
class Traffic:
    """Messages and units of a plan, by ordered pair of clusters.

    Attributes
    ----------
    messages, units : dict of (int, int) to int
        By sender's and receiver's cluster; inside a cluster both are the same.
    """

    messages: dict[tuple[int, int], int]
    units: dict[tuple[int, int], int]

    @property
    def n_inter_messages(self) -> int:
        """Messages between different clusters."""
        return sum(count for (i, j), count in self.messages.items() if i != j)

    @property
    def n_inter_units(self) -> int:
        """Units that cross between different clusters."""
        return sum(count for (i, j), count in self.units.items() if i != j)


def count_traffic(plan: Plan, grid: Grid) -> Traffic:
    """Count what ``plan`` sends over ``grid``."""
    messages: dict[tuple[int, int], int] = {}
    units: dict[tuple[int, int], int] = {}
    for rank, program in enumerate(plan.programs):
        for op in program:
            if isinstance(op, Send):
                link = grid.cluster_of[rank], grid.cluster_of[op.peer]
                messages[link] = messages.get(link, 0) + 1
                units[link] = units.get(link, 0) + op.chunk.size
    return Traffic(messages, units)
