"""alltoall of objects by every registered algorithm, against plain mpi4py on the same ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from tests.mpi.support import grid_comm
from tests.mpi.test_alltoall import NAMES


@pytest.mark.parametrize("algorithm", NAMES)
def test_objects(world: MPI.Intracomm, algorithm: str, n_planned: list[int]) -> None:
    """Of different sizes for every pair; any iterable of as many as there are ranks."""
    rank, size = world.Get_rank(), world.Get_size()

    def thing(by: int, to: int) -> Any:
        return {"from": by, "to": to, "much": "x" * (1000 * by * to), "big": 10**50 + by}

    wanted = [thing(by, rank) for by in range(size)]
    with grid_comm(world) as comm:
        ours = comm.forced("alltoall", algorithm)
        things = [thing(rank, to) for to in range(size)]
        assert ours.alltoall(things) == wanted
        assert ours.alltoall(tuple(things)) == wanted
        assert ours.alltoall(iter(things)) == wanted
        assert ours.alltoall(each for each in things) == wanted
        assert ours.alltoall(None) == world.alltoall(None)  # type: ignore[arg-type]
        own = ours.alltoall(things)[rank]
        assert own is not things[rank]
        planned = ours.explain("alltoall", 8).winner.build is not None
        assert n_planned[0] == 12 * int(planned)


def test_arrays_as_objects(world: MPI.Intracomm) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        got = comm.alltoall([np.full(to * 1000 + 1, rank) for to in range(size)])
        for by, each in enumerate(got):
            assert each.shape == (rank * 1000 + 1,)
            assert (each == by).all()
            each[:] = 0  # not read-only


def test_wrong_objects_get_the_same_error(world: MPI.Intracomm) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        ours = comm.forced("alltoall", "direct")
        for wrong in ([0] * (size + 1), [], 5, [lambda: None] * size):
            errors = []
            for caller in (world, ours):
                with pytest.raises(Exception) as caught:
                    caller.alltoall(wrong)  # type: ignore[arg-type]
                errors.append((caught.type, str(caught.value)))
            assert errors[0] == errors[1]
        assert ours.alltoall([0] * size) == [0] * size


@pytest.mark.mpi(min_size=2)
def test_pickle_settings_are_honoured(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ``MPI.pickle`` is told to pickle with."""
    used = []

    def dumps(item: Any, protocol: int | None = None) -> bytes:
        used.append("dumps")
        return bytes([item])

    def loads(data: Any) -> int:
        used.append("loads")
        return bytes(data)[0]

    size = world.Get_size()
    with grid_comm(world) as comm:
        own = MPI.Pickle(dumps, loads)
        monkeypatch.setattr(MPI, "pickle", own)
        assert comm.forced("alltoall", "direct").alltoall([9] * size) == [9] * size
        assert used == ["dumps"] * size + ["loads"] * size
