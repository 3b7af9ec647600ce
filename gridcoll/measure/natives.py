"""Time the MPI library's own collectives, with which plans compete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI
from msgspec import Struct

from gridcoll.engine.natives import native_call
from gridcoll.measure.clock import FIRST_RUN_COUNTS_S, Series, find_clock
from gridcoll.measure.trials import Step, affordable, series_of
from gridcoll.model import GridModel, TimesBySize
from gridcoll.plan import choose
from gridcoll.plan.natives import NATIVE, natives_of

Call = tuple[str, tuple[Any, ...]]
"""Name of a method of mpi4py's communicators, and its arguments."""


def _blocks(n_blocks: int, n_bytes: int) -> np.ndarray:
    return np.zeros((n_blocks, n_bytes), np.uint8)


def _doubles(n_bytes: int) -> np.ndarray:
    return np.zeros(n_bytes // 8)


CALLS: dict[str, Callable[[int, int], Call]] = {
    "bcast": lambda _, n: ("Bcast", (np.zeros(n, np.uint8), 0)),
    "allreduce": lambda _, n: ("Allreduce", (_doubles(n), _doubles(n))),
    "reduce": lambda _, n: ("Reduce", (_doubles(n), _doubles(n))),
    "alltoall": lambda ranks, n: ("Alltoall", (_blocks(ranks, n), _blocks(ranks, n))),
    "gather": lambda ranks, n: ("Gather", (_blocks(1, n), _blocks(ranks, n), 0)),
    "scatter": lambda ranks, n: ("Scatter", (_blocks(ranks, n), _blocks(1, n), 0)),
    "allgather": lambda ranks, n: ("Allgather", (_blocks(1, n), _blocks(ranks, n))),
    "reduce_scatter": lambda ranks, n: (
        "Reduce_scatter_block",
        (_blocks(ranks, n).view(np.float64), _blocks(1, n).view(np.float64)),
    ),
    "barrier": lambda _ranks, _n: ("Barrier", ()),
}
"""The collectives that are timed, and the call of each for a number of ranks and a size."""

FEWEST_RUNS, MOST_RUNS = 3, 9
ENOUGH_S = 0.3
"""Runs of a native that take this long in all are enough: they show more than a moment's noise."""

LONG_RUNS_S = 1.0
"""Natives are not run again once all runs have taken this long: noise is small by then."""

SAME_TIME = 1.1
"""If the runs so far differ by at most this factor, no further one is needed."""

COSTLY_S = 0.1
"""Shorter calls are timed even if they will not be chosen, as that costs little."""

SETTLED_BYTES = 8 << 10
"""With shorter messages, no native counts as hopeless: a library may relay a few bytes but send
more of them directly.

MPICH takes four times as long for an all-to-all of 8 bytes as for one of a kilobyte between sites.
"""

CLEARLY_SLOWER = 1.25
"""A variant whose first run takes this many times as long as the plain one's is not run again."""

MOST_VARIANT_GAIN = 2.0
"""No variant with long messages was ever faster than the plain native by this factor."""

FAR_BEHIND = 3.0
"""A native that takes this many times as long as a plan is not timed with longer messages."""

TOO_LONG_S = 10.0
"""If the plain native takes longer, its variants are not timed."""


class NativeTimes(Struct, frozen=True):
    """Times of one collective: those of the plain native, and those of its variants by name.

    ``n_runs`` is the number of runs that each time is the median of, by native and size.
    """

    plain: TimesBySize
    variants: Mapping[str, TimesBySize]
    n_runs: Mapping[str, Mapping[int, int]]


def time_native(
    comm: MPI.Intracomm,
    model: GridModel,
    name: str,
    sizes_bytes: Sequence[int],
    progress: Callable[[str, int, int], None],
) -> NativeTimes:
    """Time the library's own collective, with root 0, up to the size where it is hopeless.

    Collective. A native that takes long, and several times as long as a plan is predicted to take,
    will not be chosen for larger messages; beyond the last size its time grows in proportion. A
    variant is not timed with larger messages if it takes long and either it or the plain native is
    far from winning, or if the plain native takes very long. Messages below `SETTLED_BYTES` do not
    count for the first two of these rules.
    """
    what = f"native {name}"
    sizes_bytes = affordable(name, comm.Get_size(), sizes_bytes)
    found: dict[str, dict[int, float]] = {native: {} for native in natives_of(name)}
    n_runs: dict[str, dict[int, int]] = {native: {} for native in found}
    clock = find_clock(comm, model.grid)  # clocks drift noticeably within minutes
    left = list(found)
    for k, n_bytes in enumerate(sizes_bytes):
        progress(what, k, len(sizes_bytes))
        plan_s = choose(name, model, n_bytes, 0, grid_only=True).winner.predicted_s
        method, args = CALLS[name](comm.Get_size(), n_bytes)
        steps: dict[str, Step] = {
            native: partial(native_call(native, method), comm, *args) for native in left
        }
        settled = n_bytes >= SETTLED_BYTES
        series = series_of(comm, clock, name, n_bytes)
        took = _time_steps(series, steps, plan_s if settled else None)
        medians = {native: float(np.median(seconds)) for native, seconds in took.items()}
        for native, seconds in took.items():
            found[native][n_bytes], n_runs[native][n_bytes] = medians[native], len(seconds)
        if settled and _is_hopeless(medians[NATIVE], plan_s, FAR_BEHIND):
            break
        competitor_s = medians[NATIVE] if settled else None
        left = [native for native in medians if not _is_hopeless(medians[native], competitor_s, 2)]
    progress(what, len(sizes_bytes), len(sizes_bytes))
    times = {
        native: TimesBySize(tuple(by), tuple(by.values())) for native, by in found.items() if by
    }
    return NativeTimes(times.pop(NATIVE), times, n_runs)


def _is_hopeless(took_s: float, competitor_s: float | None, factor: float) -> bool:
    """Whether a native takes long, and more than ``factor`` times as long as its competitor."""
    return bool(competitor_s) and took_s > max(factor * (competitor_s or 0.0), COSTLY_S)


def _time_steps(
    series: Series, steps: Mapping[str, Step], plan_s: float | None
) -> dict[str, list[float]]:
    """Return the seconds of the runs of each of ``steps``, the plain native first. Collective.

    They run in turns, alternately forwards and backwards. Before the first turn, each one runs once
    without counting, because of after-effects of other runs (see `run_again`). If a plan is
    predicted (``plan_s``) to be faster than any variant can be, and the plain native takes long,
    only the plain one is timed.
    """
    took: dict[str, list[float]] = {native: [] for native in steps}
    left, spent_s = list(steps), 0.0
    for turn in range(MOST_RUNS):
        for native in list(reversed(left) if turn % 2 else left):
            competitor_s = plan_s if native == NATIVE else took[NATIVE][0]
            seconds = [series.run(steps[native])]
            if not turn and not _first_counts(seconds[0], competitor_s):
                seconds.append(series.run(steps[native]))
            took[native].append(seconds[-1])
            spent_s += sum(seconds)
            if not turn and native == NATIVE and _skips_variants(took[NATIVE][0], plan_s):
                left = [NATIVE]
                break
        left = [native for native in left if took[native][0] <= CLEARLY_SLOWER * took[NATIVE][0]]
        runs = [took[native] for native in left]
        if spent_s >= LONG_RUNS_S:
            break
        if turn + 1 >= FEWEST_RUNS and sum(map(sum, runs)) >= ENOUGH_S * len(runs):
            break
        if turn and all(max(each) <= SAME_TIME * min(each) for each in runs):
            break
    return {native: times for native, times in took.items() if times}


def _first_counts(took_s: float, competitor_s: float | None) -> bool:
    """Whether the first run counts: it took long, or it took less long but is far behind."""
    enough_s = LONG_RUNS_S if _is_hopeless(took_s, competitor_s, FAR_BEHIND) else FIRST_RUN_COUNTS_S
    return took_s >= enough_s


def _skips_variants(took_s: float, plan_s: float | None) -> bool:
    """Whether variants are not timed because the plain native took too long."""
    return took_s > TOO_LONG_S or _is_hopeless(took_s, plan_s, MOST_VARIANT_GAIN)
