"""Times the MPI library's own collectives, which plans compete with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from gridcoll.engine.natives import native_call
from gridcoll.measure.clock import FIRST_COUNTS_S, CommonClock, Series, find_clock
from gridcoll.measure.trials import affordable
from gridcoll.model import GridModel, TimesBySize
from gridcoll.plan import choose
from gridcoll.plan.natives import NATIVE, natives_of

Call = tuple[str, tuple[Any, ...]]
"""Plain mpi4py's method, and its arguments."""


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
"""Of the library's own collectives, those that are timed: the call, by ranks and size."""

FEWEST_RUNS, MOST_RUNS = 3, 9
ENOUGH_S = 0.3
"""Runs that took so long together show more than the noise of the moment."""

LONG_CALL_S = 1.0
"""After so long in all a native is not run again: noise is small by then."""

ALIKE = 1.1
"""Two runs that differ by at most this need no third one."""

COSTLY_S = 0.1
"""Shorter calls are timed even if they will not be chosen: that costs little."""

SETTLED_BYTES = 8 << 10
"""With shorter messages no native is hopeless: a library may relay a few bytes but send more
directly.

MPICH takes four times as long for an all-to-all of 8 bytes as for one of a kilobyte between sites.
"""

SLOWER = 1.25
"""A variant that takes so much longer than the plain one at first is not run again."""

MOST_GAIN = 2.0
"""No variant of long messages was ever so much faster than the plain one."""

FAR_BEHIND = 3.0
"""A native that takes so many times as long as a plan is not timed with longer messages."""

TOO_LONG_S = 10.0
"""If the plain native takes longer, its variants are not timed."""

Step = Callable[[], None]


@dataclass(frozen=True)
class NativeTimes:
    """Of one collective: the plain native's times, and those of its variants by name.

    ``n_runs`` says of how many runs each is the median: by native, by size.
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
    """Times of the library's own collective, from rank 0, until it is hopeless. Collective.

    A library that takes several times what a plan is predicted to take, and long at that, will
    not be chosen for larger messages; beyond the last size its time grows in proportion. A variant
    is given up for larger messages where it takes long and either it or the plain one is far from
    winning; or where the plain one takes very long. Neither of the first two from what it does
    with the shortest.
    """
    what = f"native {name}"
    sizes_bytes = affordable(name, comm.Get_size(), sizes_bytes)
    found: dict[str, dict[int, float]] = {native: {} for native in natives_of(name)}
    n_runs: dict[str, dict[int, int]] = {native: {} for native in found}
    clock = find_clock(comm, model.grid)  # clocks drift: within minutes that shows
    left = list(found)
    for k, n_bytes in enumerate(sizes_bytes):
        progress(what, k, len(sizes_bytes))
        plan_s = choose(name, model, n_bytes, 0, grid_only=True).winner.predicted_s
        method, args = CALLS[name](comm.Get_size(), n_bytes)
        steps: dict[str, Step] = {
            native: partial(native_call(native, method), comm, *args) for native in left
        }
        settled = n_bytes >= SETTLED_BYTES
        took = _time_steps(clock, steps, plan_s if settled else None)
        medians = {native: float(np.median(seconds)) for native, seconds in took.items()}
        for native, seconds in took.items():
            found[native][n_bytes], n_runs[native][n_bytes] = medians[native], len(seconds)
        if settled and _is_hopeless(medians[NATIVE], plan_s, FAR_BEHIND):
            break
        against_s = medians[NATIVE] if settled else None
        left = [native for native in medians if not _is_hopeless(medians[native], against_s, 2)]
    progress(what, len(sizes_bytes), len(sizes_bytes))
    times = {
        native: TimesBySize(tuple(by), tuple(by.values())) for native, by in found.items() if by
    }
    return NativeTimes(times.pop(NATIVE), times, n_runs)


def _is_hopeless(took_s: float, against_s: float | None, factor: float) -> bool:
    """Whether it takes long, and ``factor`` times as long as its competitor."""
    return bool(against_s) and took_s > max(factor * (against_s or 0.0), COSTLY_S)


def _time_steps(
    clock: CommonClock, steps: Mapping[str, Step], plan_s: float | None
) -> dict[str, list[float]]:
    """Seconds of the runs of each of ``steps``, the plain native first. Collective.

    They run alternately, back and forth. Before the first turn each runs once without counting,
    because of after-effects of other runs (see `run_again`). If a plan is predicted (``plan_s``) to
    be faster than any variant can be, and the plain native takes long, only the plain one is timed.
    """
    took: dict[str, list[float]] = {native: [] for native in steps}
    left, series, spent_s = list(steps), Series(clock), 0.0
    for turn in range(MOST_RUNS):
        for native in list(reversed(left) if turn % 2 else left):
            against_s = plan_s if native == NATIVE else took[NATIVE][0]
            seconds = [series.run(steps[native])]
            if not turn and not _first_counts(seconds[0], against_s):
                seconds.append(series.run(steps[native]))
            took[native].append(seconds[-1])
            spent_s += sum(seconds)
            if not turn and native == NATIVE and _is_alone(took[NATIVE][0], plan_s):
                left = [NATIVE]
                break
        left = [native for native in left if took[native][0] <= SLOWER * took[NATIVE][0]]
        runs = [took[native] for native in left]
        if spent_s >= LONG_CALL_S:
            break
        if turn + 1 >= FEWEST_RUNS and sum(map(sum, runs)) >= ENOUGH_S * len(runs):
            break
        if turn and all(max(each) <= ALIKE * min(each) for each in runs):
            break
    return {native: times for native, times in took.items() if times}


def _first_counts(took_s: float, against_s: float | None) -> bool:
    """Whether a first run is enough: it took long, or less long but is far behind."""
    enough_s = LONG_CALL_S if _is_hopeless(took_s, against_s, FAR_BEHIND) else FIRST_COUNTS_S
    return took_s >= enough_s


def _is_alone(took_s: float, plan_s: float | None) -> bool:
    """Whether the plain native took so long that no variant is timed."""
    return took_s > TOO_LONG_S or _is_hopeless(took_s, plan_s, MOST_GAIN)
