"""Blocks of derived types in Alltoallv and Alltoallw, packed and as they are."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.comm.arguments import blocks as module
from gridcoll.plan.alltoall import vector as vector_plans
from tests.mpi.exchanges import METHODS, ROOM, SPACED, both, planned
from tests.mpi.support import grid_comm, layouts

REFUSES_ADDRESSES = MPI.Get_library_version().startswith("Open MPI")
"""Open MPI 5.0.11 takes no absolute addresses in `Alltoallw`."""


@pytest.mark.usefixtures("packs")
def test_derived_types(world: MPI.Intracomm) -> None:
    """Gaps stay untouched; layouts differ from rank to rank, signatures do not."""
    rank, size = world.Get_rank(), world.Get_size()
    gaps = MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 24).Commit()
    columns = MPI.INT.Create_vector(3, 1, 8).Create_resized(0, 4).Commit()
    triple = MPI.INT.Create_contiguous(3).Commit()
    source = np.arange(ROOM, dtype="i4") + 10_000 * rank
    try:
        with grid_comm(world) as comm:
            for datatype in (gaps, columns):

                def call(
                    caller: MPI.Intracomm, into: np.ndarray, datatype: MPI.Datatype = datatype
                ) -> None:
                    ours = datatype if rank % 2 else triple
                    caller.Alltoallv(
                        [source, 1, ours], [into, 1, [6 * k for k in range(size)], datatype]
                    )

                assert (both(world, comm, call) == -1).any()

            def typed(caller: MPI.Intracomm, into: np.ndarray) -> None:
                counts = [3 if (rank + k) % 2 else 1 for k in range(size)]
                types = [MPI.INT if (rank + k) % 2 else gaps for k in range(size)]
                displs = [100 * k for k in range(size)]
                caller.Alltoallw(
                    [source, counts, displs, types],
                    (into, (counts, displs[::-1]), types),
                )

            both(world, comm, typed)

            into = np.full(ROOM, -1, "i4")
            at = [MPI.Get_address(into) + 40 * k for k in range(size)]
            send = [source, [1] * size, [8 * k for k in range(size)], [MPI.INT] * size]
            if size > 1 or not REFUSES_ADDRESSES:  # a rank alone leaves it to MPI
                planned(comm).Alltoallw(send, [MPI.BOTTOM, [1] * size, at, [MPI.INT] * size])
                wanted = [10_000 * k + 2 * rank for k in range(size)]
                assert into[: 10 * size : 10].tolist() == wanted

            def short(caller: MPI.Intracomm, into: np.ndarray) -> None:
                caller.Alltoallw([source, [MPI.INT] * size], [into, [MPI.INT] * size])

            if size == 1:  # more would all be received into one place
                both(world, comm, short)
    finally:
        for datatype in (gaps, columns, triple):
            datatype.Free()


class Columns:
    """A square of ints for every rank, sent by columns and received by rows backwards."""

    def __init__(self, comm: MPI.Intracomm, n: int) -> None:
        self.rank, self.size, self.n = comm.Get_rank(), comm.Get_size(), n
        self.sent = np.arange(self.size * n * n, dtype="i4").reshape(self.size, n, n)
        self.sent += self.rank << 20
        self.got = np.full((self.size, n, n), -1, "i4")
        column = MPI.INT.Create_vector(n, 1, n)
        self.by_columns = column.Create_resized(0, 4).Commit()
        # Begins at the end of its memory: its lower bound is negative.
        self.backwards = MPI.INT.Create_hvector(n * n, 1, -4).Commit()
        column.Free()

    def free(self) -> None:
        self.by_columns.Free()
        self.backwards.Free()

    def call(self, comm: MPI.Intracomm, name: str) -> None:
        n_bytes, size = 4 * self.n**2, self.size
        displs = [n_bytes * k for k in range(size)]
        ends = [displ + n_bytes - 4 for displ in displs]
        if name == "Alltoallv":
            of_columns, of_squares = ([each // 4 for each in at] for at in (displs, ends))
            one = self.backwards.Create_resized(0, 4).Commit()
            comm.Alltoallv(
                [self.sent, self.n, of_columns, self.by_columns], [self.got, 1, of_squares, one]
            )
            one.Free()
            return
        comm.Alltoallw(
            [self.sent, [self.n] * size, displs, [self.by_columns] * size],
            [self.got, [1] * size, ends, [self.backwards] * size],
        )

    def right(self) -> bool:
        mine = np.arange(self.size * self.n**2, dtype="i4").reshape(self.sent.shape)[self.rank]
        return all(
            bool((got.ravel()[::-1] == (mine + (rank << 20)).T.ravel()).all())
            for rank, got in enumerate(self.got)
        )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("n", [1, 7, 300])
@pytest.mark.parametrize("layout", ["two", "all alone"])
def test_types_of_any_length(
    world: MPI.Intracomm,
    layout: str,
    n: int,
    name: str,
    packs: bool,
    n_planned: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From bytes to a rendezvous."""

    def packed(*_: object, **__: object) -> None:
        raise AssertionError("packed")

    if not packs:
        monkeypatch.setattr(module, "read_scattered", packed)
    with grid_comm(world, layouts(world.Get_size())[layout]) as comm:
        columns = Columns(comm, n)
        columns.call(planned(comm), name)
        columns.free()
        assert columns.right()
        assert n_planned[0] == int(world.Get_size() > 1)
        n_messages = sum(comm.traffic().messages.values())
        assert n_messages == world.Get_size() * (world.Get_size() - 1)


@pytest.mark.usefixtures("packs")
@pytest.mark.parametrize("name", METHODS)
def test_types_beyond_the_longest_message(
    world: MPI.Intracomm, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut into messages, which a type is not."""
    for each in (module, vector_plans):
        monkeypatch.setattr(each, "LARGEST_MESSAGE", 1000)
    with grid_comm(world) as comm:
        columns = Columns(comm, 20)
        columns.call(planned(comm), name)
        columns.free()
        assert columns.right()


@pytest.mark.usefixtures("packs")
@pytest.mark.mpi(min_size=2)
def test_too_much_for_oneself_by_types(world: MPI.Intracomm, n_planned: list[int]) -> None:
    """Everybody sends itself two columns and expects one; others get theirs."""
    rank, size = world.Get_rank(), world.Get_size()
    column = MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 4).Commit()
    source = np.arange(6 * size, dtype="i4") + 1000 * rank
    into = np.full(6 * size, -1, "i4")
    counts = [1 + (k == rank) for k in range(size)]
    displs = [24 * k for k in range(size)]
    with grid_comm(world) as comm, pytest.raises(MPI.Exception) as caught:
        planned(comm).Alltoallw(
            [source, counts, displs, [column] * size], [into, [1] * size, displs, [column] * size]
        )
    column.Free()
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    assert n_planned[0] == 1
    wanted = [6 * rank + 1000 * k for k in range(size)]
    assert into[::6].tolist() == wanted
    assert into[4::6].tolist() == [value + 4 for value in wanted]
    assert (into[1::2] == -1).all()


@pytest.mark.usefixtures("packs")
@pytest.mark.parametrize("datatype", [MPI.INT, SPACED], ids=["plain", "spaced"])
def test_what_is_sent_may_be_read_only(
    world: MPI.Intracomm, datatype: MPI.Datatype, n_planned: list[int]
) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    sent = np.arange(3 * size, dtype="i4") + 100 * rank
    sent.flags.writeable = False
    ones, displs, types = [1] * size, [12 * k for k in range(size)], [datatype] * size
    with grid_comm(world) as comm:

        def typed(caller: MPI.Intracomm, into: np.ndarray) -> None:
            caller.Alltoallw([sent, ones, displs, types], [into, ones, displs, types])

        def alike(caller: MPI.Intracomm, into: np.ndarray) -> None:
            caller.Alltoallv([sent, 1, range(size), datatype], [into, 1, range(size), datatype])

        for call in (typed, alike):
            both(world, comm, call)
    assert n_planned[0] == 2 * int(size > 1)


@pytest.mark.usefixtures("packs")
def test_types_in_place(world: MPI.Intracomm) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    column = MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 4).Commit()
    displs = [24 * k for k in range(size)]
    with grid_comm(world) as comm:

        def call(caller: MPI.Intracomm, into: np.ndarray) -> None:
            into[:] = np.arange(ROOM) + 10_000 * rank
            caller.Alltoallw(MPI.IN_PLACE, [into, [1] * size, displs, [column] * size])

        both(world, comm, call)
    column.Free()
