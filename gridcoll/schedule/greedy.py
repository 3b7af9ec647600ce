"""What all greedy heuristics share: clusters that have the message, and clusters that wait.

The papers' A and B are `Progress.reached` and `Progress.waiting`; RT is `Progress.ready_s`. Ties go
to the smallest sender, then to the smallest receiver.
"""

from __future__ import annotations

from collections.abc import Callable

from gridcoll.schedule.instance import Instance
from gridcoll.schedule.schedule import Schedule
from gridcoll.schedule.timeline import make_schedule

Choice = tuple[int, int]
"""A sender and a receiver."""


class Progress:
    """A broadcast half scheduled."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.reached = [instance.root]
        self.waiting = [j for j in range(instance.n_clusters) if j != instance.root]
        """Clusters without the message; those reached have it or are about to. Both ascend."""
        self.ready_s = [0.0] * instance.n_clusters
        """When each reached cluster can start its next send."""
        self.transfers: list[Choice] = []

    def send(self, sender: int, receiver: int) -> None:
        """Commit to one transfer."""
        start = self.ready_s[sender]
        self.ready_s[receiver] = start + self.instance.cost_rows[sender][receiver]
        self.ready_s[sender] = start + self.instance.busy_rows[sender][receiver]
        self.waiting.remove(receiver)
        self.reached.append(receiver)
        self.reached.sort()
        self.transfers.append((sender, receiver))

    def earliest(self, receiver: int) -> tuple[float, int]:
        """The earliest arrival at ``receiver`` from any reached cluster, and that cluster."""
        cost = self.instance.cost_rows
        return min((self.ready_s[i] + cost[i][receiver], i) for i in self.reached)


LookAhead = Callable[[Progress, int], float]
"""How useful a waiting cluster would be, once reached."""


def run_greedy(instance: Instance, choose: Callable[[Progress], Choice]) -> Schedule:
    """Let ``choose`` pick transfers until every cluster is reached."""
    progress = Progress(instance)
    while progress.waiting:
        progress.send(*choose(progress))
    return make_schedule(progress.transfers, instance)
