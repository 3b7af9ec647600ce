"""Betas corrected by a partitioner's real exchange counts (paper 004, §2.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from gridcoll.errors import UsageError
from gridcoll.placement.allreduce import AllreducePrice
from gridcoll.placement.cost import IterationCost, Prediction
from gridcoll.placement.problem import Problem
from gridcoll.placement.resources import Resources
from gridcoll.placement.searches import DEFAULT_SEARCH
from gridcoll.placement.selection import Selection, select

TOLERANCE = 0.05  # of the predicted time; less is within the model's own error (§2.3.1)
MAX_ROUNDS = 10


@dataclass(frozen=True)
class Exchanges:
    """What a partitioner found: the most faces of a host in its cluster, and of a cluster."""

    host_faces: float
    cluster_faces: float


Partitioner = Callable[[Problem, Selection], Exchanges]
"""Splits the mesh over ``selection.best`` and counts what is exchanged."""


@dataclass(frozen=True)
class Round:
    """One choice, what the partitioner made of it, and the time with betas that fit that."""

    selection: Selection
    exchanges: Exchanges
    corrected: Problem
    corrected_s: float


def correct_betas(problem: Problem, selection: Selection, exchanges: Exchanges) -> Problem:
    """``problem`` with the betas that reproduce ``exchanges`` on the selection's clusters.

    Raises `UsageError` on a negative count. One cluster exchanges with no other and says nothing
    of β_C, which stays.
    """
    return betas_on(problem, selection.best, exchanges)


def betas_on(problem: Problem, best: Prediction, exchanges: Exchanges) -> Problem:
    """`correct_betas` on the clusters of a prediction."""
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
    update = msgspec.structs.replace(
        problem.update, beta_host=exchanges.host_faces / per_host, beta_cluster=beta_cluster
    )
    return msgspec.structs.replace(problem, update=update)


def select_corrected(
    problem: Problem,
    resources: Resources,
    partition: Partitioner,
    search: str = DEFAULT_SEARCH,
    seed: int = 0,
    allreduce_s: AllreducePrice | None = None,
) -> tuple[Round, ...]:
    """Choose, partition, correct the betas, and choose again until the choice holds.

    It holds when the partitioner's counts change the predicted time by less than `TOLERANCE`, or
    when the same clusters come out again. After `MAX_ROUNDS`, or when choices go round in a
    circle, the last round given is the fastest as corrected. Raises `UsageError`.
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
