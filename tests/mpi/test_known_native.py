"""A call that is known to be the MPI library's own is handed over unread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm.methods import alltoall, broadcast
from tests.mpi.support import grid_comm

CALLS: dict[str, tuple[Any, str, Callable[[GridComm, int], None]]] = {
    "Bcast": (broadcast, "read_message", lambda comm, n: comm.Bcast(np.zeros(n), 0)),
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
    read: list[Any] = []
    plain = getattr(module, reader)

    def counted(*args: Any, **kwargs: Any) -> Any:
        read.append(args)
        return plain(*args, **kwargs)

    monkeypatch.setattr(module, reader, counted)
    with grid_comm(world) as comm:
        native = comm.forced(name.lower(), "native")
        for n in (4, 4, 4, 5, 4):
            call(native, n)
        assert len(read) == 2
        # What another communicator of the same ranks does with that size is its own business.
        planned = comm.forced(name.lower(), "chain" if name == "Bcast" else "direct")
        call(planned, 4)
        call(planned, 4)
        assert len(read) == 3 + (world.Get_size() > 1)  # alone, nothing is planned


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
