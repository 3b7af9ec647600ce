"""Short calls that are known to be plans run again unread; whatever is of another form is read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm import fast_path as repeated
from gridcoll.comm.fast_path import SHORT_BYTES, alike, repeat_in, repeat_two
from gridcoll.engine.compiled import LIBRARY
from tests.mpi.support import grid_comm

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(not LIBRARY.exists(), reason="the engine in C was not built"),
]


@pytest.fixture
def comm(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> Iterator[GridComm]:
    """Two clusters, and plans for everything."""
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    with grid_comm(world) as comm:
        yield comm


def numbers(comm: GridComm, n: int, seed: int, dtype: str = "f8") -> np.ndarray:
    return (np.arange(n) * (seed + 1) + comm.Get_rank()).astype(dtype)


def check_allreduce(comm: GridComm, n: int, seed: int) -> None:
    result = np.full(n, -1.0)
    comm.Allreduce(numbers(comm, n, seed), result)
    size = comm.Get_size()
    assert (result == np.arange(n) * (seed + 1) * size + size * (size - 1) // 2).all()


def check_in_place(comm: GridComm, n: int, seed: int) -> None:
    result = numbers(comm, n, seed).reshape(n, 1)
    comm.Allreduce(MPI.IN_PLACE, result)
    size = comm.Get_size()
    wanted = np.arange(n) * (seed + 1) * size + size * (size - 1) // 2
    assert (result[:, 0] == wanted).all()


def check_bcast(comm: GridComm, n: int, seed: int) -> None:
    root = comm.Get_size() - 1
    data = numbers(comm, n, seed)
    data.flags.writeable = comm.Get_rank() != root
    comm.Bcast(data, root)
    assert (data == np.arange(n) * (seed + 1) + root).all()


def check_alltoall(comm: GridComm, n: int, seed: int) -> None:
    size, rank = comm.Get_size(), comm.Get_rank()
    result = np.full((size, n), -1)
    comm.Alltoall(np.add.outer(np.arange(size) * 100 + rank, np.arange(n) * seed), result)
    assert (result == np.add.outer(np.arange(size) + 100 * rank, np.arange(n) * seed)).all()


def check_reduce(comm: GridComm, n: int, seed: int) -> None:
    size, root = comm.Get_size(), comm.Get_size() - 1
    mine, at_root = numbers(comm, n, seed), comm.Get_rank() == root
    result = np.full(n, -1.0) if at_root else None
    comm.Reduce(mine, result, root=root)
    wanted = np.arange(n) * (seed + 1) * size + size * (size - 1) // 2
    assert not at_root or (result == wanted).all()
    assert (mine == numbers(comm, n, seed)).all()


def check_allgather(comm: GridComm, n: int, seed: int) -> None:
    result = np.full((comm.Get_size(), n), -1.0)
    comm.Allgather(numbers(comm, n, seed), result)
    wanted = np.add.outer(np.arange(comm.Get_size()), np.arange(n) * (seed + 1))
    assert (result == wanted).all()


def check_barrier(comm: GridComm, n: int, seed: int) -> None:
    comm.Barrier()


CHECKS: dict[str, Callable[[GridComm, int, int], None]] = {
    "allreduce": check_allreduce,
    "allreduce in place": check_in_place,
    "bcast": check_bcast,
    "alltoall": check_alltoall,
    "reduce": check_reduce,
    "allgather": check_allgather,
    "barrier": check_barrier,
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_what_ran_once_is_not_read_again(
    comm: GridComm, check: Callable[[GridComm, int, int], None], n_repeated: list[int]
) -> None:
    for seed in range(4):
        check(comm, 5, seed)
    assert n_repeated == [3]


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_nothing_is_known_where_calls_are_compared(
    world: MPI.Intracomm,
    monkeypatch: pytest.MonkeyPatch,
    check: Callable[[GridComm, int, int], None],
    n_repeated: list[int],
) -> None:
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")
    with grid_comm(world) as comm:
        for seed in range(2):
            check(comm, 5, seed)
    assert n_repeated == [0]


@pytest.mark.parametrize("engine", ["python", "compiled"])
def test_the_engine_in_python_knows_nothing(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, engine: str, n_repeated: list[int]
) -> None:
    from gridcoll.engine import compiled

    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    if engine == "python":
        monkeypatch.setattr(compiled, "_library", lambda: None)
    with grid_comm(world) as comm:
        for seed in range(2):
            check_allreduce(comm, 5, seed)
    assert n_repeated == [int(engine == "compiled")]


def test_long_calls_are_read(comm: GridComm, n_repeated: list[int]) -> None:
    n = SHORT_BYTES // 16
    for length in (n, n, n + 1, n + 1, 0, 0):
        check_allreduce(comm, length, 1)
    assert n_repeated == [1]


def test_no_plan_with_much_scratch_is_kept(
    comm: GridComm, monkeypatch: pytest.MonkeyPatch, n_repeated: list[int]
) -> None:
    monkeypatch.setattr(repeated, "MOST_SCRATCH_BYTES", 1)
    scratchy = comm.forced("allreduce", "allgather-reduce")
    for seed in range(2):
        check_allreduce(scratchy, 5, seed)
    assert n_repeated == [0]


def test_what_was_sent_is_counted(comm: GridComm) -> None:
    before = comm.traffic()
    check_allreduce(comm, 3, 0)
    once = comm.traffic().since(before)
    check_allreduce(comm, 3, 1)
    twice = comm.traffic().since(before)
    assert once.n_inter_messages > 0
    assert twice.n_inter_messages == 2 * once.n_inter_messages
    assert twice.n_inter_units == 2 * once.n_inter_units


def test_nobodys_buffers_are_kept(comm: GridComm) -> None:
    for _ in range(2):
        mine, result = np.ones(3), np.zeros(3)
        gone = [weakref.ref(mine), weakref.ref(result)]
        comm.Allreduce(mine, result)
        comm.Bcast(result)
        del mine, result
        assert [each() for each in gone] == [None, None]


def test_other_forms_are_read(comm: GridComm, n_repeated: list[int]) -> None:
    """Each after a call like it that is known, of which only a part is the same."""
    size = comm.Get_size()
    check_allreduce(comm, 4, 0)
    spaced = np.zeros(8)[::2]
    with pytest.raises(Exception, match="contiguous"):
        comm.Allreduce(np.ones(4), spaced)
    fixed = np.zeros(4)
    fixed.flags.writeable = False
    with pytest.raises(Exception, match=r"read-only|not writable"):
        comm.Allreduce(np.ones(4), fixed)
    with pytest.raises(Exception, match=r"."):
        comm.Allreduce(np.ones(4, "i8"), np.zeros(4))  # other types
    result = np.zeros(4)
    comm.Allreduce([np.ones(4), MPI.DOUBLE], result)
    assert (result == size).all()
    comm.Allreduce(np.ones(4), result, MPI.MAX)
    assert (result == 1).all()
    assert n_repeated == [0]
    check_allreduce(comm, 4, 2)
    assert n_repeated == [1]


def test_buffers_that_overlap_are_read(comm: GridComm) -> None:
    """MPI forbids it, and MPICH ends the job: a call of nobody's shows it."""
    read: list[int] = []
    call = repeat_two(cast("Any", None), alike(np.dtype("f8"), 32), lambda *_: read.append(1))
    data = np.ones(6)
    for start in (0, 1):
        call(comm, data[:4], data[start : start + 4], MPI.SUM)
    assert read == [1, 1]


def test_a_broadcast_into_what_is_read_only_is_read(comm: GridComm) -> None:
    read: list[int] = []
    call = repeat_in(cast("Any", None), writes=True, read=lambda *_: read.append(1))
    data = np.ones(4)
    data.flags.writeable = False
    call(comm, data, 0)
    assert read == [1]


def test_operations_of_the_users_own_are_read(comm: GridComm, n_repeated: list[int]) -> None:
    """A later one may have the handle of one that is no more."""
    size = comm.Get_size()
    for combine, wanted in ((np.add, size * (size - 1) // 2), (np.maximum, size - 1)):

        def step(a: Any, b: Any, _: MPI.Datatype, combine: np.ufunc = combine) -> None:
            into = np.frombuffer(b)
            into[:] = combine(np.frombuffer(a), into)

        op = MPI.Op.Create(step, commute=True)
        for _ in range(2):
            result = np.zeros(3)
            comm.Allreduce(np.full(3, float(comm.Get_rank())), result, op)
            assert (result == wanted).all()
        op.Free()
    assert n_repeated == [0]


def test_unusual_arrays_are_moved_all_the_same(comm: GridComm, n_repeated: list[int]) -> None:
    """As many bytes as a known call has, in elements that have no plain likeness."""
    for dtype in ("f8", "f2", "f8", ">f8", "f8"):
        data = np.zeros(32 // np.dtype(dtype).itemsize, dtype)
        if comm.Get_rank() == 0:
            data[:] = 7
        comm.Bcast([data, MPI.BYTE] if dtype == ">f8" else data)
        assert (data == 7).all()
    assert n_repeated == [2]
