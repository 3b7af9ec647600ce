"""`reduce` and `allreduce` of objects along the grid, against plain mpi4py."""

from __future__ import annotations

import json
import operator
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.errors import GridcollError
from tests.mpi.support import grid_comm, layouts

LAYOUTS = ("two", "three", "interleaved", "three interleaved", "lonely root", "all alone")


def pair(left: Any, right: Any) -> Any:
    """Neither commutes nor associates: tells in which order it was called."""
    return (left, right)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_callable_in_mpi4pys_own_order(
    world: MPI.Intracomm, layout: str, n_planned: list[int]
) -> None:
    size, rank = world.Get_size(), world.Get_rank()
    with grid_comm(world, layouts(size)[layout]) as comm:
        for mine in (rank, str(rank) * rank * 900, b"x" * 70_000 * (rank + 1)):
            before = n_planned[0]
            assert comm.allreduce(mine, pair) == world.allreduce(mine, pair)
            for root in {0, size // 2, size - 1}:
                assert comm.reduce(mine, pair, root) == world.reduce(mine, pair, root)
            assert n_planned[0] > before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_ranks_get_one_result_whoever_combines(world: MPI.Intracomm, layout: str) -> None:
    """An operation need not come to the same on every rank."""
    rank = world.Get_rank()
    with grid_comm(world, layouts(world.Get_size())[layout]) as comm:
        result = comm.allreduce([rank], lambda left, right: [*left, *right, f"by {rank}"])
        assert world.allgather(result) == [result] * world.Get_size()


OPS: dict[str, tuple[Any, Any]] = {
    "concatenation": (MPI.SUM, str),
    "big integers": (MPI.PROD, lambda rank: 10**30 + rank),
    "places": (MPI.MAXLOC, lambda rank: (rank % 2, rank)),
    "sets": (operator.or_, lambda rank: {rank}),
    "arrays": (MPI.SUM, lambda rank: np.arange(5000.0) * rank),
    "default": (None, lambda rank: rank + 0.1),
    "nothing": (lambda a, b: None, lambda rank: None),
}


@pytest.mark.parametrize("name", OPS)
def test_operations(world: MPI.Intracomm, name: str) -> None:
    op, make = OPS[name]
    mine = make(world.Get_rank())
    given = () if op is None else (op,)
    with grid_comm(world) as comm:
        plain, ours = world.allreduce(mine, *given), comm.allreduce(mine, *given)
        assert type(plain) is type(ours)
        assert np.array_equal(plain, ours)


@pytest.mark.parametrize("root", [0, 1])
def test_nobodys_argument_is_changed(world: MPI.Intracomm, root: int) -> None:
    """Even by an operation that works in place; and results are everybody's own."""
    size, rank = world.Get_size(), world.Get_rank()
    root %= size
    mine = [rank]
    with grid_comm(world, layouts(size).get("three")) as comm:
        assert comm.allreduce(mine, operator.iadd) == list(range(size))
        result = comm.reduce(mine, operator.iadd, root)
        assert result == (list(range(size)) if rank == root else None)
    assert mine == [rank]
    assert result is not mine


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("layout", ["two", "three interleaved", "all alone"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_what_cannot_be_pickled_hangs_nobody(world: MPI.Intracomm, layout: str, where: str) -> None:
    size, rank = world.Get_size(), world.Get_rank()
    culprit = 0 if where == "first" else size - 1
    mine = (lambda: None) if rank == culprit else rank
    with pytest.raises(Exception) as plain:
        MPI.pickle.dumps(lambda: None)
    with grid_comm(world, layouts(size)[layout]) as comm:
        with pytest.raises(plain.type if rank == culprit else GridcollError, match="pickle"):
            comm.allreduce(mine)
        assert comm.allreduce(1) == size


@pytest.mark.mpi(min_size=3)
def test_an_operation_that_fails_hangs_nobody(world: MPI.Intracomm) -> None:
    def fails(left: Any, right: Any) -> Any:
        if 1 in (left, right):
            raise KeyError("no ones")
        return left + right

    size = world.Get_size()
    with grid_comm(world) as comm:
        with pytest.raises((KeyError, GridcollError), match="no ones"):
            comm.allreduce(world.Get_rank(), fails)
        assert comm.allreduce(2, fails) == 2 * size


def test_pickle_settings_are_honoured(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [0]

    def dumps(obj: Any, *_: Any) -> bytes:
        used[0] += 1
        return json.dumps(obj).encode()

    pickle = MPI.Pickle(dumps, lambda data: json.loads(bytes(data)))
    monkeypatch.setattr(MPI, "pickle", pickle)
    with grid_comm(world) as comm:
        assert comm.allreduce([world.Get_rank()]) == list(range(world.Get_size()))
    assert used[0] or world.Get_size() == 1


def test_prefixes_are_mpi4pys_own(world: MPI.Intracomm) -> None:
    rank = world.Get_rank()
    with grid_comm(world) as comm:
        assert comm.scan([rank]) == list(range(rank + 1))
        assert comm.exscan([rank]) == (list(range(rank)) if rank else None)


@pytest.mark.parametrize("root", [-1, 99, "0"])
def test_a_wrong_root_is_refused_as_ever(world: MPI.Intracomm, root: Any) -> None:
    with pytest.raises(Exception) as plain:
        world.reduce(1, root=root)
    with grid_comm(world) as comm, pytest.raises(plain.type):
        comm.reduce(1, root=root)
