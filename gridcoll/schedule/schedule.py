"""A schedule: who sends to whom, in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gridcoll.errors import UsageError


class Transfer(NamedTuple):
    """One message from one cluster's coordinator to another's."""

    sender: int
    receiver: int


@dataclass(frozen=True)
class Schedule:
    """Ordered transfers that take a message from ``root`` to every cluster.

    Raises `UsageError` when the transfers do not reach every cluster exactly once from a holder.
    """

    n_clusters: int
    root: int
    transfers: tuple[Transfer, ...]
    """Every cluster but the root receives once, from a cluster that already has the message. Each
    sender sends in this order; between senders the order says nothing."""
    makespan_s: float
    """The latest end under the accounting it was made for."""
    lower_bound_s: float = 0.0
    """Proven: no schedule ends earlier. 0: not looked for (the greedy heuristics)."""

    def __post_init__(self) -> None:
        holders = {self.root}
        for place, (sender, receiver) in enumerate(self.transfers):
            if sender not in holders or receiver in holders:
                raise UsageError(
                    f"transfer {place} ({sender} to {receiver}): the sender must have the message "
                    f"and the receiver must not; {sorted(holders)} have it"
                )
            holders.add(receiver)
        if holders != set(range(self.n_clusters)):
            raise UsageError(
                f"schedule: must reach clusters 0..{self.n_clusters - 1}, reaches {sorted(holders)}"
            )

    @property
    def is_optimal(self) -> bool:
        """Whether `lower_bound_s` proves that nothing is faster (to a part in 10⁹)."""
        return self.makespan_s <= self.lower_bound_s * (1 + 1e-9)


def children(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """The clusters each cluster sends to, in its order; ``result[i]`` belongs to cluster i."""
    lists: list[list[int]] = [[] for _ in range(schedule.n_clusters)]
    for sender, receiver in schedule.transfers:
        lists[sender].append(receiver)
    return tuple(tuple(row) for row in lists)


def parents(schedule: Schedule) -> tuple[int | None, ...]:
    """The cluster each cluster receives from; None for the root."""
    row: list[int | None] = [None] * schedule.n_clusters
    for sender, receiver in schedule.transfers:
        row[receiver] = sender
    return tuple(row)
