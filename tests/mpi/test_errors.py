"""A wrong call raises what plain mpi4py raises, and the communicator works afterwards."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.comm.communicator import _COLLECTIVES, GridCartcomm
from gridcoll.comm.methods.base import GridMethods
from tests.mpi.support import grid_comm

N = 12
Call = Callable[[MPI.Intracomm, np.ndarray], object]

# All are wrong on the rank that makes them, whatever other ranks do: no message is sent.
WRONG: dict[str, Call] = {
    "root -1": lambda c, b: c.Bcast(b, -1),
    "root beyond": lambda c, b: c.Bcast(b, c.Get_size()),
    "root far beyond": lambda c, b: c.Bcast(b, 1 << 30),
    "root of no int": lambda c, b: c.Bcast(b, 2**40),
    "root no number": lambda c, b: c.Bcast(b, "0"),  # type: ignore[arg-type]
    "root None": lambda c, b: c.Bcast(b, None),  # type: ignore[arg-type]
    "root a float": lambda c, b: c.Bcast(b, 0.5),  # type: ignore[arg-type]
    "root PROC_NULL": lambda c, b: c.Bcast(b, MPI.PROC_NULL),
    "root ANY_SOURCE": lambda c, b: c.Bcast(b, MPI.ANY_SOURCE),
    "no buffer": lambda c, b: c.Bcast(object()),  # type: ignore[arg-type]
    "a number": lambda c, b: c.Bcast(5),  # type: ignore[arg-type]
    "a string": lambda c, b: c.Bcast("text"),  # type: ignore[arg-type]
    "a list of numbers": lambda c, b: c.Bcast([1, 2]),  # type: ignore[arg-type]
    "a set": lambda c, b: c.Bcast({1}),  # type: ignore[arg-type]
    "an empty list": lambda c, b: c.Bcast([]),  # type: ignore[arg-type]
    "None": lambda c, b: c.Bcast(None),  # type: ignore[arg-type]
    "None with a count": lambda c, b: c.Bcast([None, 4, MPI.INT]),
    "negative count": lambda c, b: c.Bcast([b, -1, MPI.INT]),
    "negative displacement": lambda c, b: c.Bcast([b, (1, -1), MPI.INT]),
    "count no number": lambda c, b: c.Bcast([b, "many", MPI.INT]),  # type: ignore[list-item]
    "unknown code": lambda c, b: c.Bcast([b, "nothing"]),
    "no type": lambda c, b: c.Bcast([b, 1, 3.5]),  # type: ignore[list-item]
    "null type": lambda c, b: c.Bcast([b, MPI.DATATYPE_NULL]),
    "null type with count": lambda c, b: c.Bcast([b, 1, MPI.DATATYPE_NULL]),
    "too many items": lambda c, b: c.Bcast([b, 1, 0, MPI.INT, 0]),  # type: ignore[list-item]
    "indivisible": lambda c, b: c.Bcast([b.view("u1")[:-1], MPI.INT]),
    "strided": lambda c, b: c.Bcast(b[::2]),
    "strided with type": lambda c, b: c.Bcast([b[::2], MPI.INT]),
    "objects": lambda c, b: c.Bcast(np.array([object()] * 3)),
    "text array": lambda c, b: c.Bcast(np.array(["a", "bc"])),
    "dates": lambda c, b: c.Bcast(np.zeros(2, "M8[s]")),
    "big endian": lambda c, b: c.Bcast(b.astype(">i4")),
    "misspelt keyword": lambda c, b: c.Bcast(buffer=b),  # type: ignore[call-arg]
    "no argument": lambda c, b: c.Bcast(),  # type: ignore[call-arg]
    "too many arguments": lambda c, b: c.Bcast(b, 0, 0),  # type: ignore[call-arg]
    "bcast root -1": lambda c, b: c.bcast(1, -1),
    "bcast root beyond": lambda c, b: c.bcast(1, c.Get_size()),
    "bcast root no number": lambda c, b: c.bcast(1, "0"),  # type: ignore[arg-type]
    "bcast misspelt keyword": lambda c, b: c.bcast(object=1),  # type: ignore[call-arg]
    "bcast no argument": lambda c, b: c.bcast(),  # type: ignore[call-arg]
}
"""Each is called on every rank with rank 0 the root."""


def outcome(call: Call, comm: MPI.Intracomm) -> tuple[object, ...]:
    """The kind of error, and MPI's class where MPI raised it."""
    buffer = np.arange(N, dtype="i4")
    try:
        result = call(comm, buffer)
    except MPI.Exception as error:
        return "MPI", type(error), error.Get_error_class()
    except Exception as error:
        return "Python", type(error)
    return "no error", result


@pytest.mark.parametrize("what", WRONG)
def test_the_same_error(world: MPI.Intracomm, what: str) -> None:
    call = WRONG[what]
    with grid_comm(world) as grid:
        plain = world.Dup()
        theirs = outcome(call, plain)
        ours = outcome(call, grid)
        plain.Free()
        assert ours == theirs
        works(grid)


def works(comm: MPI.Intracomm) -> None:
    buffer = np.arange(N) if comm.Get_rank() == 0 else np.zeros(N, int)
    comm.Bcast(buffer, 0)
    assert (buffer == np.arange(N)).all()


def test_most_are_errors(world: MPI.Intracomm) -> None:
    """Two that both succeed are alike, too; but that is not what the table is for."""
    plain = world.Dup()
    fine = [what for what, call in WRONG.items() if outcome(call, plain)[0] == "no error"]
    plain.Free()
    assert len(fine) <= 1, fine


Unfit = Callable[[MPI.Intracomm, int, np.ndarray, np.ndarray], object]
"""A call of so many ranks with what this rank sends, and where it gets all ranks' blocks."""

UNFIT: dict[str, Unfit] = {
    "Allgather": lambda comm, size, mine, ours: comm.Allgather(mine, ours),
    "Allgatherv": lambda comm, size, mine, ours: comm.Allgatherv(
        mine, [ours, [len(ours) // size] * size]
    ),
    "Alltoall": lambda comm, size, mine, ours: comm.Alltoall(np.tile(mine, size), ours),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("n", [4, 40_000])
@pytest.mark.parametrize("name", UNFIT)
def test_a_block_longer_than_its_own_place(
    world: MPI.Intracomm, name: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one rank, which knows; all others need it. Nobody waits for ever, all raise the same."""
    rank, size = world.Get_rank(), world.Get_size()
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    with grid_comm(world) as comm:
        for longer in (2 * n, n):
            ours = np.zeros(size * n, "i4")
            mine = np.full(longer if rank == size - 1 else n, rank, "i4")
            if longer == n:
                UNFIT[name](comm, size, mine, ours)
                assert (ours == np.repeat(np.arange(size), n)).all()
                continue
            with pytest.raises(MPI.Exception) as caught:
                UNFIT[name](comm, size, mine, ours)
            assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
        works(comm)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("n", [4, 40_000])
@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.parametrize("who", ["one", "all"])
def test_a_block_shorter_than_its_own_place(
    world: MPI.Intracomm, name: str, n: int, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPICH takes it: what there is arrives at the beginning of its place."""
    rank, size = world.Get_rank(), world.Get_size()
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    with grid_comm(world) as comm:
        for shorter in (n // 2, n // 2, n, n // 4):
            is_short = who == "all" or rank == size - 1
            ours = np.full(size * n, -1, "i4")
            UNFIT[name](comm, size, np.full(shorter if is_short else n, rank, "i4"), ours)
            blocks = ours.reshape(size, n)
            assert (blocks[:, :shorter] == np.arange(size)[:, None]).all()
            if who == "one":
                assert (blocks[:-1] == np.arange(size - 1)[:, None]).all()


@pytest.mark.mpi(min_size=2)
def test_a_block_too_long_at_the_root_of_a_gather(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the root needs blocks: others' are received, not left for a later call."""
    rank, size = world.Get_rank(), world.Get_size()
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    with grid_comm(world) as comm:
        for own in (2, 1, 0):
            mine = np.full(own if rank == 0 else 1, rank + 5, "i4")
            ours = np.full(size, -1, "i4") if rank == 0 else None
            if rank == 0 and own == 2:
                with pytest.raises(MPI.Exception) as caught:
                    comm.Gather(mine, ours)
                assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
            else:
                comm.Gather(mine, ours)
            if ours is not None:
                assert (ours[1:] == np.arange(1, size) + 5).all()
        works(comm)


@pytest.mark.mpi(min_size=3)
def test_read_only_memory_elsewhere(world: MPI.Intracomm) -> None:
    """Refused before anything is received, as mpi4py does; the root does not even call."""
    frozen = np.frombuffer(bytes(4 * N), "i4")
    for spec in (bytes(4 * N), memoryview(bytes(8)), frozen, [frozen, 1, MPI.INT]):

        def call(comm: MPI.Intracomm, _: np.ndarray, spec: Any = spec) -> object:
            return comm.Bcast(spec, 0)

        with grid_comm(world) as grid:
            plain = world.Dup()
            if world.Get_rank():
                theirs = outcome(call, plain)
                assert theirs[0] != "no error"
                assert outcome(call, grid) == theirs
            plain.Free()
            works(grid)


def test_an_object_that_cannot_be_pickled(world: MPI.Intracomm) -> None:
    """Raised at the root before anything is sent."""
    with grid_comm(world) as grid:
        if world.Get_rank() == 0:
            kinds = []
            for comm in (MPI.COMM_SELF, grid):
                with pytest.raises(Exception, match=r"(?i)pickle") as caught:
                    comm.bcast(lambda: None, 0)
                kinds.append(type(caught.value))
            assert kinds[1] is kinds[0]
        works(grid)


def test_the_users_error_handler_is_asked(world: MPI.Intracomm) -> None:
    """A Python handler sees our communicator's errors as it sees plain ones."""
    seen: list[tuple[bool, int]] = []
    handled = world.Dup()

    def handle(comm: MPI.Comm, code: int) -> None:
        seen.append((comm == handled, MPI.Get_error_class(code)))

    handler = MPI.Comm.Create_errhandler(handle)
    theirs = outcome(WRONG["root beyond"], _with_handler(handled, handler))
    with grid_comm(world) as grid:
        handled.Free()
        handled = grid
        assert outcome(WRONG["root beyond"], _with_handler(grid, handler)) == theirs
        works(grid)
    handler.Free()
    assert seen == [(True, seen[0][1])] * 2


def _with_handler(comm: MPI.Intracomm, handler: MPI.Errhandler) -> MPI.Intracomm:
    comm.Set_errhandler(handler)
    return comm


OVERRIDDEN = sorted(
    name
    for name in dir(MPI.Cartcomm)
    if not name.startswith("_")
    and any(name in vars(kind) for kind in GridCartcomm.__mro__ if issubclass(kind, GridMethods))
)
"""What we have in the place of mpi4py's own."""


def test_all_that_is_overridden_is_known() -> None:
    assert {*_COLLECTIVES, "Dup", "Split", "Create_group", "Create_cart", "Sub"} < set(OVERRIDDEN)


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_signatures_are_mpi4pys(name: str) -> None:
    ours, theirs = (
        inspect.signature(getattr(kind, name)).parameters.values()
        for kind in (GridCartcomm, MPI.Cartcomm)
    )
    assert [p.replace(annotation=None) for p in ours] == [
        p.replace(annotation=None) for p in theirs
    ]


def test_keywords_and_results_are_mpi4pys(world: MPI.Intracomm) -> None:
    with grid_comm(world) as grid:
        buffer = np.full(3, grid.Get_rank())
        assert grid.Bcast(buf=buffer, root=0) is None
        assert buffer.tolist() == [0, 0, 0]
        assert grid.bcast(obj=grid.Get_rank(), root=0) == 0
        assert grid.bcast(grid.Get_rank()) == 0


def test_a_root_that_is_as_good_as_a_number(world: MPI.Intracomm) -> None:
    """What has ``__index__`` counts: NumPy integers and booleans."""
    with grid_comm(world) as grid:
        plain = world.Dup()
        for root in (np.int64(0), np.uint8(0), False):
            for comm in (plain, grid):
                buffer = np.full(3, comm.Get_rank())
                comm.Bcast(buffer, root)  # type: ignore[arg-type]
                assert buffer.tolist() == [0, 0, 0]
                assert comm.bcast(comm.Get_rank(), root) == 0  # type: ignore[arg-type]
        plain.Free()


def test_roots_of_other_kinds_on_other_ranks(world: MPI.Intracomm) -> None:
    """Ranks never take different ways because of what only one of them knows."""
    kinds = (int, np.int64, np.uint8, np.int32)
    with grid_comm(world) as grid:
        for root in range(grid.Get_size()):
            mine = kinds[grid.Get_rank() % len(kinds)](root)
            buffer = np.full(300, grid.Get_rank())
            grid.Bcast(buffer, mine)  # type: ignore[arg-type]
            assert (buffer == root).all()
            assert grid.bcast(grid.Get_rank(), mine) == root  # type: ignore[arg-type]
