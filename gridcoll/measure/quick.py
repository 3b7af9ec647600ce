"""Measure a model within seconds, with as few messages as a choice needs. No collective is run."""

from __future__ import annotations

from collections.abc import Sequence

from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.measure.clock import find_clock
from gridcoll.measure.clusters import Progress, find_grid, silent
from gridcoll.measure.contention import measure_contention, split_inside
from gridcoll.measure.engine_cost import measure_relay_gap, measure_start
from gridcoll.measure.flows import quick_aggregate_bandwidth, rates_of_one_flow
from gridcoll.measure.interfaces import unlike_hosts_apart
from gridcoll.measure.landmarks import find_groups_by_landmarks
from gridcoll.measure.pairs import measure_pairs
from gridcoll.measure.priors import add_priors
from gridcoll.measure.uplinks import measure_uplinks
from gridcoll.model import GridModel, PLogP
from gridcoll.topology.clustering import DEFAULT_TOLERANCE
from gridcoll.topology.grid import Grid

__all__ = ["links_of", "measure_pairs", "quick_model"]

RELAY_SIZES = (1 << 10, 1 << 14)
"""Longer segments are taken to have the rate of the last of these. Links are measured with few
messages, which may pass in a burst: there long segments seem faster than they are."""

RELAY_BROADCAST_S = 10e-3
"""Three of them are compared. They are longer than what passes in a burst."""

RELAY_REPEATS = 2
CLOCK_SAMPLES = 2
N_STARTS = 3
N_EXCHANGES = 4


def quick_model(
    comm: MPI.Intracomm,
    tolerance: float = DEFAULT_TOLERANCE,
    progress: Progress = silent,
    name: str = "",
    known_nodes: Sequence[tuple[str, str]] = (),
) -> GridModel:
    """Return a model of the grid that ``comm`` spans, measured in seconds.

    Collective; equal on all ranks. ``known_nodes``: see `find_grid`.

    Clusters are found by landmarks and interfaces, then links are measured, each with few messages.
    The rest of what a choice needs is measured as follows:

    - the rate of several flows together, by a few runs between every two clusters, until one shows
      whether the link is thin or a window limits;
    - the interface of a lone host, and an uplink where one may limit, by one run with all others;
    - the pace of segments and the start of a plan, which are the same on every cluster of a job, by
      few runs that last milliseconds;
    - contention, by such runs of exchanges inside clusters;
    - the library's own collectives, by what their known algorithms would take (`add_priors`).
    """
    near = find_grid(comm, tolerance, progress, name, find_groups_by_landmarks, known_nodes)
    grid = unlike_hosts_apart(comm, near, progress)
    n = len(grid.clusters)
    pairs = [(a, b) for a in range(n) for b in range(a, n)]
    links = links_of(grid, measure_pairs(comm, grid, pairs, progress=progress))
    model = GridModel(grid, links, "measured", tolerance, mpi=MPI.get_vendor()[0])
    if len(set(grid.host_of)) == 1:
        return model  # our plans are not meant for shared memory
    return add_estimates(comm, model, progress)


def add_estimates(comm: MPI.Intracomm, model: GridModel, progress: Progress = silent) -> GridModel:
    """Return ``model``, whose links are known, with all else that a choice needs. Collective."""
    steps = 4
    progress("what plans cost", 0, steps)
    together = quick_aggregate_bandwidth(
        comm, model.grid, rates_of_one_flow(model), model.round_trip_s
    )
    model = replace(model, aggregate_bytes_per_s=together)
    model = replace(model, uplink_bytes_per_s=measure_uplinks(comm, model))
    progress("what plans cost", 1, steps)
    inside = split_inside(comm, model.grid)  # made once for two uses: it takes some round trips
    try:
        gaps = measure_relay_gap(
            *(comm, model.grid, RELAY_BROADCAST_S, RELAY_SIZES, RELAY_REPEATS), inside
        )
        model = replace(model, relay_gap=gaps)
        progress("what plans cost", 2, steps)
        clock = find_clock(comm, model.grid, CLOCK_SAMPLES)
        model = replace(model, start_s=measure_start(comm, model, clock, N_STARTS))
        progress("what plans cost", 3, steps)
        model = replace(model, contention=measure_contention(comm, model, N_EXCHANGES, inside))
    finally:
        if inside != MPI.COMM_NULL:
            inside.Free()
    progress("what plans cost", steps, steps)
    return add_priors(model)


def links_of(
    grid: Grid, found: dict[tuple[int, int], PLogP]
) -> tuple[tuple[PLogP | None, ...], ...]:
    """Return ``found`` in the form of `GridModel.links`.

    A link measured in one direction counts for both.
    """
    n = len(grid.clusters)
    return tuple(tuple(found.get((a, b), found.get((b, a))) for b in range(n)) for a in range(n))
