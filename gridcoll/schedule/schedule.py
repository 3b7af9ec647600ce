"""A schedule: transfers between clusters, their order and their times."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.schedule.instance import Instance


class Transfer(NamedTuple):
    """One message from the coordinator of a cluster to that of another."""

    sender: int
    receiver: int


class Schedule(Struct, frozen=True):
    """Ordered transfers that take a message from ``root`` to every cluster.

    Raises `UsageError` unless every cluster is reached exactly once, from one with the message.
    """

    n_clusters: int
    root: int
    transfers: tuple[Transfer, ...]
    """Every cluster but the root receives once, from a cluster that already has the message. Each
    sender sends in this order. The order of transfers of different senders has no meaning."""
    makespan_s: float
    """The latest end under the accounting that it was made for."""
    lower_bound_s: float = 0.0
    """A proven bound: no schedule ends earlier. The greedy heuristics compute none: 0."""

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
        """Whether `lower_bound_s` proves that no schedule is faster (within a factor 1 + 10⁻⁹)."""
        return self.makespan_s <= self.lower_bound_s * (1 + 1e-9)


def children(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """Return the clusters to which each cluster sends, in order; ``result[i]`` is of cluster i."""
    lists: list[list[int]] = [[] for _ in range(schedule.n_clusters)]
    for sender, receiver in schedule.transfers:
        lists[sender].append(receiver)
    return tuple(tuple(row) for row in lists)


def parents(schedule: Schedule) -> tuple[int | None, ...]:
    """Return the cluster from which each cluster receives; None for the root."""
    row: list[int | None] = [None] * schedule.n_clusters
    for sender, receiver in schedule.transfers:
        row[receiver] = sender
    return tuple(row)


class Timeline(Struct, frozen=True):
    """The times of a schedule, in seconds after the broadcast starts."""

    start_s: tuple[float, ...]
    """When each transfer starts, in the order of the schedule's transfers."""
    arrival_s: tuple[float, ...]
    """When each cluster has the message; 0 for the root."""
    free_s: tuple[float, ...]
    """When each cluster is free after its last send; its arrival if it sends nothing."""
    end_s: tuple[float, ...]
    """When each cluster's internal broadcast ends."""

    @property
    def makespan_s(self) -> float:
        return max(self.end_s)


def time_transfers(transfers: Iterable[tuple[int, int]], instance: Instance) -> Timeline:
    """Compute the times of ``transfers`` in this order under the instance's accounting.

    Raises `UsageError` if a sender does not have the message yet, or a cluster is not reached.
    """
    arrival: list[float | None] = [None] * instance.n_clusters
    free = [0.0] * instance.n_clusters
    arrival[instance.root] = 0.0
    starts = []
    for sender, receiver in transfers:
        if arrival[sender] is None:
            raise UsageError(f"transfer {sender} to {receiver}: the sender has no message yet")
        start = free[sender]
        starts.append(start)
        arrival[receiver] = free[receiver] = start + instance.cost_rows[sender][receiver]
        free[sender] = start + instance.busy_rows[sender][receiver]
    arrived = tuple(time for time in arrival if time is not None)
    if len(arrived) != len(arrival):
        raise UsageError(f"transfers reach {len(arrived)} of {len(arrival)} clusters")
    return Timeline(tuple(starts), arrived, tuple(free), _ends(arrived, free, instance))


def _ends(arrived: tuple[float, ...], free: list[float], instance: Instance) -> tuple[float, ...]:
    late = instance.accounting.internal == "after-last-send"
    begin = free if late else arrived
    return tuple(time + own for time, own in zip(begin, instance.internals, strict=True))


def timeline(schedule: Schedule, instance: Instance) -> Timeline:
    """Return the times of ``schedule`` on ``instance``."""
    return time_transfers(schedule.transfers, instance)


def make_schedule(
    transfers: Iterable[tuple[int, int]], instance: Instance, lower_bound_s: float = 0.0
) -> Schedule:
    """Return the schedule of ``transfers``, with its makespan on ``instance``."""
    ordered = tuple(Transfer(*pair) for pair in transfers)
    makespan = time_transfers(ordered, instance).makespan_s
    return Schedule(instance.n_clusters, instance.root, ordered, makespan, lower_bound_s)
