"""A call that is known to be the MPI library's own is handed over unread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm.gridcomm import _COLLECTIVES
from gridcoll.comm.methods import alltoall, broadcast, reductions
from tests.mpi.support import count_calls, grid_comm, layouts, works

CALLS: dict[str, tuple[Any, str, Callable[[GridComm, int], None]]] = {
    "Bcast": (broadcast, "read_message", lambda comm, n: comm.Bcast(np.zeros(n), 0)),
    "Allreduce": (
        reductions,
        "read_reduction",
        lambda comm, n: comm.Allreduce(np.zeros(n), np.zeros(n)),
    ),
    "Alltoall": (
        alltoall,
        "read_exchange",
        lambda comm, n: comm.Alltoall(np.zeros(n * comm.size), np.zeros(n * comm.size)),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_only_the_first_call_of_a_size_is_read(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    module, reader, call = CALLS[name]
    read = count_calls(monkeypatch, module, reader)
    with grid_comm(world) as comm:
        native = comm.forced(name.lower(), "native")
        for n in (4, 4, 4, 5, 4):
            call(native, n)
        assert len(read) == 2
        # What another communicator of the same ranks does with that size is its own business.
        plans = {"Bcast": "chain", "Allreduce": "coordinators", "Alltoall": "direct"}
        planned = comm.forced(name.lower(), plans[name])
        call(planned, 4)
        call(planned, 4)
        assert len(read) == 3 + (world.Get_size() > 1)  # alone, nothing is planned


def test_an_allreduce_of_another_kind_is_read(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of other elements or by another operation; the user's operations always are."""
    kinds: list[str] = []
    plain = reductions.read_reduction
    monkeypatch.setattr(
        reductions,
        "read_reduction",
        lambda given, into, op: kinds.append(into.dtype.str) or plain(given, into, op),
    )
    own = MPI.Op.Create(lambda a, b, kind: None, commute=True)
    with grid_comm(world) as comm:
        native = comm.forced("allreduce", "native")
        for op in (MPI.SUM, MPI.SUM, MPI.MAX, own, own):
            native.Allreduce(np.ones(2), np.empty(2), op)
        native.Allreduce(np.ones(4, "i4"), np.empty(4, "i4"))
        result = np.empty(2)
        native.Allreduce(np.ones(2), result)
        assert (result == world.Get_size()).all()
    own.Free()
    assert kinds == ["<f8"] * 4 + ["<i4"]


def test_checked_calls_are_always_read(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")
    if world.Get_size() == 1:
        return
    with grid_comm(world, native_s=1e-9) as comm:
        comm.Bcast(np.zeros(4), 0)
        with pytest.raises(Exception, match="bytes=32"):
            comm.Bcast(np.zeros(4 + (world.Get_rank() == 1)), 0)


def is_mpis_own(comm: MPI.Intracomm, name: str) -> bool:
    """Whether a call goes to the MPI library without a step of ours between."""
    return bool(getattr(comm, name) == getattr(MPI.Intracomm, name).__get__(comm))


def test_where_nothing_can_be_gained_every_collective_is_mpis_own(world: MPI.Intracomm) -> None:
    """The one promise about one machine that holds for messages of every size."""
    assert {"Bcast", "Alltoallw", "allreduce", "Ibarrier", "Bcast_init"} <= set(_COLLECTIVES)
    assert {"Dup", "Split", "Free"}.isdisjoint(_COLLECTIVES)
    with grid_comm(world, [0] * world.Get_size()) as comm:
        assert all(is_mpis_own(comm, name) for name in _COLLECTIVES)
        works(comm)
        part = comm.Split(0, 0)
        assert is_mpis_own(part, "Bcast")
        part.Free()
        copy = comm.Dup()
        assert is_mpis_own(copy, "Bcast")
        copy.Free()
        assert not is_mpis_own(comm.forced("bcast", "chain"), "Bcast")


def test_where_something_can_be_gained_none_is(world: MPI.Intracomm) -> None:
    if "two" in layouts(world.Get_size()) and world.Get_size() > 1:
        with grid_comm(world) as comm:
            assert not any(is_mpis_own(comm, name) for name in _COLLECTIVES)


def test_what_a_subclass_overrides_stays_in_front(world: MPI.Intracomm) -> None:
    class Counted(GridComm):
        n_calls = 0

        def Bcast(self, buf: Any, root: int = 0) -> None:
            type(self).n_calls += 1
            super().Bcast(buf, root)

    with grid_comm(world, [0] * world.Get_size()) as plain:
        comm = Counted(plain, model=plain.model)
        comm.Bcast(np.zeros(3))
        assert Counted.n_calls == 1
        assert is_mpis_own(comm, "Allreduce")
        comm.Free()
