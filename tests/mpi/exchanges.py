"""What tests of `Alltoallv` and `Alltoallw` share: the same call by MPI and by us."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from gridcoll import GridComm

METHODS = ("Alltoallv", "Alltoallw")

ROOM = 4000
"""Ints of memory of a call."""

SPACED = MPI.INT.Create_vector(2, 1, 2).Commit()
"""Two ints with a gap between them."""


def planned(comm: GridComm) -> GridComm:
    return comm.forced("alltoall", "direct")


def both(
    world: MPI.Intracomm, comm: GridComm, call: Callable[[MPI.Intracomm, np.ndarray], None]
) -> np.ndarray:
    """Run ``call`` by MPI and by us, each into fresh memory; what both leave there."""
    results = []
    for caller in (world, planned(comm)):
        into = np.full(ROOM, -1, "i4")
        call(caller, into)
        results.append(into)
    assert (results[0] == results[1]).all()
    return results[1]
