"""Discovery: measure clusters, pLogP of representative pairs, and all else that a choice needs.

It has stages. The result of each finished stage is kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial

from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.errors import GridcollError
from gridcoll.measure.clock import find_clock
from gridcoll.measure.clusters import Progress, find_grid, silent
from gridcoll.measure.contention import measure_contention
from gridcoll.measure.engine_cost import measure_relay_gap, measure_start
from gridcoll.measure.flows import (
    LONG_RUN_FACTOR,
    N_MESSAGES,
    measure_aggregate_bandwidth,
    rates_of_one_flow,
)
from gridcoll.measure.interfaces import unlike_hosts_apart
from gridcoll.measure.natives import CALLS, SETTLED_BYTES, time_native
from gridcoll.measure.pairs import measure_between
from gridcoll.measure.priors import add_priors
from gridcoll.measure.probe import measure_plogp
from gridcoll.measure.quick import links_of, quick_model
from gridcoll.measure.trials import RUNS, TRIAL_SIZES
from gridcoll.measure.tuner import tune
from gridcoll.measure.uplinks import measure_uplinks
from gridcoll.model import GridModel, PLogP
from gridcoll.topology.grid import Grid


class OutOfTimeError(GridcollError):
    """The budget does not allow another step. Raised on all ranks at once."""


class Budget:
    """Reports to ``progress``, and raises `OutOfTimeError` on all ranks by rank 0's clock.

    It raises before a step that would end too late if it took as long as the one before. All ranks
    call it; it is collective if there is a limit.
    """

    def __init__(self, comm: MPI.Intracomm, seconds: float, progress: Progress) -> None:
        self._comm = comm
        self._progress = progress
        self._limited = seconds < math.inf
        self._ends_s = time.monotonic() + seconds
        self._what = ""
        self._stepped_s = 0.0

    def __call__(self, what: str, done: int, of: int) -> None:
        self._progress(what, done, of)
        now_s = time.monotonic()
        last_s = now_s - self._stepped_s if what == self._what else 0.0
        self._what = what
        if done < of:
            self.check(last_s)
        self._stepped_s = time.monotonic()

    def check(self, needed_s: float = 0.0) -> None:
        """Raise `OutOfTimeError` unless more than ``needed_s`` seconds are left."""
        if not self._limited:
            return
        left_s = self._ends_s - time.monotonic()
        if self._comm.bcast(left_s <= needed_s, 0):
            raise OutOfTimeError("the time budget is spent")


NATIVE_SIZES = (8, 1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 22)


Stage = tuple[str, Callable[[GridModel], GridModel]]
"""A stage: its name, and a function that returns a better model. Collective."""


def discover(
    comm: MPI.Intracomm,
    tolerance: float,
    *,
    both_directions: bool = False,
    native: bool = True,
    collectives: Collection[str] = tuple(CALLS),
    progress: Progress = silent,
    name: str = "",
    known: GridModel | None = None,
    keep: Callable[[GridModel], None] = lambda _model: None,
    budget_s: float = math.inf,
) -> GridModel:
    """Measure the grid that ``comm`` spans. Collective; the result is the same on all ranks.

    There are at most C(C-1)/2 + C pLogP measurements for C clusters, with ``both_directions`` twice
    the first term. What has not been measured yet is estimated, so that the model of an interrupted
    discovery is useful.

    Parameters
    ----------
    both_directions : bool
        Measure links from both ends; otherwise they count as symmetric.
    native : bool
        Time the MPI library's own collectives as well.
    collectives : collection of str
        Collectives whose plans are tried and whose natives are timed.
    known : GridModel, optional
        Result of an interrupted discovery of these ranks. Its stages are not run again.
    keep : callable
        Called on all ranks with the model after every stage.
    budget_s : float
        Seconds to spend, by rank 0's clock. A quick measurement (`quick_model`) comes first,
        however long it takes. A stage that would not end in time is abandoned, and its results are
        dropped.
    """
    budget = Budget(comm, budget_s, progress)
    model = known
    if model is None and budget_s < math.inf:
        model = quick_model(comm, tolerance, progress, name)
        keep(model)
    try:
        if model is None or LINKS not in model.stages:
            model = _measure_grid(comm, tolerance, both_directions, budget, name)
            model = add_priors(model) if native else model
            keep(model)
        if len(set(model.grid.host_of)) == 1:
            return model  # our plans are not meant for shared memory
        for stage, run in _stages(comm, both_directions, native, collectives, budget):
            if stage not in model.stages:
                budget.check()
                model = run(model)
                model = replace(model, stages=(*model.stages, stage))
                keep(model)
    except OutOfTimeError:
        if model is None:  # cannot happen: with a time limit there is a quick model
            raise
    return model


LINKS = "links"


def stage_names(native: bool = True, collectives: Collection[str] = tuple(CALLS)) -> list[str]:
    """Return the names of a discovery's stages, the most valuable ones first."""
    tried = [name for name in RUNS if name in collectives]
    timed = [name for name in CALLS if name in collectives and name not in tried]
    names = [LINKS, "flows", "engine"]
    for each in tried:
        names += [*([f"native {each}"] if native else []), f"tuning of {each}"]
    if native:
        names += [f"native {each}" for each in timed]
    return names


def _measure_grid(
    comm: MPI.Intracomm, tolerance: float, both_directions: bool, progress: Progress, name: str
) -> GridModel:
    near = find_grid(comm, tolerance, progress, name)
    grid = unlike_hosts_apart(comm, near, progress)
    links = measure_links(comm, grid, both_directions, progress)
    return GridModel(grid, links, "measured", tolerance, mpi=MPI.get_vendor()[0], stages=(LINKS,))


def _stages(
    comm: MPI.Intracomm,
    both_directions: bool,
    native: bool,
    collectives: Collection[str],
    progress: Progress,
) -> Iterator[Stage]:
    """Yield all stages after the links, in order."""
    for stage in stage_names(native, collectives)[1:]:
        what, _, collective = stage.rpartition(" ")
        if stage == "flows":
            yield stage, partial(_add_flows, comm, both_directions, progress)
        elif stage == "engine":
            yield stage, partial(_add_engine, comm)
        elif what == "native":
            yield stage, partial(_add_natives, comm, collective, progress)
        else:
            yield stage, partial(_tune, comm, collective, progress)


def _add_flows(
    comm: MPI.Intracomm, both_directions: bool, progress: Progress, model: GridModel
) -> GridModel:
    rates = measure_aggregate_bandwidth(
        comm, model.grid, rates_of_one_flow(model), progress, both_directions
    )
    model = replace(model, aggregate_bytes_per_s=rates)
    n_messages = LONG_RUN_FACTOR * N_MESSAGES
    uplinks = measure_uplinks(comm, model, progress, n_messages)
    return replace(model, uplink_bytes_per_s=uplinks)


def _add_engine(comm: MPI.Intracomm, model: GridModel) -> GridModel:
    clock = find_clock(comm, model.grid)
    model = replace(model, relay_gap=measure_relay_gap(comm, model.grid))
    model = replace(model, start_s=measure_start(comm, model, clock))
    model = replace(model, contention=measure_contention(comm, model))
    return add_priors(model) if model.native_priors else model


def _add_natives(
    comm: MPI.Intracomm, collective: str, progress: Progress, model: GridModel
) -> GridModel:
    found = time_native(comm, model, collective, native_sizes(collective), progress)
    return replace(
        model,
        native={**model.native, collective: found.plain},
        native_variants={**model.native_variants, collective: found.variants},
        native_runs={**model.native_runs, collective: found.n_runs},
        native_priors=tuple(name for name in model.native_priors if name != collective),
    )


def _tune(comm: MPI.Intracomm, collective: str, progress: Progress, model: GridModel) -> GridModel:
    return tune(comm, model, progress, collective)


def native_sizes(collective: str) -> tuple[int, ...]:
    """Return the sizes in bytes at which natives are timed.

    They include the short ones of the sizes at which plans are tried.
    """
    short = (n_bytes for n_bytes in TRIAL_SIZES.get(collective, ()) if n_bytes < SETTLED_BYTES)
    return tuple(sorted({*NATIVE_SIZES, *short}))


def measure_links(
    comm: MPI.Intracomm, grid: Grid, both_directions: bool = False, progress: Progress = silent
) -> tuple[tuple[PLogP | None, ...], ...]:
    """Measure pLogP once per cluster and per cluster pair, disjoint pairs at the same time.

    Collective; the result is the same on all ranks.
    """
    n = len(grid.clusters)
    pairs = [(a, b) for a in range(n) for b in range(a, n)]
    found = measure_between(comm, grid, pairs, measure_plogp, progress)
    if both_directions:
        back = [(b, a) for a, b in pairs if a != b]
        found |= measure_between(comm, grid, back, measure_plogp, progress)
    return links_of(grid, found)
