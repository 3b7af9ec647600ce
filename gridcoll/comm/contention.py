"""γ of paper 003, section 5: how far flows inside a cluster hinder one another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from mpi4py import MPI

from gridcoll.comm.clock import estimate_offset, run_together
from gridcoll.engine.memory import ByteMemory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.model import GridModel
from gridcoll.plan import dataflow
from gridcoll.plan.collectives.alltoall import plan_direct
from gridcoll.plan.collectives.alltoall_messages import direct_messages
from gridcoll.plan.collectives.alltoall_price import price_messages_s

BLOCK_BYTES = 1 << 14
MOST_CONTENTION = 4.0
LEAST_SPREAD = 0.05
"""Bounds closer than this part of the upper one say nothing of what lies between."""


def measure_contention(comm: MPI.Intracomm, model: GridModel, n_runs: int = 5) -> tuple[float, ...]:
    """γ of every cluster, from a direct exchange inside all of them at once. Collective.

    1 for a cluster of one rank, and where the bounds are too close to tell.
    """
    rank = comm.Get_rank()
    cluster = model.grid.cluster_of[rank]
    inside = MPI.Intracomm(comm.Split(cluster, rank))
    try:
        n = inside.Get_size()
        flow = dataflow(plan_direct(range(n), BLOCK_BYTES).programs[inside.Get_rank()])
        blocks = [memoryview(bytearray(n * BLOCK_BYTES)) for _ in range(2)]
        memory, transport = ByteMemory(*blocks), MPITransport(inside)
        clock = estimate_offset(inside)
        took = [
            run_together(inside, clock, lambda: run_program(flow, transport, memory))
            for _ in range(n_runs)
        ]
    finally:
        inside.Free()
    here = model.restrict(model.grid.clusters[cluster].ranks)
    found = comm.allgather(fit_contention(here, float(np.median(took)) - model.start_s))
    return tuple(found[each.coordinator] for each in model.grid.clusters)


def fit_contention(model: GridModel, took_s: float) -> float:
    """γ at which a direct exchange of `BLOCK_BYTES` in the one cluster of ``model`` is ``took_s``.

    ``T = lower + (upper - lower) γ``, between 0 and `MOST_CONTENTION`.
    """
    messages = direct_messages(model.grid)
    lower_s, upper_s = (
        price_messages_s(replace(model, contention=(bound,)), messages, BLOCK_BYTES)
        for bound in (0.0, 1.0)
    )
    if upper_s - lower_s <= LEAST_SPREAD * upper_s:
        return 1.0
    return min(max((took_s - lower_s) / (upper_s - lower_s), 0.0), MOST_CONTENTION)
