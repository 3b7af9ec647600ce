"""Run heuristics on many random grids and score them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from msgspec import Struct, field

from gridcoll.errors import UsageError
from gridcoll.schedule import HEURISTICS, Accounting, Batch, find_heuristic
from gridcoll.schedule.anytime import solve
from gridcoll.schedule.greedy import SEVEN
from gridcoll.schedule.instance import Floats
from gridcoll.study.parameters import PARAMETERS, Parameters, draw_batch

ENTRIES_PER_CHUNK = 1_000_000
"""Matrix entries worked on at a time: 8 MB per matrix."""

TIE = 1e-9
"""Makespans that differ by no more than this (relative) are taken as equal."""


class Setting(Struct, frozen=True):
    """What is simulated: everything that the results depend on."""

    parameters: Parameters = PARAMETERS["table2"]
    filling: str = "independent"
    internal: str = "given"
    accounting: Accounting = field(default_factory=Accounting)
    n_iterations: int = 10_000
    n_references: int = 0
    reference_steps: int = 2_000_000
    seed: int = 1

    def __post_init__(self) -> None:
        if self.n_iterations < 1:
            raise UsageError(f"iterations: must be at least 1, got {self.n_iterations}")
        if not 0 <= self.n_references <= self.n_iterations:
            raise UsageError(
                f"references: must be between 0 and the {self.n_iterations} iterations, "
                f"got {self.n_references}"
            )

    def chunk(self, n_clusters: int, index: int) -> Batch:
        """Return part of the instances. They depend only on seed, size and ``index``."""
        size = chunk_size(n_clusters)
        rng = np.random.default_rng([self.seed, n_clusters, index])
        n_left = self.n_iterations - index * size
        batch = draw_batch(
            self.parameters, rng, size, n_clusters,
            filling=self.filling, internal=self.internal, accounting=self.accounting,
        )  # fmt: skip
        if n_left >= size:
            return batch
        return Batch(
            batch.latency_s[:n_left], batch.gap_s[:n_left], batch.internal_s[:n_left],
            batch.root, batch.accounting,
        )  # fmt: skip


def chunk_size(n_clusters: int) -> int:
    """Return how many instances are worked on at a time."""
    return max(1, min(4096, ENTRIES_PER_CHUNK // n_clusters**2))


class Score(Struct, frozen=True):
    """The score of one heuristic at one number of clusters."""

    n_clusters: int
    heuristic: str
    label: str
    mean_s: float
    deviation_s: float
    """Mean makespan, and the standard deviation over instances."""
    hit_rate: float | None
    """The fraction of instances in which no other heuristic was faster; None for the reference."""
    excess: float | None
    as_good: float | None
    """Mean of makespan / reference - 1, and the fraction of instances in which the two are equal,
    over the instances for which the reference was computed."""
    n_iterations: int
    proven: float | None = None
    """For the reference: the fraction of its schedules proven optimal."""


def compare(
    setting: Setting,
    n_clusters: int,
    names: Sequence[str] = SEVEN,
    on_progress: Callable[[int], None] = lambda n_done: None,
) -> list[Score]:
    """Return the scores of ``names``, then of the reference (`best`) if the setting asks for it.

    The reference is slower and is run on the first ``n_references`` instances only. Its mean is
    that of the fastest heuristic over all instances, less the mean difference on those.
    """
    picks = [find_heuristic(name) for name in names]
    size = chunk_size(n_clusters)
    makespans = []
    references: list[tuple[float, bool]] = []
    for index in range(-(-setting.n_iterations // size)):
        batch = setting.chunk(n_clusters, index)
        makespans.append(np.stack([pick.pick_batch(batch).makespan_s for pick in picks]))
        on_progress(batch.n_instances)
        for k in range(min(batch.n_instances, setting.n_references - len(references))):
            found = solve(batch.instance(k), budget_steps=setting.reference_steps)
            references.append((found.makespan_s, found.is_optimal))
            on_progress(0)
    return _score(n_clusters, names, np.concatenate(makespans, axis=1), references)


def _score(
    n_clusters: int, names: Sequence[str], times: Floats, references: list[tuple[float, bool]]
) -> list[Score]:
    n_iterations = times.shape[1]
    fastest = times.min(axis=0)
    hits = (times <= fastest * (1 + TIE)).mean(axis=1)
    best = np.array([makespan for makespan, _ in references])
    with_reference = slice(0, len(best))
    scores = []
    for k, name in enumerate(names):
        ratio = times[k, with_reference] / best
        scores.append(
            Score(
                n_clusters,
                name,
                HEURISTICS[name].label,
                float(times[k].mean()),
                float(times[k].std()),
                float(hits[k]),
                float(ratio.mean() - 1) if references else None,
                float((ratio <= 1 + TIE).mean()) if references else None,
                n_iterations,
            )
        )
    if references:
        mean = float(fastest.mean() - (fastest[with_reference] - best).mean())
        proven = sum(ok for _, ok in references) / len(references)
        label = HEURISTICS["best"].label
        scores.append(
            Score(
                n_clusters,
                "best",
                label,
                mean,
                float(best.std()),
                None,
                0.0,
                1.0,
                len(best),
                proven,
            )
        )
    return scores
