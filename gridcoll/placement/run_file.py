"""What a run of the application measured, and the betas that it says are right (paper 004, §2.2).

A run file is JSON:

    {"clusters": ["a", "b"], "iteration_s": [0.051, 0.049, ...],
     "host_faces": 1210, "cluster_faces": 830}

``host_faces`` and ``cluster_faces`` are the most faces of a host with others of its cluster, and of
a cluster with others, as a partitioner counts them; with them the betas follow. ``iteration_s``
corrects what is left: both betas are scaled until the predicted time is the median of those
measured. Either may be left out.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gridcoll.errors import FileError, UsageError
from gridcoll.files import read_text
from gridcoll.placement.allreduce import AllreducePrice
from gridcoll.placement.correction import Exchanges, betas_on
from gridcoll.placement.cost import IterationCost, predict
from gridcoll.placement.problem import Problem
from gridcoll.placement.resources import Resources

MOST_SCALE = 1e6


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run on some clusters; see the module's text."""

    clusters: list[str]
    iteration_s: list[float] = []
    host_faces: float | None = None
    cluster_faces: float | None = None

    def __post_init__(self) -> None:
        if not self.clusters:
            raise UsageError("run: clusters: needs at least one")
        if not self.iteration_s and self.host_faces is None:
            raise UsageError("run: needs iteration_s, or host_faces and cluster_faces")
        if any(not second > 0 for second in self.iteration_s):
            raise UsageError("run: iteration_s: times must be positive")
        if (self.host_faces is None) != (self.cluster_faces is None):
            raise UsageError("run: host_faces and cluster_faces: give both or neither")


@dataclass(frozen=True)
class Corrected:
    """``problem`` with the betas that fit; times on the run's clusters before and after."""

    problem: Problem
    predicted_s: float
    corrected_s: float
    measured_s: float | None


def read_run(path: Path) -> Run:
    """The run at ``path``. Raises `FileError` naming the field."""
    try:
        return msgspec.json.decode(read_text(path, "run file"), type=Run)
    except (msgspec.DecodeError, UsageError) as error:
        raise FileError(f"run file {path}: {error}") from None


def correct_by_run(
    problem: Problem, resources: Resources, run: Run, allreduce_s: AllreducePrice | None = None
) -> Corrected:
    """The problem as ``run`` corrects it.

    A run faster than computing and latency alone take leaves betas of 0. Raises `UsageError` for a
    cluster that the grid lacks, and where no beta explains how slow the run was.
    """
    chosen = resources.indices(run.clusters)
    before = predict(IterationCost(problem, resources, allreduce_s), chosen)
    if run.host_faces is not None and run.cluster_faces is not None:
        problem = betas_on(problem, before, Exchanges(run.host_faces, run.cluster_faces))
    measured_s = statistics.median(run.iteration_s) if run.iteration_s else None
    if measured_s is not None:
        problem = _scaled_to(problem, resources, chosen, measured_s, allreduce_s)
    after_s = IterationCost(problem, resources, allreduce_s).time_s(chosen)
    return Corrected(problem, before.iteration_s, after_s, measured_s)


def _scaled_to(
    problem: Problem,
    resources: Resources,
    chosen: tuple[int, ...],
    measured_s: float,
    allreduce_s: AllreducePrice | None,
) -> Problem:
    """Both betas times what makes the predicted time ``measured_s``, found by halving."""

    def scaled(factor: float) -> Problem:
        update = msgspec.structs.replace(
            problem.update,
            beta_host=problem.update.beta_host * factor,
            beta_cluster=problem.update.beta_cluster * factor,
        )
        return msgspec.structs.replace(problem, update=update)

    def slower(factor: float) -> bool:
        cost = IterationCost(scaled(factor), resources, allreduce_s)
        return cost.time_s(chosen) >= measured_s

    if slower(0.0):
        return scaled(0.0)
    low, high = 0.0, 1.0
    while not slower(high):
        low, high = high, 2 * high
        if high > MOST_SCALE:
            raise UsageError(f"run: iteration_s: no beta makes an iteration {measured_s:g} s long")
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if slower(middle) else (middle, high)
    return scaled(high)
