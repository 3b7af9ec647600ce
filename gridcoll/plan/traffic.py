"""What goes between clusters: messages and units, planned or really sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gridcoll.plan.ops import Send
from gridcoll.plan.plan import Plan
from gridcoll.topology.grid import Grid

Link = tuple[int, int]


@dataclass(frozen=True)
class Traffic:
    """Messages and units, by ordered pair of clusters."""

    messages: Mapping[Link, int] = field(default_factory=Counter)
    units: Mapping[Link, int] = field(default_factory=Counter)
    """By sender's and receiver's cluster; inside a cluster both are the same. Units are those of
    the plan, or bytes where messages were counted as they were sent."""

    @property
    def n_inter_messages(self) -> int:
        """Messages between different clusters."""
        return sum(count for (i, j), count in self.messages.items() if i != j)

    @property
    def n_inter_units(self) -> int:
        """Units that cross between different clusters."""
        return sum(count for (i, j), count in self.units.items() if i != j)

    def since(self, earlier: Traffic) -> Traffic:
        """What was added after ``earlier``."""
        return Traffic(
            Counter(self.messages) - Counter(earlier.messages),
            Counter(self.units) - Counter(earlier.units),
        )


def traffic_of(grid: Grid, sent: Iterable[tuple[int, int, int, int]]) -> Traffic:
    """Add up ``(sender, receiver, messages, units)`` between ranks by the clusters of ``grid``."""
    messages: Counter[Link] = Counter()
    units: Counter[Link] = Counter()
    for sender, receiver, n_messages, n_units in sent:
        link = grid.cluster_of[sender], grid.cluster_of[receiver]
        messages[link] += n_messages
        units[link] += n_units
    return Traffic(messages, units)


def count_traffic(plan: Plan, grid: Grid) -> Traffic:
    """Count what ``plan`` sends over ``grid``."""
    return traffic_of(
        grid,
        (
            (rank, op.peer, 1, op.chunk.size)
            for rank, program in enumerate(plan.programs)
            for op in program
            if isinstance(op, Send)
        ),
    )
