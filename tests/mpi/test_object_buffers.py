"""Large buffers of objects travel beside their pickles: what arrives, and what is copied."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll import GridComm
from gridcoll.comm.pickles import Kind, pickle_of
from gridcoll.model import TimesBySize
from gridcoll.plan import REGISTRIES
from tests.mpi.blocks import outcome
from tests.mpi.buffered import BUFFERED, CALLS, ROOTED, Holder, elements, first, seen, threshold
from tests.mpi.harness import Grids
from tests.mpi.support import grid_comm, grid_model, layouts

LAYOUTS = ("one cluster", "two", "three interleaved")


def check_alike(world: MPI.Intracomm, comm: MPI.Intracomm, name: str, what: str, n: int) -> None:
    """``name`` of ``what`` gives on ``comm`` what it gives on plain mpi4py."""
    make = BUFFERED[what]
    for root in {0, world.Get_size() - 1} if name in ROOTED else {0}:
        wanted = seen(CALLS[name](world, lambda rank: make(rank, n), root))
        found = seen(CALLS[name](comm, lambda rank: make(rank, n), root))
        assert found == wanted, f"{name} of {what} from {root}"


@pytest.fixture(autouse=True)
def _forced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans in one cluster, too."""
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_as_on_plain_mpi4py(world: MPI.Intracomm, grids: Grids, layout: str, name: str) -> None:
    """Kinds, orders, what can be written, what is the same object: with all buffers and some."""
    comm = grids(layout)
    for n_bytes in (0, 500) if layout == "two" else (0,):
        with threshold(n_bytes):
            for what in BUFFERED:
                check_alike(world, comm, name, what, 300)


@pytest.mark.parametrize("name", CALLS)
def test_of_the_sizes_that_are_large_unasked(world: MPI.Intracomm, name: str) -> None:
    with grid_comm(world) as comm:
        for what in ("an array", "nested", "bytes beside an array"):
            check_alike(world, comm, name, what, 40_000)


@pytest.mark.long
@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("collective", ["bcast", "allgather"])
def test_by_every_algorithm(world: MPI.Intracomm, grids: Grids, collective: str) -> None:
    """Their messages reach across buffers: of even and of uneven sizes, and by MPI's own."""
    comm = grids("three interleaved" if world.Get_size() > 3 else "two")
    for algorithm in (*REGISTRIES[collective], "native"):
        ours = comm.forced(collective, algorithm)
        with threshold(100):
            for what in ("many", "some ranks only"):
                check_alike(world, ours, collective, what, 1000)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["bcast", "allgather"])
def test_heads_by_plan_and_buffers_natively(
    world: MPI.Intracomm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRIDCOLL_FORCE")
    native = TimesBySize((256, 1024, 2048, 1 << 26), (9.0, 9.0, 1e-9, 1e-9))
    model = replace(grid_model(layouts(world.Get_size())["two"]), native={name: native})
    own = world.Dup()
    comm = GridComm(own, model=model)
    assert comm.explain(name, 256).winner.build is not None
    assert comm.explain(name, 300_000).winner.build is None
    for what in ("an array", "nested", "some ranks only"):
        check_alike(world, comm, name, what, 40_000)
    comm.Free()
    own.Free()


@pytest.mark.parametrize("name", CALLS)
def test_results_are_nobody_elses(world: MPI.Intracomm, name: str) -> None:
    """Written over, they change no argument and no other result."""
    size, n = world.Get_size(), 5000
    given: dict[int, list[np.ndarray]] = {}

    def make(rank: int) -> Any:
        given[rank] = [elements(rank, n), elements(rank, n)]
        return given[rank]

    with grid_comm(world) as comm, threshold(1000):
        got = CALLS[name](comm, make, size - 1)
    arrays = list(_arrays(got))
    for k, array in enumerate(arrays):
        array[:] = -k
    assert all((array == -k).all() for k, array in enumerate(arrays))
    for rank, pair in given.items():
        assert all((mine == elements(rank, n)).all() for mine in pair)


def _arrays(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _arrays(item)


@pytest.mark.parametrize("name", CALLS)
def test_an_array_keeps_nothing_else_alive(world: MPI.Intracomm, name: str) -> None:
    """What is kept of a small one is small, whatever came with it."""
    with grid_comm(world) as comm, threshold(1000):
        got = CALLS[name](comm, lambda rank: [elements(rank, 200), elements(rank, 90_000)], 0)
    for array in _arrays(got):
        base = array
        while isinstance(base.base, np.ndarray):
            base = base.base
        block = memoryview(base.base).obj
        assert type(block) is bytearray
        assert len(block) == array.nbytes


N_BYTES = 8 << 20
"""Of an array: what else is allocated (plans, most of it) is little beside that."""

COPIES: dict[str, Callable[[int, bool], int]] = {
    "bcast": lambda size, is_root: 1,
    "gather": lambda size, is_root: size if is_root else 0,
    "scatter": lambda size, is_root: 1,
    "allgather": lambda size, is_root: size,
    "alltoall": lambda size, is_root: size,
}
"""Arrays that a rank gets, its own among them: as many times it takes their memory."""


@pytest.mark.mpi(min_size=2, max_size=4)
@pytest.mark.parametrize("name", COPIES)
def test_nothing_is_copied_into_a_pickle(world: MPI.Intracomm, name: str) -> None:
    """No more memory than results have."""
    size, rank = world.Get_size(), world.Get_rank()
    mine = np.ones(N_BYTES, np.uint8)
    with grid_comm(world) as comm:
        CALLS[name](comm, lambda _: mine, 0)  # plans are made once
        peak = peak_of(lambda: CALLS[name](comm, lambda _: mine, 0))
    assert peak < (COPIES[name](size, rank == 0) + 0.5) * N_BYTES


@pytest.mark.mpi(min_size=2, max_size=4)
@pytest.mark.parametrize("name", ["reduce", "allreduce"])
def test_reductions_copy_what_their_operation_may_change(world: MPI.Intracomm, name: str) -> None:
    """A copy of the own argument, one of what each other rank sends, and the result's."""
    size = world.Get_size()
    mine = np.ones(N_BYTES, np.uint8)
    with grid_comm(world) as comm:
        call = getattr(comm, name)
        call(mine, first)
        peak = peak_of(lambda: call(mine, first))
        n_received = max(world.allgather(peak)) / N_BYTES - 1 - (name == "allreduce")
        assert peak < (2.5 if name == "allreduce" and world.Get_rank() else size + 1.5) * N_BYTES
        assert n_received < size - 0.5


def peak_of(call: Callable[[], Any]) -> int:
    """Bytes that ``call`` had at once, its result among them."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def is_parted(item: Any) -> bool:
    return pickle_of(item).kind == Kind.INDEX


def test_small_buffers_stay_in_their_pickles() -> None:
    n = MPI.pickle.THRESHOLD
    assert is_parted(np.zeros(n, "u1"))
    assert not is_parted(np.zeros(n - 1, "u1"))
    assert not is_parted([np.zeros(n // 2, "u1")] * 9)
    for obj in (np.zeros(n - 1, "u1"), {"a": 1}, b"x" * n):
        assert pickle_of(obj).data == MPI.pickle.dumps(obj)
    with threshold(10):
        assert is_parted(np.zeros(10, "u1"))


@pytest.mark.parametrize("protocol", [4, 2])
def test_earlier_protocols_have_no_buffers(monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    data = np.zeros(1 << 20)
    assert is_parted(data)
    monkeypatch.setattr(MPI.pickle, "PROTOCOL", -1)
    assert is_parted(data)
    monkeypatch.setattr(MPI.pickle, "PROTOCOL", protocol)
    assert pickle_of(data).data == MPI.pickle.dumps(data)


def _own_dumps(obj: Any, protocol: int | None = None) -> bytes:
    return b"!" + pickle.dumps(obj, protocol)


def _own_loads(data: Any) -> Any:
    view = memoryview(data)
    return pickle.loads(view[1:] if view[:1] == b"!" else view)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dumps", [_own_dumps, None])
def test_a_users_own_functions_get_the_whole(world: MPI.Intracomm, name: str, dumps: Any) -> None:
    """Which know nothing of buffers: both, or the one that loads."""
    with grid_comm(world) as comm, threshold(100):
        _with_functions(dumps, _own_loads, lambda: check_alike(world, comm, name, "nested", 300))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", CALLS)
def test_on_some_ranks_only(world: MPI.Intracomm, name: str) -> None:
    """What the others write, a user's loads can read."""
    loads = _own_loads if world.Get_rank() else None
    with grid_comm(world) as comm, threshold(100):
        _with_functions(None, loads, lambda: check_alike(world, comm, name, "nested", 300))


def _with_functions(dumps: Any, loads: Any, body: Callable[[], Any]) -> None:
    n_bytes = MPI.pickle.THRESHOLD
    MPI.pickle.__init__(dumps, loads, threshold=n_bytes)  # type: ignore[misc]
    try:
        body()
    finally:
        MPI.pickle.__init__()  # type: ignore[misc]


class Unloadable:
    """Can be sent with its memory and not be taken apart again."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _refuse, (pickle.PickleBuffer(self.memory),)


def _refuse(_memory: Any) -> None:
    raise ZeroDivisionError


WRONG: dict[str, Callable[[int], Any]] = {
    "cannot be loaded": lambda rank: [elements(rank, 500), Unloadable(bytearray(5000))],
    "cannot be pickled": lambda rank: [elements(rank, 500), lambda: None],
    "has gaps": lambda rank: [elements(rank, 500), Holder(memoryview(bytes(5000))[::2])],
}


@pytest.mark.parametrize("what", WRONG)
@pytest.mark.parametrize("name", CALLS)
def test_errors_are_raised_where_they_were(world: MPI.Intracomm, name: str, what: str) -> None:
    """With buffers left out or not; the next call works."""
    size = world.Get_size()
    with grid_comm(world) as comm:
        for root in {0, size - 1}:
            found = []
            for n_bytes in (1 << 40, 100, 0):
                if what != "cannot be loaded" and name in ("bcast", "scatter") and size > 1:
                    continue  # the root alone raises and the others wait, as ever
                with threshold(n_bytes):
                    found.append(outcome(CALLS[name], comm, WRONG[what], root))
                    assert CALLS[name](comm, lambda rank: 1, root) in (None, 1, [1] * size)
            assert found == found[:1] * len(found)
