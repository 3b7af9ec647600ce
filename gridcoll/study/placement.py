"""Paper 004's comparison of the searches (Tables 1 to 3)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from gridcoll.errors import UsageError
from gridcoll.placement import SEARCHES
from gridcoll.study.placement_cases import CASE_KINDS, LEVEL, CaseKind

SAME = 1e-9  # relative; nearer than this, two searches found equally good subsets


@dataclass(frozen=True)
class Row:
    """How one search did: cases lost per thousand; error and CPU time as (min, avg, max)."""

    search: str
    fail_permille: float
    error_percent: tuple[float, float, float]
    time_ms: tuple[float, float, float]


def find_kind(name: str) -> CaseKind:
    """The test case called ``name``. Raises `UsageError`."""
    if name not in CASE_KINDS:
        raise UsageError(f"unknown test case {name!r}; known are {', '.join(CASE_KINDS)}")
    return CASE_KINDS[name]


def run_cases(
    kind: CaseKind,
    n_cases: int,
    seed: int = 0,
    n_elements: int | None = None,
    track: Callable[[Iterable[int]], Iterable[int]] = iter,
    latencies: str = LEVEL,
) -> tuple[Row, ...]:
    """Every search of ``kind`` on ``n_cases`` grids; the best of them all is a case's yardstick.

    Case k draws from a generator of its own, as does each search in it, so that neither the
    number of cases nor the list of searches changes another's numbers. ``track`` may show
    progress. Raises `UsageError` on no cases.
    """
    if n_cases < 1:
        raise UsageError(f"cases: must be at least 1, got {n_cases}")
    found_s = np.empty((n_cases, len(kind.searches)))
    took_s = np.empty_like(found_s)
    for case in track(range(n_cases)):
        cost = kind.draw(
            np.random.default_rng([seed, case]), n_elements or kind.n_elements, latencies
        )
        for column, name in enumerate(kind.searches):
            rng = np.random.default_rng([seed, case, list(SEARCHES).index(name)])
            start_s = time.process_time()
            found_s[case, column] = SEARCHES[name].run(cost, rng).iteration_s
            took_s[case, column] = time.process_time() - start_s
    errors = found_s / found_s.min(axis=1, keepdims=True) - 1.0
    return tuple(
        Row(
            search=name,
            fail_permille=1000.0 * float((errors[:, column] > SAME).mean()),
            error_percent=_spread(100.0 * errors[:, column]),
            time_ms=_spread(1e3 * took_s[:, column]),
        )
        for column, name in enumerate(kind.searches)
    )


def _spread(values: np.ndarray) -> tuple[float, float, float]:
    return float(values.min()), float(values.mean()), float(values.max())


def expected_fail_permille(n_clusters: int, n_tries: int) -> float:
    """How often drawing subsets evenly misses the best one, where there is only one.

    ``(1 - 1 / (2^C - 1))^tries``. For a thousand of 12 clusters 783, as in the paper's Table 1
    (782); for a thousand of 8 clusters 20 (its Table 3: 15), but for a single one 996, where
    Table 3 has 688. That row contradicts the one below it: were a third of all subsets as good as
    the best, a thousand of them would never miss.
    """
    miss = 1.0 - 1.0 / (2.0**n_clusters - 1.0)
    return float(1000.0 * miss**n_tries)
