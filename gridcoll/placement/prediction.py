"""The time of an iteration on one subset, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from gridcoll.errors import UsageError
from gridcoll.placement.cost import IterationCost
from gridcoll.placement.resources import as_mask


@dataclass(frozen=True)
class Prediction:
    """The time of an iteration on ``clusters``, and its parts.

    ``phase_s`` are the times of the problem's phases in order; ``update_s`` is one UPDATE,
    ``latency_s + inter_s + intra_s``; ``allreduce_s`` one ALLREDUCE. ``communication_s`` is what
    is not computation: all ALLREDUCEs, and of the UPDATEs what no phase hides.
    ``elements_per_host`` is by chosen cluster.
    """

    clusters: tuple[int, ...]
    n_hosts: int
    iteration_s: float
    phase_s: tuple[float, ...]
    update_s: float
    latency_s: float
    inter_s: float
    intra_s: float
    allreduce_s: float
    elements_per_host: tuple[float, ...]

    @property
    def compute_s(self) -> float:
        return sum(self.phase_s)

    @property
    def communication_s(self) -> float:
        return self.iteration_s - self.compute_s


def predict(cost: IterationCost, clusters: tuple[int, ...]) -> Prediction:
    """The time of an iteration on ``clusters`` with its parts. Raises `UsageError` on none."""
    if not clusters:
        raise UsageError("clusters: needs at least one")
    tally = cost.tally(as_mask(clusters, cost.n_clusters)[None, :])
    power = float(tally.power[0])
    latency_s = float(tally.latency_s[0])
    inter_s, intra_s = (float(part[0]) for part in cost.exchange_s(tally))
    n_elements = cost.problem.n_elements
    return Prediction(
        clusters=clusters,
        n_hosts=int(tally.n_hosts[0]),
        iteration_s=cost.time_s(clusters),
        phase_s=tuple(float(row[0]) / power for row in tally.peaks[: len(cost.problem.phases)]),
        update_s=latency_s + inter_s + intra_s,
        latency_s=latency_s,
        inter_s=inter_s,
        intra_s=intra_s,
        allreduce_s=cost.allreduce_s(clusters),
        elements_per_host=tuple(float(n_elements * cost.host_power[i] / power) for i in clusters),
    )
