"""Communicators that learn, for tests: their calls, checked, and what they learned."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm.learning import Learning
from gridcoll.measure.learning import agreed
from gridcoll.model import GridModel, linear_plogp
from gridcoll.topology import Grid
from tests.mpi.support import layouts

MOST_TRIES = 6 * agreed.MOST_CALLS
"""Agreed points come by what they cost, on a busy machine no more often than their rule says."""


def near_model(n_ranks: int) -> GridModel:
    """Two clusters as near as processes of one machine are: clocks are compared soon."""
    grid = Grid.from_labels(layouts(n_ranks).get("two", [0] * n_ranks), ["here"] * n_ranks)
    near, far = linear_plogp(5e-6, 1e9), linear_plogp(10e-6, 1e9)
    places = range(len(grid.clusters))
    links = tuple(tuple(near if a == b else far for b in places) for a in places)
    return GridModel(grid, links)


@contextmanager
def near_comm(world: MPI.Intracomm) -> Iterator[GridComm]:
    """A communicator by `near_model`."""
    own = world.Dup()
    comm = GridComm(own, model=near_model(world.Get_size()))
    yield comm
    comm.Free()
    own.Free()


def learning_of(comm: GridComm) -> Learning:
    context = comm._context
    assert context is not None
    assert context.learning is not None
    return context.learning


def check_calls(comm: GridComm, n_calls: int) -> int:
    """Allreduces of floats whose bits depend on the order, and others; how often ranks differed."""
    plain = MPI.Intracomm(comm)
    luck = np.random.default_rng(comm.Get_rank())
    mine, size = luck.normal(size=1000), comm.Get_size()
    total, differed = np.empty(1000), 0
    for call in range(n_calls):
        comm.Allreduce(mine, total)
        if call % 10 == 0:
            sums = plain.allgather(total.tobytes())
            differed += len(set(sums)) > 1
        data = np.full(700, call if comm.Get_rank() == call % size else -1)
        comm.Bcast(data, call % size)
        assert (data == call).all()
        blocks = np.full((size, 20), comm.Get_rank() + call)
        got = np.empty_like(blocks)
        comm.Alltoall(blocks, got)
        assert (got[:, 0] == np.arange(size) + call).all()
        if call % 50 == 0:
            assert comm.bcast({"call": call}, 0) == {"call": call}
            request = comm.Iallreduce(mine, total)
            request.Wait()
    return differed


def until(comm: GridComm, true: Callable[[], bool]) -> None:
    """Make calls; ``true`` is the same on all ranks."""
    for _ in range(MOST_TRIES):
        if true():
            return
        learning_of(comm).learner.drift.suspicion = 0
        check_calls(comm, 1)
    pytest.fail("never")
