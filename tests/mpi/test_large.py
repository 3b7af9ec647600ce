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
from tests.mpi.support import grid_comm

N_BYTES = (1 << 31) + 4097

if os.environ.get("GRIDCOLL_TEST_LARGE") == "1" and MPI.get_vendor()[0] != "Open MPI":

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

    MAKERS: dict[str, Callable[[int], Any]] = {
        "in its pickle": bytes,
        "beside it": lambda n_bytes: np.zeros(n_bytes, np.uint8),
    }

    def longer(left: Any, right: Any) -> Any:
        return max(left, right, key=len)

    MOVES: dict[str, Callable[[GridComm, Any], Any]] = {
        "bcast": lambda comm, big: comm.bcast(big, 0),
        "gather": lambda comm, big: (comm.gather(big, 1) or [b""])[0],
        "scatter": lambda comm, big: comm.scatter([b"", big] if len(big) else None, 0),
        "allgather": lambda comm, big: comm.allgather(big)[0],
        "alltoall": lambda comm, big: comm.alltoall([b"", big])[0],
        "reduce": lambda comm, big: comm.reduce(big, longer, 1),
        "allreduce": lambda comm, big: comm.allreduce(big, longer),
    }
    """Each brings what rank 0 has to rank 1."""

    @pytest.mark.mpi(min_size=2, max_size=2)
    @pytest.mark.parametrize("where", MAKERS)
    @pytest.mark.parametrize("name", MOVES)
    def test_objects(world: MPI.Intracomm, name: str, where: str, n_planned: list[int]) -> None:
        big = MAKERS[where](0 if world.Get_rank() else N_BYTES)
        with grid_comm(world) as comm:
            answer = MOVES[name](comm, big)
        if world.Get_rank() == 1:
            assert len(answer) == N_BYTES
        assert n_planned[0]
