"""Gather, Gatherv and gather by every registered algorithm, against NumPy and plain mpi4py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
from tests.mpi.bodies import check_gather
from tests.mpi.support import grid_comm

NAMES = (*natives_of("gather"), *REGISTRIES["gather"])


@pytest.mark.parametrize(("send", "receive"), PAIRS)
def test_buffer_forms(world: MPI.Intracomm, send: str, receive: str) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        results = []
        for caller in (world, comm):
            source = np.arange(18, dtype="i4") + 1000 * rank
            into = np.full(6 * size + 12, -1, "i4")
            caller.Gather(FORMS[send](source, 1), FORMS[receive](into, size), size - 1)
            results.append(into)
        assert (results[0] == results[1]).all()


@pytest.mark.parametrize("make", [columns, struct])
@pytest.mark.parametrize("method", ["Gather", "Gatherv"])
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
                getattr(caller, method)(source, [into, 1, datatype], size - 1)
                results.append(into.copy())
                keep_only(memory, into)
                getattr(caller, method)(
                    MPI.IN_PLACE if rank == size - 1 else source, [into, 1, datatype], size - 1
                )
                results.append(into)
            assert all((result == results[0]).all() for result in results)
            assert (results[0] == -1).any()
    finally:
        datatype.Free()


def test_uneven_blocks(world: MPI.Intracomm, n_planned: list[int]) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    sizes = uneven(size)
    forms, mine = uneven_forms(sizes), block(rank, sizes[rank])
    with grid_comm(world) as comm:
        for root in sorted({0, size - 1}):
            for spec in forms.values():
                results = []
                for caller in (world, comm):
                    into = np.full(room_for(sizes), -1, "i4")
                    given = spec(into) if rank == root else None
                    assert caller.Gatherv(mine, given, root) is None
                    results.append(into.copy())
                    keep_only(mine, into)
                    caller.Gatherv(mine if rank != root else MPI.IN_PLACE, given, root)
                    results.append(into)
                assert all((result == results[0]).all() for result in results)
                assert rank != root or sum(sizes) == 0 or (results[0] != -1).any()
        planned = comm.explain("gatherv", 0).winner.build is not None
        assert n_planned[0] == 2 * len(forms) * len({0, size - 1}) * int(planned)


def test_counts_left_out(world: MPI.Intracomm) -> None:
    """One for all; or as even as the memory allows, the first ranks with one more."""
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        for n in (2 * size, 2 * size + size // 2):
            results = []
            for caller in (world, comm):
                into = np.full(n, -1, "i4")
                caller.Gatherv(block(rank, n // size + int(rank < n % size)), into)
                if n % size == 0:
                    caller.Gatherv(block(rank, 2), [into, 2])
                results.append(into)
            assert (results[0] == results[1]).all()


@pytest.mark.parametrize("algorithm", NAMES)
def test_objects(world: MPI.Intracomm, algorithm: str) -> None:
    """Shorter than the first message and longer, at every root."""
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        ours = comm.forced("gather", algorithm)
        for root in sorted({0, size // 2, size - 1}):
            for much in (0, 90, 50_000):
                got = ours.gather(thing(rank, much), root)
                wanted = [thing(other, much) for other in range(size)]
                assert got == (wanted if rank == root else None)
        arrays = ours.gather(np.full(rank * 1000 + 1, rank))
        if arrays is not None:
            for other, each in enumerate(arrays):
                assert each.shape == (other * 1000 + 1,)
                each[:] = 0  # not read-only


def test_every_pickle_length_about_the_header(world: MPI.Intracomm) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        for n in range(225, 250, 3):
            got = comm.gather(b"x" * (n + rank))
            assert got == ([b"x" * (n + r) for r in range(size)] if rank == 0 else None)


def test_pickle_settings_are_honoured(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ``MPI.pickle`` is told to pickle with; an empty pickle is None."""
    rank, size = world.Get_rank(), world.Get_size()
    own = MPI.Pickle(lambda item: bytes([item]) * item, lambda data: bytes(data)[0])
    with grid_comm(world) as comm:
        monkeypatch.setattr(MPI, "pickle", own)
        got = comm.gather(rank)
        if size > 1:
            assert got == ([None, *range(1, size)] if rank == 0 else None)


WRONG: dict[str, Callable[[MPI.Intracomm, int], object]] = {
    "root beyond": lambda c, size: c.Gather(np.zeros(2), np.zeros(2 * size), size),
    "root no number": lambda c, size: c.Gather(np.zeros(2), np.zeros(2 * size), "0"),  # type: ignore[arg-type]
    "not a buffer": lambda c, size: c.Gather(3, np.zeros(size)),  # type: ignore[arg-type]
    "strided": lambda c, size: c.Gather(np.zeros(4)[::2], np.zeros(2 * size)),
    "objects": lambda c, size: c.Gather(np.array([None]), np.zeros(size)),
    "no type": lambda c, size: c.Gather([np.zeros(1), 1, "nonsense"], np.zeros(size)),
    "null type": lambda c, size: c.Gather([np.zeros(1), 1, MPI.DATATYPE_NULL], np.zeros(size)),
    "negative count": lambda c, size: c.Gather([np.zeros(1), -1, MPI.DOUBLE], np.zeros(size)),
    "misspelt keyword": lambda c, size: c.Gather(sendbuffer=np.zeros(1)),  # type: ignore[call-arg]
    "v: not a buffer": lambda c, size: c.Gatherv(3, np.zeros(size)),  # type: ignore[arg-type]
    "v: root beyond": lambda c, size: c.Gatherv(np.zeros(1), np.zeros(size), size),
    "object: root beyond": lambda c, size: c.gather(1, size),
    "object: no pickle": lambda c, size: c.gather(lambda: None),
}
"""Wrong on every rank alike."""


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_get_the_same_error(world: MPI.Intracomm, what: str) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        theirs, ours = (outcome(WRONG[what], caller, size) for caller in (world, comm))
        assert theirs[0] != "no error"
        assert ours == theirs
        check_gather(comm, 7, 0)


WRONG_AT_ROOT: dict[str, Callable[[int], Any]] = {
    "nothing to receive into": lambda size: None,
    "no even blocks": lambda size: np.zeros(2 * size + 1, "i4"),
    "read-only": lambda size: bytes(8 * size),
    "too many items": lambda size: ([np.zeros(2 * size), 2, 0, MPI.INT, 5]),
}


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("what", WRONG_AT_ROOT)
def test_a_root_in_error_raises_before_anything_moves(world: MPI.Intracomm, what: str) -> None:
    """The others do not even call: that is what plain MPI's ranks would wait for."""
    with grid_comm(world) as comm:
        if world.Get_rank() == 0:
            spec = WRONG_AT_ROOT[what](world.Get_size())
            theirs, ours = (
                outcome(caller.Gather, np.zeros(2, "i4"), spec) for caller in (world, comm)
            )
            assert theirs[0] != "no error"
            assert ours == theirs
        check_gather(comm, 7, 0)
