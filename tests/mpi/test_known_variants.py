"""A call that is known to be a variant of a native is handed over unread, where that is safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.comm.methods import alltoall, broadcast
from gridcoll.plan.natives import NATIVE, NONBLOCKING, VECTOR
from tests.mpi import bodies
from tests.mpi.blocks import outcome
from tests.mpi.support import count_calls, grid_comm
from tests.mpi.test_alltoall_errors import MISTAKES
from tests.mpi.test_alltoall_errors import WRONG as WRONG_ALLTOALL
from tests.mpi.test_errors import WRONG as WRONG_BCAST
from tests.mpi.timed import QUICK, VARIANTS, call_of, timed_comm


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("collective", "name"), [v for v in VARIANTS if v[0] == "bcast"])
def test_a_broadcast_is_read_once_per_size(
    world: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    collective: str,
    name: str,
    called: list[str],
) -> None:
    read = count_calls(monkeypatch, broadcast, "read_message")
    with timed_comm(world, {collective: {NATIVE: 2 * QUICK, name: QUICK}}) as comm:
        for n in (4, 4, 5, 4):
            bodies.check_bcast(comm, n, 0)
        assert (len(read), called) == (2, ["Ibcast"] * 4)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", [NONBLOCKING, VECTOR])
def test_an_exchange_is_read_once_per_size(
    world: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    called: list[str],
) -> None:
    read = count_calls(monkeypatch, alltoall, "read_exchange")
    size, rank = world.Get_size(), world.Get_rank()
    with timed_comm(world, {"alltoall": {NATIVE: 2 * QUICK, name: QUICK}}) as comm:
        bodies.check_routing(comm, 6)  # the second of its two calls is in place
        n_read = 1 + (name == VECTOR)
        assert len(read) == n_read
        # Ranks whose arguments must be read go the same way as those whose need not.
        sent, got = np.arange(6 * size, dtype="i4") + 1000 * rank, np.zeros(6 * size, "i4")
        into: Any = got if rank % 2 else [got, 6, "i"]
        comm.Alltoall(sent, into)
        assert len(read) == n_read + (1 - rank % 2)
        wanted = [np.arange(6) + 6 * rank + 1000 * other for other in range(size)]
        assert (got == np.concatenate(wanted)).all()
        assert called == [call_of("alltoall", name)] * 3


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("who", ["one", "all"])
def test_shorter_blocks_arrive_in_their_places(world: MPI.Intracomm, who: str) -> None:
    """As in a plan; whether calls of that size are known or not."""
    size, rank = world.Get_size(), world.Get_rank()
    with grid_comm(world) as comm:
        ours = comm.forced("alltoall", VECTOR)
        for shorter in (3, 6, 2):
            got, is_short = np.full((size, 6), -1, "i4"), who == "all" or rank == size - 1
            ours.Alltoall(np.full(size * (shorter if is_short else 6), rank, "i4"), got)
            assert (got[:, :shorter] == np.arange(size)[:, None]).all()
            if who == "one":
                assert (got[:-1] == np.arange(size - 1)[:, None]).all()


@pytest.mark.parametrize("name", [NONBLOCKING, VECTOR])
@pytest.mark.parametrize("what", MISTAKES)
def test_wrong_arguments_get_the_same_error(world: MPI.Intracomm, name: str, what: str) -> None:
    """When calls of that size are not known, and when they are."""
    size = world.Get_size()
    wanted = outcome(lambda: world.Alltoall(*WRONG_ALLTOALL[what](size)))
    assert wanted[0] != "no error"
    with grid_comm(world) as comm:
        ours = comm.forced("alltoall", name)
        for n_doubles in (0, 1, 2, 3):
            room = n_doubles * size
            ours.Alltoall(np.zeros(room), np.zeros(room))
            assert outcome(lambda: ours.Alltoall(*WRONG_ALLTOALL[what](size))) == wanted
        bodies.check_routing(ours, 7)


@pytest.mark.parametrize("what", WRONG_BCAST)
def test_wrong_broadcasts_get_the_same_error(world: MPI.Intracomm, what: str) -> None:
    def call(comm: MPI.Intracomm) -> object:
        return WRONG_BCAST[what](comm, np.arange(12, dtype="i4"))

    wanted = outcome(lambda: call(world))
    with grid_comm(world) as comm:
        ours = comm.forced("bcast", NONBLOCKING)
        for n_bytes in (0, 48, 24):
            ours.Bcast(np.zeros(n_bytes, "u1"))
            assert outcome(lambda: call(ours)) == wanted
        bodies.check_bcast(ours, 7)
