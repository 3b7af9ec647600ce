"""Measure γ of paper 003, section 5: how much flows inside a cluster slow each other down."""

from __future__ import annotations

import math

import numpy as np
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.engine.memory import ByteMemory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.clock import Series, find_clock
from gridcoll.model import GridModel
from gridcoll.plan import dataflow
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.direct import direct_messages, plan_direct
from gridcoll.topology.grid import Grid

BLOCK_BYTES = 1 << 14
MOST_EXCHANGING = 64
"""Most ranks of a cluster that take part: each of them sends blocks to every other one.
Chains that measure the relay gap have the same limit."""

EXCHANGE_S, MOST_BLOCKS = 30e-3, 8
"""An exchange of several blocks with each peer takes about as long, but has no more than so many.
What ranks lose at its start is then little: where a dozen hosts share two processors, a single
block (4 ms) took up to twice as long as its interfaces need, and γ was 0.7 in one start and 2.2 in
the next."""

MOST_CONTENTION = 4.0
LEAST_SPREAD = 0.05
"""If the bounds differ by less than this fraction of the upper one, γ cannot be measured."""

_TAG = 4


def measure_contention(
    comm: MPI.Intracomm, model: GridModel, n_runs: int = 5, inside: MPI.Intracomm | None = None
) -> tuple[float, ...]:
    """Return γ of every cluster, (C,), from a direct exchange inside all of them at once.

    Collective. At most `MOST_EXCHANGING` ranks of each cluster take part. γ is 1 for a cluster of
    one rank, and if the bounds are too close to measure it. ``inside``: an existing communicator of
    these ranks of this cluster, null on others.
    """
    exchanging = exchanging_of(comm, model.grid)
    mine = split_inside(comm, model.grid) if inside is None else inside
    gamma = 1.0
    if mine != MPI.COMM_NULL:
        inside_model = model.restrict(exchanging)
        _, block_s = _bounds_s(inside_model)
        n_blocks = min(math.ceil(EXCHANGE_S / block_s), MOST_BLOCKS) if block_s else 1
        try:
            took_s = _time_exchange(mine, n_runs, n_blocks)
        finally:
            if inside is None:
                mine.Free()
        gamma = fit_contention(inside_model, (took_s - model.start_s) / n_blocks)
    wait_for_all(comm)
    found = np.empty(comm.Get_size())
    comm.Allgather(np.array([gamma]), found)
    return tuple(float(found[each.coordinator]) for each in model.grid.clusters)


def exchanging_of(comm: MPI.Intracomm, grid: Grid) -> tuple[int, ...]:
    """Return the ranks of our cluster that take part."""
    return tuple(grid.clusters[grid.cluster_of[comm.Get_rank()]].spread(MOST_EXCHANGING))


def split_inside(comm: MPI.Intracomm, grid: Grid) -> MPI.Intracomm:
    """Return a communicator of the ranks of `exchanging_of`; null on others. Collective.

    It is made by ``Create_group``, which involves nobody outside a cluster. A ``Split`` would take
    several round trips between clusters.
    """
    members = exchanging_of(comm, grid)
    if comm.Get_rank() not in members:
        return MPI.Intracomm(MPI.COMM_NULL)
    everybody = comm.Get_group()
    group = everybody.Incl(members)
    try:
        return MPI.Intracomm(comm.Create_group(group, _TAG))
    finally:
        group.Free()
        everybody.Free()


def _time_exchange(comm: MPI.Intracomm, n_runs: int, n_blocks: int) -> float:
    """Return the median seconds of a direct exchange of ``n_blocks`` between any two ranks."""
    n, n_bytes = comm.Get_size(), n_blocks * BLOCK_BYTES
    plan = plan_direct(range(n), n_bytes, piece_units=BLOCK_BYTES)
    flow = dataflow(plan.programs[comm.Get_rank()])
    blocks = [memoryview(bytearray(n * n_bytes)) for _ in range(2)]
    memory, transport = ByteMemory(*blocks), MPITransport(comm)
    series = Series(find_clock(comm))
    took = [series.run(lambda: run_program(flow, transport, memory)) for _ in range(n_runs)]
    return float(np.median(took))


def fit_contention(model: GridModel, took_s: float) -> float:
    """Return γ at which a direct exchange of `BLOCK_BYTES` takes ``took_s``.

    ``model`` has one cluster. γ solves ``T = lower + (upper - lower) γ``, and is limited to 0 to
    `MOST_CONTENTION`.
    """
    lower_s, upper_s = _bounds_s(model)
    if upper_s - lower_s <= LEAST_SPREAD * upper_s:
        return 1.0
    return min(max((took_s - lower_s) / (upper_s - lower_s), 0.0), MOST_CONTENTION)


def _bounds_s(model: GridModel) -> tuple[float, float]:
    """Return the seconds of a direct exchange of `BLOCK_BYTES` at γ = 0 and at γ = 1."""
    messages = direct_messages(model.grid)
    lower_s, upper_s = (
        price_messages_s(replace(model, contention=(bound,)), messages, BLOCK_BYTES)
        for bound in (0.0, 1.0)
    )
    return lower_s, upper_s
