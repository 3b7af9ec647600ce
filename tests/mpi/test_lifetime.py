"""Nothing grows, and MPI ends cleanly whatever is still alive."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm import context as contexts
from gridcoll.comm.context import N_CACHED_PLANS
from tests.mpi.support import bytes_kept, grid_comm, grid_model, layouts

_ALIVE: list[GridComm] = []


def test_alive_at_finalize(world: MPI.Intracomm) -> None:
    """These are never freed. The job's exit code says whether MPI minded: see `make test-mpi`."""
    own = world.Dup()
    comm = GridComm(own, model=grid_model(layouts(world.Get_size()).get("two", [0])))
    comm.cluster_comms()
    comm.Bcast(np.zeros(10_000))
    _ALIVE.extend([comm, comm.Dup(), comm.forced("bcast", "chain")])


def n_open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0  # noqa: PTH208


def test_nothing_grows_over_many_calls(world: MPI.Intracomm) -> None:
    n_calls = 2000 // world.Get_size() ** 2 + 100
    with grid_comm(world) as comm:
        buffer = np.zeros(3000)
        chain, split = comm.forced("bcast", "chain"), comm.forced("bcast", "split")

        def calls(n: int) -> None:
            for k in range(n):
                root = k % comm.Get_size()
                (chain, split)[k % 2].Bcast(buffer, root)
                chain.bcast([k, "x" * 1500], root)

        calls(4 * comm.Get_size())
        files = n_open_files()
        # A request or message kept per call would be ten times this.
        assert bytes_kept(calls, n_calls) < 40 * n_calls
        assert n_open_files() <= files


def test_plans_are_not_kept_for_ever(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        chain = comm.forced("bcast", "chain")
        for n in range(N_CACHED_PLANS + 20):
            buffer = bytearray(n)
            chain.Bcast(buffer, 0)
        context = chain._context
        assert context is not None
        assert len(context._programs) <= N_CACHED_PLANS
        assert len(context._choices) <= 40  # size classes, not sizes


def test_choices_are_not_kept_for_ever(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor forgotten while they are used; what was forgotten is chosen again, alike."""
    monkeypatch.setattr(contexts, "N_CACHED_CHOICES", 5)
    with grid_comm(world) as comm:
        context = comm._context
        assert context is not None
        used = context.choice("bcast", 8, 0)
        first = context.choice("bcast", 1 << 10, 0)
        for k in range(11, 21):
            context.choice("bcast", 1 << k, k % comm.Get_size())
            assert context.choice("bcast", 8, 0) is used
            assert len(context._choices) <= 5
        again = context.choice("bcast", 1 << 10, 0)
        assert again is not first
        assert (again.winner.label, again.winner.predicted_s) == (
            first.winner.label,
            first.winner.predicted_s,
        )
