"""A call that is known to be the MPI library's own is handed over unread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm.communicator import _COLLECTIVES
from gridcoll.comm.context import Context
from gridcoll.comm.methods import reductions
from gridcoll.plan.natives import NATIVE, NONBLOCKING, natives_of
from tests.mpi.support import count_calls, grid_comm, layouts, works

CALLS: dict[str, Callable[[GridComm, int], None]] = {
    "Bcast": lambda comm, n: comm.Bcast(np.zeros(n), 0),
    "Allreduce": lambda comm, n: comm.Allreduce(np.zeros(n), np.zeros(n)),
    "Reduce": lambda comm, n: comm.Reduce(np.zeros(n), np.zeros(n)),
    "Reduce_scatter_block": lambda comm, n: comm.Reduce_scatter_block(
        np.zeros(n * comm.size), np.zeros(n)
    ),
    "Alltoall": lambda comm, n: comm.Alltoall(np.zeros(n * comm.size), np.zeros(n * comm.size)),
    "Allgather": lambda comm, n: comm.Allgather(np.zeros(n), np.zeros(n * comm.size)),
    "Gather": lambda comm, n: comm.Gather(np.zeros(n), np.zeros(n * comm.size)),
    "Scatter": lambda comm, n: comm.Scatter(np.zeros(n * comm.size), np.zeros(n)),
    "Barrier": lambda comm, n: comm.Barrier(),
}

PLANS = {"Bcast": "chain", "Allreduce": "leaders", "Alltoall": "direct"}


def collective_of(name: str) -> str:
    return name.lower().removesuffix("_block")


@pytest.mark.parametrize(
    ("native", "name"),
    [
        (native, name)
        for native in (NATIVE, NONBLOCKING)
        for name in CALLS
        if native in natives_of(collective_of(name))
    ],
)
def test_only_the_first_call_of_a_size_is_looked_into(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, name: str, native: str
) -> None:
    call, collective = CALLS[name], collective_of(name)
    looked = count_calls(monkeypatch, Context, "decide")
    with grid_comm(world) as comm:
        ours = comm.forced(collective, native)
        for n in (4, 4, 4, 5, 4):
            call(ours, n)
        assert len(looked) == (1 if name == "Barrier" else 2)


@pytest.mark.parametrize("name", PLANS)
def test_what_one_communicator_knows_is_not_for_another(
    world: MPI.Intracomm, n_planned: list[int], name: str
) -> None:
    call = CALLS[name]
    with grid_comm(world) as comm:
        call(comm.forced(name.lower(), "native"), 4)
        planned = comm.forced(name.lower(), PLANS[name])
        call(planned, 4)
        call(planned, 4)
        assert n_planned == [2 * (world.Get_size() > 1)]  # alone, nothing is planned


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["Gather", "Scatter"])
def test_a_root_may_leave_its_block_where_it_is(world: MPI.Intracomm, name: str) -> None:
    """Which it then reads each time, and the others do not."""
    size, rank, root = world.Get_size(), world.Get_rank(), world.Get_size() - 1
    with grid_comm(world) as comm:
        native = comm.forced(name.lower(), NATIVE)
        for n in (4, 4, 4 * size, 4):
            mine = np.arange(n) + 100 * rank
            everybody = np.concatenate([np.arange(n) + 100 * other for other in range(size)])
            staying: Any = MPI.IN_PLACE if rank == root else mine
            if name == "Gather":
                got = everybody if rank == root else np.zeros(0, int)
                got[: rank * n] = 0
                native.Gather(staying, got, root)
                assert rank != root or (got.reshape(size, n)[:, 0] == 100 * np.arange(size)).all()
            else:
                mine[:] = 100 * rank + np.arange(n) if rank == root else 0
                native.Scatter(everybody, staying, root)
                assert (mine == np.arange(n) + 100 * rank).all()


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


@pytest.mark.mpi(min_size=2)
def test_checked_calls_are_always_read(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")
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
