"""The MPI library's own collectives, timed."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from gridcoll.comm.clock import estimate_offset
from gridcoll.comm.natives import LARGEST_BYTES, STEPS, time_native
from tests.mpi.support import grid_model, layouts


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", STEPS)
def test_every_native_is_timed_up_to_its_largest_size(world: MPI.Intracomm, name: str) -> None:
    """The same on all ranks; of blocks for every rank only sizes that add up to little."""
    model = grid_model(layouts(world.Get_size())["two"])
    sizes = (8, 1 << 10, (1 << 16) + 8)
    found = time_native(world, model, estimate_offset(world), name, sizes, lambda *_: None)
    wanted = tuple(n for n in sizes if n <= LARGEST_BYTES.get(name, n))
    assert found.sizes_bytes == wanted[: len(found.sizes_bytes)]
    assert found.sizes_bytes[0] == 8
    assert all(seconds > 0 for seconds in found.seconds)
    assert world.allgather(found) == [found] * world.Get_size()
