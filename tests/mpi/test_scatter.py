"""Scatter, Scatterv and scatter by every registered algorithm, against NumPy and plain mpi4py."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.comm.methods.gathering import root_flow
from gridcoll.comm.methods.moving import serving_order
from gridcoll.plan import REGISTRIES, Send
from gridcoll.plan.natives import natives_of
from gridcoll.plan.pacing import pace_of
from tests.mpi.blocks import (
    FORMS,
    PAIRS,
    columns,
    outcome,
    room_for,
    struct,
    thing,
    uneven,
    uneven_forms,
)
from tests.mpi.bodies import check_scatter
from tests.mpi.support import grid_comm, layouts

NAMES = (*natives_of("scatter"), *REGISTRIES["scatter"])


@pytest.mark.parametrize(("send", "receive"), PAIRS)
def test_buffer_forms(world: MPI.Intracomm, send: str, receive: str) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        results = []
        for caller in (world, comm):
            source = np.arange(6 * size + 12, dtype="i4")
            into = np.full(18, -1, "i4")
            caller.Scatter(FORMS[send](source, size), FORMS[receive](into, 1), size - 1)
            results.append(into)
        assert (results[0] == results[1]).all()


def test_uneven_blocks_leave_one_after_another(world: MPI.Intracomm) -> None:
    """Where there are several clusters; see `plan_scatter`."""
    n, rank = world.Get_size(), world.Get_rank()
    sizes = tuple(10_000 * (other + 1) for other in range(n))
    for labels in layouts(n).values():
        with grid_comm(world, labels) as comm:
            context = comm._context
            assert context is not None
            flow = root_flow(context, (0,) * n, sizes)
            sent, dues_us = 0, [op.due_us for op in flow.program if isinstance(op, Send)]
            assert len(dues_us) == n - 1
            pace = pace_of(context.model, rank, sum(sizes) // n)
            assert (pace is not None) == (len(set(labels)) > 1)
            for due_us, other in zip(dues_us, serving_order(context), strict=True):
                assert due_us == (int(sent * pace.unit_s * 1e6) if pace else 0)
                sent += sizes[other]


def test_uneven_blocks_leave_at_once_where_that_is_asked_for(world: MPI.Intracomm) -> None:
    """A root's interface may be faster than those around it, which is what the model knows."""
    n = world.Get_size()
    with grid_comm(world) as comm:
        context = comm.forced("scatterv", "flat")._context
        assert context is not None
        flow = root_flow(context, (0,) * n, (10_000,) * n)
        assert not any(op.due_us for op in flow.program if isinstance(op, Send))


@pytest.mark.parametrize("make", [columns, struct])
@pytest.mark.parametrize("method", ["Scatter", "Scatterv"])
def test_derived_types(world: MPI.Intracomm, method: str, make: Callable[[], MPI.Datatype]) -> None:
    """Types with gaps, the layout another one on odd ranks; what is between stays untouched."""
    rank, size = world.Get_rank(), world.Get_size()
    datatype = make().Commit()
    try:
        with grid_comm(world) as comm:
            results = []
            for caller in (world, comm):
                memory = np.arange(60 * size, dtype="i4")
                into = np.full(40, -1, "i4")
                spec = [into, 1, datatype] if rank % 2 else [into, 3, MPI.INT]
                getattr(caller, method)([memory, 1, datatype], spec, size - 1)
                getattr(caller, method)(
                    [memory, 1, datatype], MPI.IN_PLACE if rank == size - 1 else spec, size - 1
                )
                results += [into, memory]
            assert (results[0] == results[2]).all()
            assert (results[1] == results[3]).all()
            assert (results[0] == -1).any()
    finally:
        datatype.Free()


def test_uneven_blocks(world: MPI.Intracomm, n_planned: list[int]) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    sizes = uneven(size)
    forms = uneven_forms(sizes)
    with grid_comm(world) as comm:
        for root in sorted({0, size - 1}):
            for spec in forms.values():
                results = []
                for caller in (world, comm):
                    source = np.arange(room_for(sizes), dtype="i4")
                    given = spec(source) if rank == root else None
                    into = np.full(sizes[rank], -1, "i4")
                    assert caller.Scatterv(given, into, root) is None
                    caller.Scatterv(given, into if rank != root else MPI.IN_PLACE, root)
                    results.append(into)
                assert (results[0] == results[1]).all()
                assert (results[0] != -1).all()
        planned = comm.explain("scatterv", 0).winner.build is not None
        assert n_planned[0] == 2 * len(forms) * len({0, size - 1}) * int(planned)


@pytest.mark.parametrize("algorithm", NAMES)
def test_objects(world: MPI.Intracomm, algorithm: str) -> None:
    """Shorter than the first message and longer, from every root; any iterable."""
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        ours = comm.forced("scatter", algorithm)
        for root in sorted({0, size // 2, size - 1}):
            for much in (0, 90, 50_000):
                things = [thing(other, much) for other in range(size)]
                got = ours.scatter(iter(things) if rank == root else None, root)  # type: ignore[arg-type]
                assert got == thing(rank, much)
        arrays = [np.full(other * 1000 + 1, other) for other in range(size)]
        array = ours.scatter(arrays if rank == 0 else None)
        assert array.shape == (rank * 1000 + 1,)
        array[:] = -5  # not read-only, and not the root's
        assert arrays[rank][0] == rank
        assert ours.scatter(None) == world.scatter(None)


def test_every_pickle_length_about_the_header(world: MPI.Intracomm) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        for n in range(225, 250, 3):
            things = [b"x" * (n + other) for other in range(size)]
            assert comm.scatter(things if rank == 0 else None) == things[rank]


WRONG: dict[str, Callable[[MPI.Intracomm, int], object]] = {
    "root beyond": lambda c, size: c.Scatter(np.zeros(2 * size), np.zeros(2), size),
    "root no number": lambda c, size: c.Scatter(np.zeros(2 * size), np.zeros(2), "0"),  # type: ignore[arg-type]
    "not a buffer": lambda c, size: c.Scatter(np.zeros(size), 3),  # type: ignore[arg-type]
    "strided": lambda c, size: c.Scatter(np.zeros(2 * size), np.zeros(4)[::2]),
    "objects": lambda c, size: c.Scatter(np.zeros(size), np.array([None])),
    "no type": lambda c, size: c.Scatter(np.zeros(size), [np.zeros(1), 1, "nonsense"]),
    "null type": lambda c, size: c.Scatter(np.zeros(size), [np.zeros(1), 1, MPI.DATATYPE_NULL]),
    "negative count": lambda c, size: c.Scatter(np.zeros(size), [np.zeros(1), -1, MPI.DOUBLE]),
    "read-only": lambda c, size: c.Scatter(np.zeros(size), bytes(8)),
    "misspelt keyword": lambda c, size: c.Scatter(sendbuffer=np.zeros(1)),  # type: ignore[call-arg]
    "v: not a buffer": lambda c, size: c.Scatterv(np.zeros(size), 3),  # type: ignore[arg-type]
    "v: root beyond": lambda c, size: c.Scatterv(np.zeros(size), np.zeros(1), size),
    "object: root beyond": lambda c, size: c.scatter([1] * size, size),
}
"""Wrong on every rank alike."""


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_get_the_same_error(world: MPI.Intracomm, what: str) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        theirs, ours = (outcome(WRONG[what], caller, size) for caller in (world, comm))
        assert theirs[0] != "no error"
        assert ours == theirs
        check_scatter(comm, 7, 0)


WRONG_AT_ROOT: dict[str, Callable[[MPI.Intracomm, int], object]] = {
    "nothing to send": lambda c, size: c.Scatter(None, np.zeros(2)),
    "no even blocks": lambda c, size: c.Scatter(np.zeros(2 * size + 1), np.zeros(2)),
    "v: counts for others": lambda c, size: c.Scatterv([np.zeros(9), [1] * 99], np.zeros(1)),
    "too many objects": lambda c, size: c.scatter([1] * (size + 1)),
    "too few objects": lambda c, size: c.scatter([]),
    "no objects": lambda c, size: c.scatter(5),  # type: ignore[arg-type]
    "no pickle": lambda c, size: c.scatter([lambda: None] * size),
}


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("what", WRONG_AT_ROOT)
def test_a_root_in_error_raises_before_anything_moves(world: MPI.Intracomm, what: str) -> None:
    """The others do not even call: that is what plain MPI's ranks would wait for."""
    size = world.Get_size()
    with grid_comm(world) as comm:
        if world.Get_rank() == 0:
            theirs, ours = (outcome(WRONG_AT_ROOT[what], caller, size) for caller in (world, comm))
            assert theirs[0] != "no error"
            assert ours == theirs
        check_scatter(comm, 7, 0)
