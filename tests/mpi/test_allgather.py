"""Allgather, Allgatherv and allgather by every algorithm, against NumPy and plain mpi4py."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.plan import REGISTRIES
from gridcoll.plan.natives import natives_of
from tests.mpi.blocks import (
    FORMS,
    PAIRS,
    block,
    columns,
    keep_only,
    outcome,
    room_for,
    struct,
    thing,
    uneven,
    uneven_forms,
)
from tests.mpi.bodies import check_allgather
from tests.mpi.support import grid_comm

NAMES = (*natives_of("allgather"), *REGISTRIES["allgather"])


@pytest.mark.parametrize(("send", "receive"), PAIRS)
def test_buffer_forms(world: MPI.Intracomm, send: str, receive: str) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        results = []
        for caller in (world, comm):
            source = np.arange(18, dtype="i4") + 1000 * rank
            into = np.full(6 * size + 12, -1, "i4")
            caller.Allgather(FORMS[send](source, 1), FORMS[receive](into, size))
            results.append(into)
        assert (results[0] == results[1]).all()


def test_an_array_of_the_standard_library(world: MPI.Intracomm) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        got = array("d", [0.0] * size)
        comm.Allgather(array("d", [float(comm.Get_rank())]), got)
        assert list(got) == [float(rank) for rank in range(size)]


@pytest.mark.parametrize("make", [columns, struct])
@pytest.mark.parametrize("method", ["Allgather", "Allgatherv"])
def test_derived_types(world: MPI.Intracomm, method: str, make: Callable[[], MPI.Datatype]) -> None:
    """Types with gaps, the layout another one on odd ranks; what is between stays untouched."""
    rank, size = world.Get_rank(), world.Get_size()
    datatype = make().Commit()
    try:
        with grid_comm(world) as comm:
            results = []
            for caller in (world, comm):
                memory = np.arange(40, dtype="i4") + 5000 * rank
                into = np.full(60 * size, -1, "i4")
                source = [memory, 1, datatype] if rank % 2 else [memory, 3, MPI.INT]
                getattr(caller, method)(source, [into, 1, datatype])
                results.append(into.copy())
                keep_only(memory, into)
                getattr(caller, method)(MPI.IN_PLACE, [into, 1, datatype])
                results.append(into)
            assert all((result == results[0]).all() for result in results)
            assert (results[0] == -1).any()
    finally:
        datatype.Free()


@pytest.mark.parametrize("algorithm", NAMES)
def test_uneven_blocks(world: MPI.Intracomm, algorithm: str, n_planned: list[int]) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    sizes = uneven(size)
    forms, mine = uneven_forms(sizes), block(rank, sizes[rank])
    with grid_comm(world) as comm:
        ours = comm.forced("allgather", algorithm)
        for spec in forms.values():
            results = []
            for caller in (world, ours):
                into = np.full(room_for(sizes), -1, "i4")
                assert caller.Allgatherv(mine, spec(into)) is None
                results.append(into.copy())
                keep_only(mine, into)
                caller.Allgatherv(MPI.IN_PLACE, spec(into))
                results.append(into)
            assert all((result == results[0]).all() for result in results)
        planned = ours.explain("allgather", 4 * sum(sizes) // size).winner.build is not None
        assert n_planned[0] == 2 * len(forms) * int(planned)


def test_ranks_may_put_blocks_elsewhere(world: MPI.Intracomm) -> None:
    """Displacements are each rank's own affair; so is one count for all."""
    rank, size = world.Get_rank(), world.Get_size()
    sizes = [2] * size
    forms = {**uneven_forms(sizes), "one count": lambda memory: [memory, 2]}
    names = list(forms)
    with grid_comm(world) as comm:
        for turn in range(3):
            spec = forms[names[(rank + turn) % len(names)]]
            results = []
            for caller in (world, comm):
                into = np.full(room_for(sizes), -1, "i4")
                caller.Allgatherv(block(rank, 2), spec(into))
                results.append(into)
            assert (results[0] == results[1]).all()


@pytest.mark.parametrize("algorithm", NAMES)
def test_objects(world: MPI.Intracomm, algorithm: str) -> None:
    """Shorter than the first message and longer, and some of each."""
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        ours = comm.forced("allgather", algorithm)
        for much in (0, 40, 90, 50_000):
            got = ours.allgather(thing(rank, much))
            assert got == [thing(other, much) for other in range(size)]
        mine = [1, [rank]]
        assert ours.allgather(mine)[rank] is not mine
        arrays = ours.allgather(np.full(rank * 1000 + 1, rank))
        for other, each in enumerate(arrays):
            assert each.shape == (other * 1000 + 1,)
            each[:] = 0  # not read-only


def test_every_pickle_length_about_the_header(world: MPI.Intracomm) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        for n in range(225, 250, 3):
            wanted = [b"x" * (n + other) for other in range(size)]
            assert comm.allgather(wanted[rank]) == wanted


WRONG: dict[str, Callable[[MPI.Intracomm, int], object]] = {
    "not a buffer": lambda c, size: c.Allgather(3, np.zeros(size)),  # type: ignore[arg-type]
    "nothing to receive into": lambda c, size: c.Allgather(np.zeros(1), None),  # type: ignore[arg-type]
    "no even blocks": lambda c, size: c.Allgather(np.zeros(2), [np.zeros(2 * size + 1), -1]),
    "strided": lambda c, size: c.Allgather(np.zeros(4)[::2], np.zeros(2 * size)),
    "objects": lambda c, size: c.Allgather(np.array([None]), np.zeros(size)),
    "no type": lambda c, size: c.Allgather([np.zeros(1), 1, "nonsense"], np.zeros(size)),
    "null type": lambda c, size: c.Allgather([np.zeros(1), 1, MPI.DATATYPE_NULL], np.zeros(size)),
    "read-only": lambda c, size: c.Allgather(np.zeros(1), bytes(8 * size)),
    "too many items": lambda c, size: c.Allgather([np.zeros(1), 1, 0, "d", 5], np.zeros(size)),
    "misspelt keyword": lambda c, size: c.Allgather(sendbuffer=np.zeros(1)),  # type: ignore[call-arg]
    "v: counts for others": lambda c, size: c.Allgatherv(np.zeros(1), [np.zeros(99), [1] * 99]),
    "v: not a buffer": lambda c, size: c.Allgatherv(3, np.zeros(size)),  # type: ignore[arg-type]
    "v: read-only": lambda c, size: c.Allgatherv(np.zeros(1), bytes(8 * size)),
    "object: no pickle": lambda c, size: c.allgather(lambda: None),
}
"""Wrong on every rank alike."""


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_get_the_same_error(world: MPI.Intracomm, what: str) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        theirs, ours = (outcome(WRONG[what], caller, size) for caller in (world, comm))
        assert theirs[0] != "no error"
        assert ours == theirs
        check_allgather(comm, 7)
