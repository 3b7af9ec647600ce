"""GRIDCOLL_CHECK=1 compares basic types, whatever layouts they lie in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.comm.arguments.elements import signature
from gridcoll.errors import DisagreementError
from tests.mpi.support import grid_comm, works


def derived() -> dict[str, MPI.Datatype]:
    """Types that are none of MPI's own, by what they are made of."""
    pairs = MPI.Datatype.Create_struct([2, 1], [0, 8], [MPI.INT, MPI.DOUBLE])
    return {
        "columns": MPI.INT.Create_vector(3, 2, 5),
        "resized": MPI.INT.Create_vector(3, 1, 5).Create_resized(0, 4),
        "part": MPI.INT.Create_subarray([4, 4], [2, 2], [1, 1]),
        "pairs": pairs,
        "many pairs": pairs.Create_contiguous(3).Dup(),
        "nested": MPI.Datatype.Create_struct(
            [3, 2], [0, 64], [MPI.INT.Create_contiguous(2), MPI.DOUBLE]
        ),
        "nothing": MPI.INT.Create_contiguous(0),
    }


def test_the_types_of_a_buffer_argument() -> None:
    made, memory = derived(), bytearray(999)
    assert [signature([memory, 1, each]) for each in made.values()] == [
        *("i4", "i4", "i4", "f8:1 i4:1", "f8:1 i4:1", "f8:2 i4:3", "")
    ]
    for each in made.values():
        each.Free()
    floats = np.zeros(3)
    for spec in (
        floats,
        [floats, MPI.DOUBLE],
        [floats, "d"],
        [floats, 2],
        [floats, ([1, 2], None)],
    ):
        assert signature(spec) == "f8"
    assert signature([None, [0], [0], MPI.INT]) == "i4"
    for anything in (None, MPI.IN_PLACE, [memory, MPI.PACKED], 3, [memory, "no type"]):
        assert signature(anything) == ""


Call = Callable[[MPI.Intracomm, int, Any, Any], object]
"""A call of so many ranks with arrays of eight bytes for each: what is sent, what is received."""

CALLS: dict[str, Call] = {
    "Bcast": lambda comm, size, mine, ours: comm.Bcast(mine),
    "Gather": lambda comm, size, mine, ours: comm.Gather(mine, ours),
    "Gatherv": lambda comm, size, mine, ours: comm.Gatherv(mine, [ours, [1] * size]),
    "Scatter": lambda comm, size, mine, ours: comm.Scatter(ours, mine),
    "Scatterv": lambda comm, size, mine, ours: comm.Scatterv([ours, [1] * size], mine),
    "Allgather": lambda comm, size, mine, ours: comm.Allgather(mine, ours),
    "Allgatherv": lambda comm, size, mine, ours: comm.Allgatherv(mine, [ours, [1] * size]),
    "Alltoall": lambda comm, size, mine, ours: comm.Alltoall(ours.copy(), ours),
    "Alltoallv": lambda comm, size, mine, ours: comm.Alltoallv(
        [ours.copy(), [1] * size], [ours, [1] * size]
    ),
}


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("name", CALLS)
def test_elements_of_another_type(
    world: MPI.Intracomm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long, but whole numbers on the last rank."""
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")
    size = world.Get_size()
    last = size - 1
    with grid_comm(world) as comm:
        for odd in ("f8", "i8"):
            kind = odd if comm.Get_rank() == last else "f8"
            mine, ours = np.zeros(1, kind), np.zeros(size, kind)
            if odd == "f8":
                CALLS[name](comm, size, mine, ours)
                continue
            said = f"{name}: rank 0 has elements of f8, rank {last} of i8"
            with pytest.raises(DisagreementError, match=said):
                CALLS[name](comm, size, mine, ours)
        works(comm)


@pytest.mark.mpi(min_size=3)
def test_the_same_elements_in_another_layout(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")
    with grid_comm(world) as comm:
        column = MPI.INT.Create_vector(4, 1, 3).Commit()
        memory = np.full(12, comm.Get_rank(), "i4")
        comm.Bcast([memory, 1, column] if comm.Get_rank() % 2 else [memory, 4, MPI.INT])
        assert memory[0] == 0
        column.Free()
