"""Payloads beyond 2 GiB: gigabytes of memory, so only with GRIDCOLL_TEST_LARGE=1.

Open MPI 5.0.11 has no such counts, natively either.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from mpi4py import MPI

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
