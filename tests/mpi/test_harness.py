"""The harness itself: as many ranks as mpiexec was told, in one job."""

from __future__ import annotations

import os

from mpi4py import MPI


def test_ranks_form_one_job(world: MPI.Intracomm) -> None:
    """Ranks that do not find each other would each test alone, and pass."""
    wanted = os.environ.get("GRIDCOLL_TEST_RANKS")
    assert wanted is not None, "start this by `make test-mpi`"
    assert world.Get_size() == int(wanted)
    assert world.allreduce(1) == int(wanted)
