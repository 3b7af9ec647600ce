"""Measure γ of paper 003, section 5: how much flows inside a cluster slow each other down."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from mpi4py import MPI

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
"""Most ranks of a cluster that take part: each of them holds two blocks for every one of them.
Chains that measure the relay gap have the same limit."""

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
        try:
            took_s = _time_exchange(mine, n_runs)
        finally:
            if inside is None:
                mine.Free()
        gamma = fit_contention(model.restrict(exchanging), took_s - model.start_s)
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


def _time_exchange(comm: MPI.Intracomm, n_runs: int) -> float:
    """Return the median seconds of a direct exchange between all ranks of ``comm``."""
    n = comm.Get_size()
    flow = dataflow(plan_direct(range(n), BLOCK_BYTES).programs[comm.Get_rank()])
    blocks = [memoryview(bytearray(n * BLOCK_BYTES)) for _ in range(2)]
    memory, transport = ByteMemory(*blocks), MPITransport(comm)
    series = Series(find_clock(comm))
    took = [series.run(lambda: run_program(flow, transport, memory)) for _ in range(n_runs)]
    return float(np.median(took))


def fit_contention(model: GridModel, took_s: float) -> float:
    """Return γ at which a direct exchange of `BLOCK_BYTES` takes ``took_s``.

    ``model`` has one cluster. γ solves ``T = lower + (upper - lower) γ``, and is limited to 0 to
    `MOST_CONTENTION`.
    """
    messages = direct_messages(model.grid)
    lower_s, upper_s = (
        price_messages_s(replace(model, contention=(bound,)), messages, BLOCK_BYTES)
        for bound in (0.0, 1.0)
    )
    if upper_s - lower_s <= LEAST_SPREAD * upper_s:
        return 1.0
    return min(max((took_s - lower_s) / (upper_s - lower_s), 0.0), MOST_CONTENTION)
