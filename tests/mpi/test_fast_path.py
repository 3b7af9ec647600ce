"""Short calls that are known to be plans run again unread; whatever is of another form is read."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm import context
from gridcoll.comm.arguments.buffers import view_of
from gridcoll.engine.compiled import LIBRARY, prepare
from gridcoll.engine.memory import ElementMemory
from gridcoll.engine.repeat import SHORT_BYTES, Form, Repeat
from gridcoll.engine.transport import MPITransport
from gridcoll.plan import dataflow
from gridcoll.plan.ops import Chunk, Copy
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


def in_memory(array: np.ndarray, count: int) -> Any:
    """As Heat gives buffers: the length of the memory is not told."""
    return [MPI.memory.fromaddress(array.ctypes.data, 0), count, MPI.DOUBLE]


SPECS: dict[str, Callable[[np.ndarray, int], Any]] = {
    "type": lambda array, count: [array, MPI.DOUBLE],
    "count and type": lambda array, count: (array, count, MPI.DOUBLE),
    "address, count and type": in_memory,
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_buffers_with_types_are_not_read_again(
    comm: GridComm, spec: Callable[[np.ndarray, int], Any], n_repeated: list[int]
) -> None:
    """Counts of an allgather and an alltoall are those of a block."""
    size, rank = comm.Get_size(), comm.Get_rank()
    for turn in range(3):
        mine, total, blocks = np.full(4, rank + turn), np.zeros(4), np.zeros((size, 4))
        mine = mine.astype(float)
        comm.Allreduce(spec(mine, 4), spec(total, 4))
        assert (total == size * turn + size * (size - 1) // 2).all()
        comm.Allreduce(MPI.IN_PLACE, spec(total, 4), MPI.MAX)
        comm.Allgather(spec(mine, 4), spec(blocks, 4))
        assert (blocks == np.arange(size)[:, None] + turn).all()
        got = np.zeros((size, 4))
        comm.Alltoall(spec(blocks * (rank + 1), 4), spec(got, 4))
        assert (got == (np.arange(size)[:, None] + 1) * (rank + turn)).all()
        comm.Bcast(spec(total, 4), turn % size)
        assert (total == size * turn + size * (size - 1) // 2).all()
    n_roots = min(size, 3)  # the first broadcast from each is read
    assert n_repeated == [2 * 4 + 3 - n_roots]


def test_views_of_what_is_not_simple() -> None:
    data = np.ones(4)
    column = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
    for spec in (
        [data, 1, column],
        [data, (2, 1), MPI.DOUBLE],
        [data, 4, 1, MPI.DOUBLE],
        [data, -1, MPI.DOUBLE],
        [data, 0, MPI.DOUBLE],
        [data, "d"],
        [data, None],
        [data[::2], MPI.DOUBLE],
        [np.ones(3, "i1"), MPI.DOUBLE],
        [None, 1, MPI.DOUBLE],
        [3, 1, MPI.DOUBLE],
        [data],
        data.data,
        None,
    ):
        assert view_of(spec) is None
    column.Free()
    assert view_of([data, 3, MPI.DOUBLE]).tolist() == [1] * 3
    assert view_of([data, 2, MPI.DOUBLE], 2).nbytes == 32
    data.flags.writeable = False
    assert view_of([data, MPI.DOUBLE]).readonly


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
    monkeypatch.setattr(context, "MOST_SCRATCH_BYTES", 1)
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


class Call:
    """Of nobody's: it copies 32 bytes. MPI forbids some of what it is given."""

    def __init__(self, elements: str = "d", n_blocks: int = 1, *, in_place: bool = False) -> None:
        self.n_read = 0
        flow = dataflow((Copy(Chunk("input", 0, 4), Chunk("output", 0, 4)),))
        own = memoryview(bytearray(32))
        memory = ElementMemory(own, own, flow, MPI.DOUBLE, MPI.SUM)
        prepared = prepare(flow, MPITransport(MPI.COMM_SELF), memory)
        assert prepared is not None
        form = Form(1, 32, elements, n_blocks), Form(2, 32, elements, n_blocks)
        place = own if in_place else None
        self._again = Repeat(prepared, given=form[0], output=form[1], own=place, read=self._read)

    def _read(self, *args: Any) -> None:
        assert args[0] == "comm"
        self.n_read += 1

    def ran(self, *args: Any) -> bool:
        """Whether it was not read."""
        before = self.n_read
        assert self._again.function("comm", *args) is None  # type: ignore[func-returns-value]
        return self.n_read == before


def test_what_fits_runs() -> None:
    call, data, result = Call(), np.arange(4.0), np.zeros(4)
    assert call.ran(data, result)
    assert (result == data).all()
    result[:] = 0
    assert call.ran(data.reshape(2, 2), result, "more")
    assert call.ran(memoryview(data), result)
    assert (result == data).all()


def test_buffers_that_overlap_are_read() -> None:
    call, data = Call(), np.ones(6)
    for start in range(3):
        assert not call.ran(data[:4], data[start : start + 4])


@pytest.mark.parametrize(
    "wrong",
    [
        np.ones(5),
        np.ones(4, "i8"),
        np.ones(4, ">f8"),
        np.ones(8)[::2],
        np.ones((4, 2))[:, 0],
        bytes(32),
        [np.ones(4), MPI.DOUBLE],
        MPI.IN_PLACE,
        None,
        3,
    ],
    ids=str,
)
def test_what_does_not_fit_is_read(wrong: Any) -> None:
    call, right = Call(), np.zeros(4)
    assert not call.ran(wrong, right)
    assert not call.ran(right, wrong)
    assert not call.ran(right)
    assert call.ran(np.ones(4), right)


def test_what_is_read_only_is_not_written() -> None:
    call, data = Call(), np.zeros(4)
    data.flags.writeable = False
    assert call.ran(data, np.ones(4))
    assert not call.ran(np.ones(4), data)


def test_in_place_is_copied_first() -> None:
    call, data = Call(in_place=True), np.arange(4.0)
    assert call.ran(MPI.IN_PLACE, data)
    assert (data == np.arange(4)).all()


def test_any_numbers_in_blocks() -> None:
    """Where only bytes are moved."""
    call, result = Call("", 4), np.zeros(4)
    for dtype in "?bBhHiIlLqQfdFD":
        n_items = 32 // np.dtype(dtype).itemsize
        assert call.ran(np.zeros(n_items, dtype), result) == (n_items % 4 == 0)
    for dtype in ("f2", ">f8", "V8", "S8"):
        assert not call.ran(np.zeros(32 // np.dtype(dtype).itemsize, dtype), result)


def test_what_reading_raises_is_raised() -> None:
    call = Call()

    def refuse(*_: Any) -> None:
        raise ValueError("read")

    call._again._keep_alive = (None, refuse)  # type: ignore[assignment]
    call._again._state.read = id(refuse)
    with pytest.raises(ValueError, match="read"):
        call._again.function("comm", 1, 2)


def test_references_are_given_back() -> None:
    call, data, result = Call(), np.arange(4.0), np.zeros(4)
    again = call._again.function
    before = [sys.getrefcount(each) for each in (None, data, result)]
    for _ in range(5000):
        again("comm", data, result)
        again("comm", data, data)
    after = [sys.getrefcount(each) for each in (None, data, result)]
    assert max(b - a for a, b in zip(before, after, strict=True)) < 1000


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
