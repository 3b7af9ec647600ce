"""What is wrong with an all-to-all is said as plain mpi4py says it, and nothing of it remains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from tests.mpi.support import TESTSOME_CRASHES, grid_comm
from tests.mpi.test_alltoall import check_alltoall

WRONG: dict[str, Callable[[int], tuple[Any, Any]]] = {
    "not a buffer": lambda size: (3, np.zeros(size)),
    "nothing to receive into": lambda size: (np.zeros(size), None),
    "no even blocks": lambda size: (np.zeros(3 * size + 1), np.zeros(3 * size + 1)),
    "negative count": lambda size: ([np.zeros(size), -1, MPI.DOUBLE], np.zeros(size)),
    "no type": lambda size: ([np.zeros(size), 1, "nonsense"], np.zeros(size)),
    "too many items": lambda size: ([np.zeros(size), 1, 0, MPI.DOUBLE, 5], np.zeros(size)),
    "read-only": lambda size: (np.zeros(size), bytes(8 * size)),
    "null type": lambda size: ([np.zeros(size), 1, MPI.DATATYPE_NULL], np.zeros(size)),
    "strided": lambda size: (np.zeros(4 * size)[::2], np.zeros(2 * size)),
    "objects": lambda size: (np.array([None] * size), np.zeros(size)),
}


MISTAKES = [
    pytest.param(what, marks=pytest.mark.mpi(min_size=2)) if what == "no even blocks" else what
    for what in WRONG
]
"""Their names; what has no even blocks is right for one rank."""


@pytest.mark.parametrize("what", MISTAKES)
def test_wrong_arguments_get_the_same_error(world: MPI.Intracomm, what: str) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        errors = []
        for caller in (world, comm.forced("alltoall", "direct")):
            with pytest.raises(Exception) as caught:
                caller.Alltoall(*WRONG[what](size))
            error = caught.value
            # An MPI library's text may name the communicator.
            what_it_says = (
                error.Get_error_class() if isinstance(error, MPI.Exception) else str(error)
            )
            errors.append((caught.type, what_it_says))
        assert errors[0] == errors[1]
        check_alltoall(comm, 7)


@pytest.mark.mpi(min_size=2)
def test_blocks_do_not_cut_items(world: MPI.Intracomm) -> None:
    """One item as large as a block for everybody would make even blocks of bytes."""
    size = world.Get_size()
    row = MPI.INT.Create_contiguous(size).Commit()
    with grid_comm(world) as comm:
        for caller in (world, comm.forced("alltoall", "direct")):
            with pytest.raises(ValueError, match="not a multiple of required number of blocks"):
                caller.Alltoall([np.zeros(size, "i4"), row], [np.zeros(size, "i4"), row])
        check_alltoall(comm, 7)
    row.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(TESTSOME_CRASHES, reason="Open MPI crashes in Testsome")
@pytest.mark.parametrize("n", [1, 100, 50_000])
def test_a_block_too_long_is_told_where_it_comes(world: MPI.Intracomm, n: int) -> None:
    """The receiver is told, as MPI has it; all else arrives, and so does all of later calls."""
    rank, size = world.Get_rank(), world.Get_size()
    sent, got = np.full(2 * n, rank, "i4"), np.full(size * n, -1, "i4")
    counts = [2 * n if rank == 0 and other == 1 else n for other in range(size)]
    source = [sent, counts, [0] * size, MPI.INT]
    into = [got, [n] * size, [n * other for other in range(size)], MPI.INT]
    with grid_comm(world) as comm:
        ours = comm.forced("alltoall", "direct")
        if rank == 1:
            with pytest.raises(MPI.Exception) as caught:
                ours.Alltoallv(source, into)
            assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
            got = got[n:]
        else:
            ours.Alltoallv(source, into)
        assert (got == np.repeat(np.arange(size), n)[-len(got) :]).all()
        for later in (1, 20_000):
            check_alltoall(ours, later)
