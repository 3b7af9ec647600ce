"""Nothing grows, and MPI ends cleanly whatever is still alive."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from mpi4py import MPI
from msgspec import Struct

from gridcoll import GridComm
from gridcoll.comm import decisions as module
from gridcoll.comm.context import N_FAST_CALLS
from gridcoll.comm.decisions import N_DECISIONS
from gridcoll.comm.methods import alltoallv
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

        calls(n_calls)  # what is made once is made
        files = n_open_files()
        # A request or message kept per call would be ten times this.
        assert bytes_kept(calls, n_calls) < 40 * n_calls
        assert n_open_files() <= files


def test_plans_are_not_kept_for_ever(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        chain = comm.forced("bcast", "chain")
        for n in range(N_DECISIONS + 20):
            buffer = bytearray(n)
            chain.Bcast(buffer, 0)
        context = chain._context
        assert context is not None
        assert len(context.decisions._decided) <= N_DECISIONS
        assert len(context.decisions._choices) <= 40  # size classes, not sizes


def test_choices_are_not_kept_for_ever(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor forgotten while they are used; what was forgotten is chosen again, alike."""
    monkeypatch.setattr(module, "N_CHOICES", 5)
    with grid_comm(world) as comm:
        context = comm._context
        assert context is not None
        used = context.decisions.choice("bcast", 8, 0)
        first = context.decisions.choice("bcast", 1 << 10, 0)
        for k in range(11, 21):
            context.decisions.choice("bcast", 1 << k, k % comm.Get_size())
            assert context.decisions.choice("bcast", 8, 0) is used
            assert len(context.decisions._choices) <= 5
        module._choose.cache_clear()  # else other communicators' choices are found
        again = context.decisions.choice("bcast", 1 << 10, 0)
        assert again is not first
        assert (again.winner.label, again.winner.predicted_s) == (
            first.winner.label,
            first.winner.predicted_s,
        )


def test_known_calls_are_not_kept_for_ever(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        native = comm.forced("bcast", "native")
        for n in range(N_FAST_CALLS + 20):
            native.Bcast(np.zeros(n, "u1"), 0)
        assert 1 <= len(native._fast_path) <= N_FAST_CALLS


@pytest.mark.parametrize("end", ["Free", "free", "Disconnect"])
def test_the_splitting_is_freed_with_its_owner(world: MPI.Intracomm, end: str) -> None:
    """MPI says so by calling back."""
    gone: list[object] = []
    key = MPI.Comm.Create_keyval(delete_fn=lambda comm, key, value: gone.append(value))
    with grid_comm(world) as comm:
        child = comm.Dup()
        parts = child.cluster_comms()
        made = {"intra": parts.intra, "inter": parts.inter, "lane": parts.lane}
        mine = [name for name, part in made.items() if part != MPI.COMM_NULL]
        for name in mine:
            made[name].Set_attr(key, name)
        getattr(child, end)()
        assert sorted(map(str, gone)) == sorted(mine)
    MPI.Comm.Free_keyval(key)


class Counted(MPI.Datatype):
    """A type that counts those that are made from it, and of these those that are freed."""

    n_made: ClassVar[int] = 0
    n_freed: ClassVar[int] = 0

    def _made(self, new: MPI.Datatype) -> Counted:
        assert isinstance(new, Counted)
        Counted.n_made += 1
        return new

    def Create_hindexed(self, *args: Any) -> Counted:
        return self._made(super().Create_hindexed(*args))

    def Dup(self) -> Counted:
        return self._made(super().Dup())

    def Free(self) -> None:
        Counted.n_freed += 1
        super().Free()


def _freed(request: MPI.Prequest) -> None:
    request.Start()
    request.Wait()
    request.Free()


class Typed(Struct):
    """A communicator, and memory of an item per rank of a type with gaps to send and to fill."""

    comm: MPI.Intracomm
    given: np.ndarray
    into: np.ndarray
    kind: MPI.Datatype

    @property
    def _spread(self) -> tuple[list[int], list[int]]:
        n_ranks = self.comm.Get_size()
        return [1] * n_ranks, [16 * rank for rank in range(n_ranks)]

    def one(self, memory: np.ndarray) -> Any:
        return [memory, 1, self.kind]

    def counts(self, memory: np.ndarray) -> Any:
        return [memory, self._spread[0], self.kind]

    def types(self, memory: np.ndarray) -> Any:
        return [memory, self._spread, [self.kind] * self.comm.Get_size()]


def _through(request: MPI.Prequest) -> None:
    request.Start()
    request.Wait()
    request.Free()


USES: dict[str, Callable[[Typed], object]] = {
    "Allgatherv": lambda t: t.comm.Allgatherv(t.one(t.given), t.counts(t.into)),
    "Allgatherv in place": lambda t: t.comm.Allgatherv(MPI.IN_PLACE, t.counts(t.into)),
    "Gatherv": lambda t: t.comm.Gatherv(t.one(t.given), t.counts(t.into)),
    "Scatterv": lambda t: t.comm.Scatterv(t.counts(t.given), t.one(t.into)),
    "Alltoallv": lambda t: t.comm.Alltoallv(t.counts(t.given), t.counts(t.into)),
    "Alltoallw": lambda t: t.comm.Alltoallw(t.types(t.given), t.types(t.into)),
    "Ibcast": lambda t: t.comm.Ibcast(t.one(t.into)).Wait(),
    "Ialltoall": lambda t: t.comm.Ialltoall(t.one(t.given), t.one(t.into)).Wait(),
    "Bcast_init": lambda t: _through(t.comm.Bcast_init(t.one(t.into))),
    "Alltoall_init": lambda t: _through(t.comm.Alltoall_init(t.one(t.given), t.one(t.into))),
    "wrong Allgatherv": lambda t: t.comm.Allgatherv(3, t.counts(t.into)),  # type: ignore[arg-type]
    "wrong Alltoallv": lambda t: t.comm.Alltoallv(3, t.counts(t.into)),  # type: ignore[arg-type]
    "wrong Alltoallw": lambda t: t.comm.Alltoallw(3, t.types(t.into)),  # type: ignore[arg-type]
    "wrong Ialltoall": lambda t: t.comm.Ialltoall(3, t.one(t.into)),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("force", ["grid", "native"])
@pytest.mark.parametrize("name", USES)
def test_types_made_for_a_call_are_freed(
    world: MPI.Intracomm, name: str, force: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether plans run, the call is left to MPI, or it is wrong."""
    monkeypatch.setenv("GRIDCOLL_FORCE", force)
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")  # reads what is left to MPI, too
    monkeypatch.setattr(alltoallv, "PACKS", True)  # sent as they are, they need no others
    monkeypatch.setattr(Counted, "n_made", 0)
    monkeypatch.setattr(Counted, "n_freed", 0)
    kind = Counted(MPI.INT.Create_vector(2, 1, 2).Create_resized(0, 16)).Commit()
    size, wrong = world.Get_size(), name.startswith("wrong")
    with grid_comm(world) as comm:
        typed = Typed(comm, np.ones(4 * size, "i4"), np.zeros(4 * size, "i4"), kind)
        with pytest.raises(TypeError) if wrong else nullcontext():
            USES[name](typed)
        assert Counted.n_freed == Counted.n_made
    if size > 1 and force == "grid" and not wrong:
        assert world.allreduce(Counted.n_made)  # of some calls, at the root only
    MPI.Datatype.Free(kind)
