"""Correct betas by a partitioner's exchange counts (paper 004, §2.2), or by the times of a run.

A run file is JSON:

    {"clusters": ["a", "b"], "iteration_s": [0.051, 0.049, ...],
     "host_faces": 1210, "cluster_faces": 830}

``host_faces`` and ``cluster_faces`` are the most faces of a host with others of its cluster, and of
a cluster with others, as a partitioner counts them; the betas follow from these. Then
``iteration_s`` corrects the rest: both betas are scaled until the predicted time is the median of
the measured times. Either the faces or the times may be left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gridcoll.errors import UsageError
from gridcoll.files import read_text, unfit
from gridcoll.placement.allreduce import AllreducePrice
from gridcoll.placement.cost import IterationCost, Prediction, predict
from gridcoll.placement.problem import Problem
from gridcoll.placement.resources import Resources
from gridcoll.placement.selection import DEFAULT_SEARCH, Selection, select

TOLERANCE = 0.05  # of the predicted time; smaller changes are within the model's error (§2.3.1)
MAX_ROUNDS = 10


class Exchanges(Struct, frozen=True):
    """A partitioner's counts: the most faces of a host within its cluster, and of a cluster."""

    host_faces: float
    cluster_faces: float


Partitioner = Callable[[Problem, Selection], Exchanges]
"""Splits the mesh over ``selection.best`` and counts what is exchanged."""


class Round(Struct, frozen=True):
    """One choice, the partitioner's counts for it, and the time with betas that fit these."""

    selection: Selection
    exchanges: Exchanges
    corrected: Problem
    corrected_s: float


def correct_betas(problem: Problem, selection: Selection, exchanges: Exchanges) -> Problem:
    """Return ``problem`` with the betas that reproduce ``exchanges`` on the selected clusters.

    A single cluster exchanges with no other, so β_C is left unchanged. Raises `UsageError` for a
    negative count.
    """
    return betas_on(problem, selection.best, exchanges)


def betas_on(problem: Problem, best: Prediction, exchanges: Exchanges) -> Problem:
    """Do what `correct_betas` does, on the clusters of a prediction."""
    for field in ("host_faces", "cluster_faces"):
        if not getattr(exchanges, field) >= 0:
            raise UsageError(
                f"exchanges: {field}: must not be negative, got {getattr(exchanges, field)}"
            )
    per_host = (problem.n_elements / best.n_hosts) ** (2.0 / 3.0)
    per_cluster = (problem.n_elements / len(best.clusters)) ** (2.0 / 3.0)
    beta_cluster = problem.update.beta_cluster
    if len(best.clusters) > 1:
        beta_cluster = exchanges.cluster_faces / per_cluster
    update = replace(
        problem.update, beta_host=exchanges.host_faces / per_host, beta_cluster=beta_cluster
    )
    return replace(problem, update=update)


def select_corrected(
    problem: Problem,
    resources: Resources,
    partition: Partitioner,
    search: str = DEFAULT_SEARCH,
    seed: int = 0,
    allreduce_s: AllreducePrice | None = None,
) -> tuple[Round, ...]:
    """Choose, partition, correct the betas, and choose again until the choice is stable.

    It is stable if the partitioner's counts change the predicted time by less than `TOLERANCE`, or
    if the same clusters are chosen again. After `MAX_ROUNDS`, or if choices repeat in a cycle, the
    fastest round after correction is returned last. Raises `UsageError`.
    """
    rounds: list[Round] = []
    for _ in range(MAX_ROUNDS):
        selection = select(IterationCost(problem, resources, allreduce_s), search, seed)
        seen = [entry.selection.best.clusters for entry in rounds]
        if selection.best.clusters in seen:
            if selection.best.clusters == seen[-1]:
                return tuple(rounds)
            break
        exchanges = partition(problem, selection)
        problem = correct_betas(problem, selection, exchanges)
        corrected_s = IterationCost(problem, resources, allreduce_s).time_s(selection.best.clusters)
        rounds.append(Round(selection, exchanges, problem, corrected_s))
        if abs(corrected_s / selection.best.iteration_s - 1.0) < TOLERANCE:
            return tuple(rounds)
    fastest = min(rounds, key=lambda entry: entry.corrected_s)
    return (*(entry for entry in rounds if entry is not fastest), fastest)


MAX_SCALE = 1e6


class Run(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run on some clusters; the module's docstring describes the fields."""

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


class Corrected(Struct, frozen=True):
    """``problem`` with corrected betas, and times on the run's clusters before and after."""

    problem: Problem
    predicted_s: float
    corrected_s: float
    measured_s: float | None


def read_run(path: Path) -> Run:
    """Read the run file at ``path``. Raises `FileError`, which names the field."""
    text = read_text(path, "run file")
    try:
        return msgspec.json.decode(text, type=Run)
    except (msgspec.DecodeError, UsageError) as error:
        raise unfit("run file", path, text, str(error)) from None


def correct_by_run(
    problem: Problem, resources: Resources, run: Run, allreduce_s: AllreducePrice | None = None
) -> Corrected:
    """Return the problem corrected by ``run``.

    If the run was faster than computation and latency alone, the betas become 0. Raises
    `UsageError` for a cluster that the grid lacks, or if no beta explains how slow the run was.
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
    """Scale both betas so that the predicted time is ``measured_s``; found by bisection."""

    def scaled(factor: float) -> Problem:
        update = replace(
            problem.update,
            beta_host=problem.update.beta_host * factor,
            beta_cluster=problem.update.beta_cluster * factor,
        )
        return replace(problem, update=update)

    def slower(factor: float) -> bool:
        cost = IterationCost(scaled(factor), resources, allreduce_s)
        return cost.time_s(chosen) >= measured_s

    if slower(0.0):
        return scaled(0.0)
    low, high = 0.0, 1.0
    while not slower(high):
        low, high = high, 2 * high
        if high > MAX_SCALE:
            raise UsageError(f"run: iteration_s: no beta makes an iteration {measured_s:g} s long")
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if slower(middle) else (middle, high)
    return scaled(high)
