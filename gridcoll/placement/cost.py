"""The time of an iteration on subsets of clusters (paper 004, §2): of millions of subsets at once,
or of one subset with all its parts.

The formulas need only three sums over a subset (clusters, hosts, computing power) and a few maxima
(the slowest cluster in each phase, the narrowest link, the longest latency). A `Tally` holds these
for any number of subsets at once. Searches build tallies from one another, which is far cheaper
than from the subsets themselves.

The paper leaves two things open: which cluster the index j of equation (1) means (here the chosen
one with the least inter-cluster bandwidth: the equation is an upper bound), and what happens on one
cluster (here there is no inter-cluster exchange, and the cluster's own latency replaces l_WAN).
Hosts get elements in proportion to their power, 1 / Σ_j α_j.

If a host has several processes (the paper's future work), each computes on a core of its own, and α
is that of a process. They exchange among themselves through memory, which costs nothing. The host's
interface carries the faces of all their elements together, as if these were one part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gridcoll.errors import UsageError
from gridcoll.model.plogp import FloatArray
from gridcoll.placement.allreduce import PLAN, AllreducePrice, PricedAllreduce, find_form
from gridcoll.placement.problem import Problem
from gridcoll.placement.resources import IntArray, Resources, as_mask
from gridcoll.topology.units import parse_size_bytes

BoolArray = npt.NDArray[np.bool_]

# The penalty of a subset without enough memory, times the ratio of what is needed to what is there.
# It is above any real time and falls as clusters are added, so every search leaves such subsets.
MEMORY_PENALTY_S = 1e12
START_FORM = "two-level"


class Tally(NamedTuple):
    """What the formulas need to know about each subset.

    All arrays have the same shape; ``peaks`` has K rows of it. Row k of ``peaks`` is the maximum of
    row k of `IterationCost.peaks` over the clusters of the subset.
    """

    n_clusters: IntArray
    n_hosts: IntArray
    power: FloatArray
    peaks: FloatArray
    latency_s: FloatArray


class IterationCost:
    """A problem on a grid, ready for evaluation.

    Attributes
    ----------
    power : (C,) array
        Elements per second of a whole cluster.
    peaks : (K, C) array
        Rows: ``n_elements · α · power of a process`` of each phase, then the seconds per
        ``(elements)^(2/3)`` of inter- and of intra-cluster exchange, the local part of an
        ALLREDUCE, and the power below which memory is lacking. A subset pays the maximum of each.

    Raises `UsageError` on an unknown cluster, a cluster without its α or memory, an unknown form.
    """

    def __init__(
        self, problem: Problem, resources: Resources, allreduce_s: AllreducePrice | None = None
    ) -> None:
        self.problem = problem
        self.resources = resources
        self._allreduce = self._find_allreduce(allreduce_s)
        alpha_s = np.array(
            [
                per_cluster(f"phase {phase.name!r}: alpha_s", phase.alpha_s, resources)
                for phase in problem.phases
            ]
        )
        process_power: FloatArray = 1.0 / alpha_s.sum(axis=0)
        self.host_power: FloatArray = resources.processes * process_power
        self.power: FloatArray = resources.n_hosts * self.host_power
        self.peaks: FloatArray = np.vstack(
            [problem.n_elements * alpha_s * process_power, *self._rates(), self._memory_need()]
        )
        counts = np.arange(resources.n_clusters + 1)
        self._inter_scale = self._surface(counts)
        self._inter_scale[1] = 0.0  # one cluster exchanges with no other
        self._intra_scale = self._surface(np.arange(int(resources.n_hosts.sum()) + 1))

    def _find_allreduce(self, allreduce_s: AllreducePrice | None) -> PricedAllreduce | None:
        form = self.problem.allreduce.form
        if allreduce_s is not None:
            return PricedAllreduce(allreduce_s, self.resources)
        if form == PLAN:
            raise UsageError(
                "allreduce: form: 'plan' needs a function that prices gridcoll's allreduce"
            )
        find_form(form)
        return None

    def with_closed_allreduce(self) -> IterationCost:
        """Return the same with the ALLREDUCE in a closed form, good enough to start a search."""
        form = msgspec.structs.replace(self.problem.allreduce, form=START_FORM)
        return IterationCost(msgspec.structs.replace(self.problem, allreduce=form), self.resources)

    def _rates(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        update, resources = self.problem.update, self.resources
        nic = update.bandwidth_factor * resources.nic_bytes_per_s
        uplink = update.bandwidth_factor * resources.uplink_bytes_per_s
        inter = (
            update.face_bytes * update.beta_cluster / np.minimum(uplink, resources.n_hosts * nic)
        )
        intra = update.face_bytes * update.beta_host / nic
        if self._allreduce is not None:
            return inter, intra, np.zeros(resources.n_clusters)
        return inter, intra, find_form(self.problem.allreduce.form).local_s(resources)

    def _memory_need(self) -> FloatArray:
        memory = self.problem.memory
        if memory is None:
            return np.zeros(self.resources.n_clusters)
        sizes = (
            {name: float(parse_size_bytes(text)) for name, text in memory.host.items()}
            if isinstance(memory.host, Mapping)
            else float(parse_size_bytes(memory.host))
        )
        host_bytes = per_cluster("memory: host", sizes, self.resources)
        total_bytes = self.problem.n_elements * memory.element_bytes
        need: FloatArray = total_bytes * self.host_power / host_bytes
        return need

    def _surface(self, n_parts: IntArray) -> FloatArray:
        """Return the faces per β of each of ``n_parts`` equal parts; 0 for no parts."""
        scale = np.zeros(len(n_parts))
        scale[1:] = (self.problem.n_elements / n_parts[1:]) ** (2.0 / 3.0)
        return scale

    @property
    def n_clusters(self) -> int:
        return self.resources.n_clusters

    @property
    def is_closed(self) -> bool:
        """Whether tallies alone give times, as no ALLREDUCE is priced from outside."""
        return self._allreduce is None

    def tally(self, masks: BoolArray) -> Tally:
        """Return the tallies of ``masks``, (N, C) booleans."""
        latency_s = np.zeros(len(masks))
        for i in range(self.n_clusters):  # an (N, C, C) array would not fit into the cache
            to_i = np.where(masks, self.resources.latency_s[i], 0.0).max(axis=1, initial=0.0)
            np.maximum(latency_s, to_i * masks[:, i], out=latency_s)
        peaks = [np.where(masks, row, 0.0).max(axis=1, initial=0.0) for row in self.peaks]
        return Tally(
            masks.sum(axis=1, dtype=np.int64),
            masks @ self.resources.n_hosts,
            masks @ self.power,
            np.array(peaks),
            latency_s,
        )

    def closed_times(self, tally: Tally) -> FloatArray:
        """Return the seconds of an iteration for each tally; ``inf`` for no clusters.

        If an ALLREDUCE is priced from outside, this is a lower bound: see `extra_allreduce_s`.
        """
        problem, peaks = self.problem, tally.peaks
        n_phases = len(problem.phases)
        update_s = tally.latency_s + sum(self.exchange_s(tally))
        floor_ratio = 1.0 if self._allreduce is None else self._allreduce.floor_ratio
        allreduce_s = floor_ratio * tally.latency_s + peaks[n_phases + 2]
        with np.errstate(divide="ignore", invalid="ignore"):
            phase_s = peaks[:n_phases] / tally.power
            total = problem.allreduce.count * allreduce_s + self._phases_and_updates(
                phase_s, update_s
            )
            if problem.memory is not None:
                short = peaks[n_phases + 3] / tally.power
                total = total + np.where(short > 1.0, MEMORY_PENALTY_S * short, 0.0)
        return np.where(tally.n_clusters > 0, total, np.inf)

    def exchange_s(self, tally: Tally) -> tuple[FloatArray, FloatArray]:
        """Return the bandwidth terms of equation 1: seconds between clusters, and between hosts."""
        n_phases = len(self.problem.phases)
        return (
            tally.peaks[n_phases] * self._inter_scale[tally.n_clusters],
            tally.peaks[n_phases + 1] * self._intra_scale[tally.n_hosts],
        )

    def _phases_and_updates(self, phase_s: FloatArray, update_s: FloatArray) -> FloatArray:
        """Sum phases and UPDATEs; of an UPDATE and the phases that hide it, the longer counts.

        (Paper 004, §2.3.)
        """
        update = self.problem.update
        if update.mode == "blocking":
            return np.asarray(phase_s.sum(axis=0) + update.count * update_s)
        total = np.zeros_like(update_s)
        hiding = [np.zeros_like(update_s) for _ in range(update.count)]
        for phase, time_s in zip(self.problem.phases, phase_s, strict=True):
            if phase.overlaps_update is None:
                total = total + time_s
            else:
                hiding[phase.overlaps_update - 1] = hiding[phase.overlaps_update - 1] + time_s
        for time_s in hiding:
            total = total + np.maximum(time_s, update_s)
        return total

    def allreduce_s(self, clusters: tuple[int, ...]) -> float:
        """Return the seconds of one ALLREDUCE over ``clusters``."""
        latency_s = self._longest_latency_s(clusters)
        if self._allreduce is None:
            return latency_s + float(self.peaks[len(self.problem.phases) + 2, list(clusters)].max())
        return self._allreduce.price_s(clusters, latency_s)

    def extra_allreduce_s(self, clusters: tuple[int, ...]) -> float:
        """Return what ALLREDUCEs priced from outside add to `closed_times` of ``clusters``."""
        if self._allreduce is None:
            return 0.0
        floor_s = self._allreduce.floor_ratio * self._longest_latency_s(clusters)
        return self.problem.allreduce.count * max(self.allreduce_s(clusters) - floor_s, 0.0)

    def _longest_latency_s(self, clusters: tuple[int, ...]) -> float:
        return float(self.resources.latency_s[np.ix_(clusters, clusters)].max())

    def times(self, masks: BoolArray) -> FloatArray:
        """Return the seconds of an iteration on each of ``masks``, (N, C); ``inf`` for none."""
        return self.priced(self.closed_times(self.tally(masks)), masks)

    def priced(self, closed_s: FloatArray, masks: BoolArray) -> FloatArray:
        """Add the prices of ALLREDUCEs from outside, if any, to ``closed_s`` (N,) of ``masks``."""
        if self.is_closed:
            return closed_s
        extra_s = [
            self.extra_allreduce_s(tuple(map(int, np.flatnonzero(mask)))) if mask.any() else 0.0
            for mask in masks
        ]
        total: FloatArray = closed_s + np.array(extra_s)
        return total

    def time_s(self, clusters: tuple[int, ...]) -> float:
        """Return the seconds of an iteration on ``clusters``."""
        return float(self.times(as_mask(clusters, self.n_clusters)[None, :])[0])

    def lacks_memory(self, iteration_s: float) -> bool:
        """Whether a time is that of a subset without enough memory."""
        return iteration_s >= MEMORY_PENALTY_S


def per_cluster(field: str, value: float | Mapping[str, float], resources: Resources) -> FloatArray:
    """Return (C,) values from a number or a table by cluster.

    Raises `UsageError`, which names ``field``.
    """
    if not isinstance(value, Mapping):
        return np.full(resources.n_clusters, float(value))
    for name in value:
        if name not in resources.names:
            raise UsageError(
                f"{field}: cluster {name!r} is unknown; the grid has {', '.join(resources.names)}"
            )
    for name in resources.names:
        if name not in value:
            raise UsageError(f"{field}: nothing is said about cluster {name!r}")
    return np.array([float(value[name]) for name in resources.names])


class SubsetResult(Struct, frozen=True):
    """The best subset that a search has seen.

    ``n_evaluated`` counts the subsets whose time was computed (bounds, for a search that prunes).
    ``proven`` says that no subset at all is faster.
    """

    clusters: tuple[int, ...]
    iteration_s: float
    n_evaluated: int
    proven: bool = False


def result_of(
    cost: IterationCost, mask: BoolArray, n_evaluated: int, proven: bool = False
) -> SubsetResult:
    """Return the result for ``mask``. Its time is computed anew: equal subsets get equal times."""
    clusters = tuple(int(i) for i in np.flatnonzero(mask))
    return SubsetResult(clusters, cost.time_s(clusters), n_evaluated, proven)


class Prediction(Struct, frozen=True):
    """The time of an iteration on ``clusters``, and its parts.

    ``phase_s`` holds the times of the problem's phases in order. ``update_s`` is one UPDATE,
    ``latency_s + inter_s + intra_s``, and ``allreduce_s`` one ALLREDUCE. ``communication_s`` is all
    that is not computation: the ALLREDUCEs, and the part of the UPDATEs that no phase hides.
    ``elements_per_host`` has a value for each chosen cluster.
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
    """Return the time of an iteration on ``clusters`` with its parts.

    Raises `UsageError` if there are no clusters.
    """
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
