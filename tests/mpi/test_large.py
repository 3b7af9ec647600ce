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

    @pytest.mark.mpi(min_size=2, max_size=2)
    def test_objects(world: MPI.Intracomm) -> None:
        with grid_comm(world) as comm:
            thing = bytes(N_BYTES) if world.Get_rank() == 0 else None
            answer = comm.bcast(thing, 0)
            assert len(answer) == N_BYTES

    MOVES: dict[str, Callable[[GridComm, bytes], Any]] = {
        "gather": lambda comm, big: (comm.gather(big, 1) or [b""])[0],
        "scatter": lambda comm, big: comm.scatter([b"", big] if big else None, 0),
        "alltoall": lambda comm, big: comm.alltoall([b"", big])[0],
    }
    """Each brings what rank 0 has to rank 1."""

    @pytest.mark.mpi(min_size=2, max_size=2)
    @pytest.mark.parametrize("name", MOVES)
    def test_objects_moved(world: MPI.Intracomm, name: str, n_planned: list[int]) -> None:
        n_bytes = [N_BYTES, 0][world.Get_rank()]
        with grid_comm(world) as comm:
            answer = MOVES[name](comm, bytes(n_bytes))
            assert len(answer) == N_BYTES - n_bytes
        assert n_planned[0]
