"""Payloads beyond 2 GiB: gigabytes of memory, so only with GRIDCOLL_TEST_LARGE=1.

Open MPI 5.0.11 has no such counts, natively either.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.engine import compiled, runner
from gridcoll.engine.compiled import LIBRARY, CompiledRun, begin_compiled
from tests.mpi.bodies import check_routing
from tests.mpi.support import grid_comm

N_BYTES = (1 << 31) + 4097

with_memory = pytest.mark.skipif(
    os.environ.get("GRIDCOLL_TEST_LARGE") != "1",
    reason="needs gigabytes of memory: GRIDCOLL_TEST_LARGE=1",
)
with_counts = pytest.mark.skipif(
    MPI.get_vendor()[0] == "Open MPI", reason="Open MPI has no such counts: see tests/README.md"
)


@with_memory
@with_counts
@pytest.mark.mpi(min_size=2, max_size=3)
def test_bcast(world: MPI.Intracomm, n_planned: list[int]) -> None:
    with grid_comm(world) as comm:
        buffer = np.zeros(N_BYTES, np.uint8)
        places = np.arange(0, N_BYTES, 1 << 20)
        if world.Get_rank() == 0:
            buffer[places] = places >> 20 & 127
            buffer[-1] = 77
        comm.forced("bcast", "chain").Bcast(buffer, 0)
        assert n_planned[0] == 1
        assert (buffer[places] == places >> 20 & 127).all()
        assert buffer[-1] == 77


@with_memory
@pytest.mark.mpi(min_size=2, max_size=3)
def test_bcast_of_a_type_with_gaps(world: MPI.Intracomm) -> None:
    """Few enough items for any library, of more bytes than a count holds."""
    strided = MPI.INT64_T.Create_vector(2, 1, 2).Commit()
    n_items = N_BYTES // 16
    buffer = np.full(3 * n_items, world.Get_rank(), "i8")
    with grid_comm(world) as comm:
        comm.forced("bcast", "chain").Bcast([buffer, n_items, strided], 1)
    strided.Free()
    assert (buffer[0::3] == 1).all()
    assert (buffer[2::3] == 1).all()
    assert (buffer[1::3] == world.Get_rank()).all()


MAKERS: dict[str, Callable[[int], Any]] = {
    "in its pickle": bytes,
    "beside it": lambda n_bytes: np.zeros(n_bytes, np.uint8),
}


def longer(left: Any, right: Any) -> Any:
    return max(left, right, key=len)


MOVES: dict[str, Callable[[GridComm, Any], Any]] = {
    "bcast": lambda comm, big: comm.bcast(big, 0),
    "gather": lambda comm, big: (comm.gather(big, 1) or [b""])[0],
    # As it is: paced by the declared links, the second piece would leave after a minute.
    "scatter": lambda comm, big: comm.forced("scatterv", "flat").scatter(
        [b"", big] if len(big) else None, 0
    ),
    "allgather": lambda comm, big: comm.allgather(big)[0],
    "alltoall": lambda comm, big: comm.alltoall([b"", big])[0],
    "reduce": lambda comm, big: comm.reduce(big, longer, 1),
    "allreduce": lambda comm, big: comm.allreduce(big, longer),
}
"""Each brings what rank 0 has to rank 1."""


@with_memory
@with_counts
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("where", MAKERS)
@pytest.mark.parametrize("name", MOVES)
def test_objects(world: MPI.Intracomm, name: str, where: str, n_planned: list[int]) -> None:
    """Between two ranks, however many there are: more would need that much more memory."""
    rank = world.Get_rank()
    pair = world.Split(0 if rank < 2 else MPI.UNDEFINED)
    if pair == MPI.COMM_NULL:
        return
    with grid_comm(pair) as comm:
        answer = MOVES[name](comm, MAKERS[where](0 if rank else N_BYTES))
    pair.Free()
    if rank == 1:
        assert len(answer) == N_BYTES
    assert n_planned[0]


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("n", "fits"), [(25, True), (26, False)])
def test_messages_too_long_for_c_are_pythons(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, n: int, fits: bool
) -> None:
    """What is longer than an int can count, at a hundred bytes."""
    begun: list[bool] = []

    def begin(*args: Any) -> CompiledRun | None:
        run = begin_compiled(*args)
        begun.append(run is not None)
        return run

    monkeypatch.setattr(compiled, "_LONGEST_MESSAGE_BYTES", 100)
    monkeypatch.setattr(runner, "begin_compiled", begin)
    with grid_comm(world) as comm:
        check_routing(comm.forced("alltoall", "direct"), n)
    assert begun == [fits and LIBRARY.exists()] * 2
