"""Repeated calls of `Alltoallw` run unread by the engine in C; whatever is of another form is read.

As applications do that transpose what is spread over ranks, again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.comm.arguments import blocks
from gridcoll.comm.methods import alltoallv, vectors
from gridcoll.engine import runner
from gridcoll.engine.compiled import LIBRARY
from tests.mpi.exchanges import planned
from tests.mpi.support import grid_comm

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(not LIBRARY.exists(), reason="the engine in C was not built"),
]

ROWS, WIDE = 6, 5
"""Of a block, of doubles."""


@pytest.fixture(autouse=True)
def by_type(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are sent as they are, whatever suits this library."""
    monkeypatch.setattr(alltoallv, "PACKS", False)


@pytest.fixture
def n_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many arguments this rank's calls read."""
    count = [0]
    plain = blocks.read_typed_vector

    def counting(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return plain(*args, **kwargs)

    monkeypatch.setattr(alltoallv, "read_typed_vector", counting)
    return count


@pytest.fixture
def comm(world: MPI.Intracomm) -> Iterator[GridComm]:
    with grid_comm(world) as own:
        yield planned(own)


class Transposed:
    """A matrix of columns per rank, sent by blocks of rows, received by blocks of columns."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self.tall, self.wide = (ROWS * self.size, WIDE), (ROWS, WIDE * self.size)
        self.spread = [1] * self.size, [0] * self.size
        self.make()

    def make(self) -> None:
        n = range(self.size)
        self.rows = [self._block(self.tall, (ROWS * k, 0)) for k in n]
        self.columns = [self._block(self.wide, (0, WIDE * k)) for k in n]

    @staticmethod
    def _block(shape: tuple[int, int], start: tuple[int, int]) -> MPI.Datatype:
        return MPI.DOUBLE.Create_subarray(shape, (ROWS, WIDE), start).Commit()

    def free(self) -> None:
        for datatype in (*self.rows, *self.columns):
            datatype.Free()

    def sent(self, seed: int, rank: int) -> np.ndarray:
        n_items = self.tall[0] * WIDE
        return np.arange(n_items, dtype=float).reshape(self.tall) * (seed + 1) + 1e4 * rank

    def check(self, comm: MPI.Intracomm, seed: int, types: Callable[[Any], Any] = list) -> None:
        """A call with memory of its own, and right."""
        into = np.full(self.wide, -1.0)
        comm.Alltoallw(
            [self.sent(seed, self.rank), self.spread, types(self.rows)],
            [into, *self.spread, types(self.columns)],
        )
        mine = slice(ROWS * self.rank, ROWS * (self.rank + 1))
        wanted = [self.sent(seed, rank)[mine] for rank in range(self.size)]
        assert (into == np.concatenate(wanted, axis=1)).all()


@pytest.fixture
def transposed(comm: GridComm) -> Iterator[Transposed]:
    made = Transposed(comm)
    yield made
    made.free()


def test_what_ran_once_is_not_read_again(
    comm: GridComm, transposed: Transposed, n_read: list[int], n_planned: list[int]
) -> None:
    for seed in range(4):
        transposed.check(comm, seed, tuple if seed % 2 else list)
    assert (n_read, n_planned) == ([2], [4])
    n_others = transposed.size - 1
    assert sum(comm.traffic().messages.values()) == 4 * n_others * transposed.size


def test_python_sends_none_of_it(
    comm: GridComm, transposed: Transposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def executor(*args: object, **kwargs: object) -> None:
        raise AssertionError("the engine in Python")

    monkeypatch.setattr(runner, "Executor", executor)
    for seed in range(2):
        transposed.check(comm, seed)


def test_python_can_do_it_all(
    comm: GridComm, transposed: Transposed, n_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a rank without the engine in C, while others have it."""
    if transposed.rank:
        monkeypatch.setattr(runner, "begin_compiled", lambda *args: None)
        monkeypatch.setattr(vectors.TypedCalls, "keep", lambda *args: None)
    for seed in range(3):
        transposed.check(comm, seed)
    assert n_read == [6 if transposed.rank else 2]


def test_other_displacements_are_read(comm: GridComm, n_read: list[int]) -> None:
    """Also if lists with the same types are changed where they are."""
    rank, size = comm.Get_rank(), comm.Get_size()
    pair = MPI.INT.Create_vector(2, 1, 2).Commit()
    types, displs = [pair] * size, [16 * k for k in range(size)]
    sent = np.arange(4 * size, dtype="i4") + 100 * rank
    for turn in range(4):
        into = np.full(4 * size, -1, "i4")
        comm.Alltoallw([sent, [1] * size, displs, types], [into, [1] * size, displs, types])
        place = displs[rank] // 4
        for k in range(size):
            at = displs[k] // 4
            assert into[at : at + 3].tolist() == [place + 100 * k, -1, place + 2 + 100 * k]
        if turn % 2:
            displs.reverse()
    assert n_read == [4]
    pair.Free()


def test_types_made_anew_are_read(
    comm: GridComm, transposed: Transposed, n_read: list[int]
) -> None:
    """They may have handles, or be where objects were, of those that were freed."""
    for seed in range(4):
        transposed.check(comm, seed)
        transposed.free()
        transposed.make()
    assert n_read == [8]


def test_a_freed_type_is_an_error(comm: GridComm, transposed: Transposed) -> None:
    transposed.check(comm, 0)
    freed = transposed.rows[0]
    freed.Free()
    transposed.rows[0] = Transposed._block(transposed.tall, (0, 0))
    into = np.zeros(transposed.wide)
    source = [transposed.sent(0, 0), transposed.spread, [freed, *transposed.rows[1:]]]
    with pytest.raises(MPI.Exception):
        comm.Alltoallw(source, [into, transposed.spread, transposed.columns])
    transposed.check(comm, 1)


def test_what_may_not_be_written(comm: GridComm, transposed: Transposed) -> None:
    transposed.check(comm, 0)
    into = np.zeros(transposed.wide)
    into.flags.writeable = False
    source = [transposed.sent(0, transposed.rank), transposed.spread, transposed.rows]
    with pytest.raises(BufferError):
        comm.Alltoallw(source, [into, transposed.spread, transposed.columns])
    assert not into.any()
    transposed.check(comm, 1)


def test_no_more_are_kept_than_that(
    comm: GridComm, n_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "N_KEPT", 2)
    several = [Transposed(comm) for _ in range(3)]
    for turn in range(2):
        for each in several:
            each.check(comm, turn)
    assert n_read == [12]
    for _ in range(2):
        several[-1].check(comm, 5)
    assert n_read == [12]
    for each in several:
        each.free()


def test_what_is_in_place_or_too_long_is_read(
    comm: GridComm, transposed: Transposed, n_read: list[int]
) -> None:
    rank, size = transposed.rank, transposed.size
    pair = MPI.INT.Create_vector(2, 1, 2).Commit()
    displs = [16 * k for k in range(size)]
    for _ in range(2):
        mine = np.arange(4 * size, dtype="i4") + 100 * rank
        comm.Alltoallw(MPI.IN_PLACE, [mine, [1] * size, displs, [pair] * size])
        assert mine[::4].tolist() == [4 * rank + 100 * k for k in range(size)]
        counts = [1 + (k == rank) for k in range(size)]
        source = [np.zeros(6 * size, "i4"), counts, displs, [pair] * size]
        with pytest.raises(MPI.Exception) as caught:
            comm.Alltoallw(source, [mine, [1] * size, displs, [pair] * size])
        assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert n_read == [2 * (1 + 4)]
    pair.Free()


def test_what_was_copied_is_read(comm: GridComm, n_read: list[int]) -> None:
    """A block for oneself that is shorter than what is expected is taken of its bytes."""
    rank, size = comm.Get_rank(), comm.Get_size()
    pair = MPI.INT.Create_vector(2, 1, 2).Create_resized(0, 16).Commit()
    counts, displs = [1 + (k == rank) for k in range(size)], [32 * k for k in range(size)]
    for turn in range(2):
        sent = np.full(8 * size, 10 * rank + turn, "i4")
        into = np.full(8 * size, -1, "i4")
        comm.Alltoallw(
            [sent, [1] * size, displs, [pair] * size], [into, counts, displs, [pair] * size]
        )
        assert into[::8].tolist() == [10 * k + turn for k in range(size)]
    assert n_read == [8]
    pair.Free()
