"""Alltoall and alltoall by every registered algorithm, against plain mpi4py on the same ranks."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll import GridComm
from gridcoll.plan import REGISTRIES
from gridcoll.plan.natives import natives_of
from gridcoll.topology import Grid
from tests.mpi.blocks import columns, struct
from tests.mpi.support import grid_comm, grid_model, layouts, thin_comm, unlike_comm

NAMES = (*natives_of("alltoall"), *REGISTRIES["alltoall"])
LAYOUTS = (
    *("one cluster", "two", "three", "interleaved", "three interleaved"),
    *("lonely root", "all alone"),
)


def sent_by(rank: int, size: int, n: int, dtype: str = "i4") -> np.ndarray:
    """``size`` blocks of ``n`` elements that tell sender, receiver and place."""
    place = np.arange(n) % 89
    return np.concatenate([place + 97 * (rank * size + to) for to in range(size)]).astype(dtype)


def wanted_at(rank: int, size: int, n: int, dtype: str = "i4") -> np.ndarray:
    place = np.arange(n) % 89
    return np.concatenate([place + 97 * (by * size + rank) for by in range(size)]).astype(dtype)


def check_alltoall(comm: GridComm, n: int) -> None:
    """Routing of every pair, with and without a send buffer."""
    rank, size = comm.Get_rank(), comm.Get_size()
    sent, wanted = sent_by(rank, size, n), wanted_at(rank, size, n)
    got = np.full(size * n, -1, "i4")
    assert comm.Alltoall(sent, got) is None
    assert (got == wanted).all()
    assert (sent == sent_by(rank, size, n)).all()
    for in_place in (MPI.IN_PLACE, None):
        got = sent.copy()
        comm.Alltoall(in_place, got)
        assert (got == wanted).all()


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", NAMES)
def test_every_algorithm_on_every_layout(
    world: MPI.Intracomm, algorithm: str, layout: str, n_planned: list[int]
) -> None:
    """Every block arrives, and it came the way that was asked for."""
    size = world.Get_size()
    with grid_comm(world, layouts(size)[layout]) as comm:
        forced = comm.forced("alltoall", algorithm)
        for n in (0, 1, 7, 1009, 20011):
            winner = forced.explain("alltoall", n * 4).winner
            assert winner.name in (algorithm, "native")
            before = n_planned[0]
            check_alltoall(forced, n)
            assert n_planned[0] - before == 3 * int(winner.build is not None)


@pytest.mark.mpi(min_size=3)
def test_every_algorithm_runs_somewhere(world: MPI.Intracomm) -> None:
    """Falling back to native everywhere would pass the test above."""
    size, ran = world.Get_size(), set()
    for labels in layouts(size).values():
        with grid_comm(world, labels) as comm:
            for name in NAMES:
                forced = comm.forced("alltoall", name)
                ran |= {forced.explain("alltoall", n).winner.name for n in (4096, 10_000)}
    # Those two need hosts with several ranks, and thin links: see below.
    elsewhere = {"nodes", "rate-paced"}
    # Three ranks do not form two clusters of several ranks.
    elsewhere |= {"lanes", "aggregated"} if size < 4 else set()
    assert ran | elsewhere == set(NAMES)


@pytest.mark.mpi(min_size=4)
def test_leaders_meet_where_the_way_is_shorter(world: MPI.Intracomm) -> None:
    """Between the first cluster and the third 12 ms pass, over the second 5 and 2."""
    with grid_comm(world, layouts(world.Get_size())["three interleaved"]) as comm:
        forced = comm.forced("alltoall", "leaders")
        for n, meets in ((1, True), (7, True), (5009, False)):
            assert ("meet" in forced.explain("alltoall", n * 4).winner.label) == meets
            check_alltoall(forced, n)


@pytest.mark.mpi(min_size=3)
def test_relayed_round_a_thin_link(world: MPI.Intracomm, n_planned: list[int]) -> None:
    """Of four bytes, the thin link would not notice anything."""
    with unlike_comm(world) as comm:
        forced = comm.forced("alltoall", "relayed")
        for n, name in ((1, "native"), (3001, "relayed"), (20_011, "relayed")):
            assert forced.explain("alltoall", n * 4).winner.name == name
            check_alltoall(forced, n)
        assert n_planned[0] == 6


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("layout", ["two", "interleaved", "three"])
def test_paced_over_thin_links(world: MPI.Intracomm, layout: str, n_planned: list[int]) -> None:
    """One piece of a block, several, and as many as there are at most."""
    with thin_comm(world, layout) as comm:
        rate_paced = comm.forced("alltoall", "rate-paced")
        for n in (4096, 20011, 150_001):
            assert rate_paced.explain("alltoall", n * 4).winner.name == "rate-paced"
            check_alltoall(rate_paced, n)
    assert n_planned[0] == 9


@pytest.mark.mpi(min_size=3)
def test_two_ranks_per_host(world: MPI.Intracomm, n_planned: list[int]) -> None:
    """The first with the last, so that a host's ranks are no neighbours."""
    size = world.Get_size()
    hosts = [f"host{min(rank, size - 1 - rank)}" for rank in range(size)]
    model = grid_model([0] * size)
    model = replace(model, grid=Grid.from_labels([0] * size, hosts))
    comm = GridComm(world, model=model)
    nodes = comm.forced("alltoall", "nodes")
    assert nodes.explain("alltoall", 28).winner.name == "nodes"
    for n in (0, 1, 7, 1009):
        check_alltoall(nodes, n)
    assert n_planned[0] == 12
    comm.Free()


def test_native_where_it_is_predicted_to_win(world: MPI.Intracomm, n_planned: list[int]) -> None:
    size = world.Get_size()
    model = grid_model(layouts(size).get("two", [0]), native_s=1e-6)
    model = replace(model, native={"alltoall": model.native["bcast"]})
    comm = GridComm(world, model=model)
    check_alltoall(comm, 1009)
    assert comm.alltoall(list(range(size))) == [comm.Get_rank()] * size
    assert n_planned[0] == 0
    comm.Free()


def test_calls_of_many_sizes_without_a_pause(world: MPI.Intracomm) -> None:
    """Calls overlap between ranks; a rank may be several calls ahead."""
    random = np.random.default_rng(5)  # the same on all ranks
    with grid_comm(world) as comm:
        views = [comm.forced("alltoall", name) for name in NAMES]
        for _ in range(60):
            view = views[int(random.integers(len(views)))]
            check_alltoall(view, int(random.choice([0, 1, 3, 64, 1009])))


# Buffer forms: each gives a spec of ``size`` blocks of 6 ints over the memory it is given.
FORMS: dict[str, Callable[[np.ndarray, int], Any]] = {
    "array": lambda memory, size: memory[: 6 * size],
    "list with type": lambda memory, size: [memory[: 6 * size], MPI.INT],
    "list with code": lambda memory, size: [memory[: 6 * size], "i"],
    "tuple with count": lambda memory, size: (memory, 6, MPI.INT),
    "count only": lambda memory, size: [memory, 6],
    "count and displacement": lambda memory, size: [memory, (6, 4), MPI.INT],
    "four items": lambda memory, size: [memory, 6, 4, MPI.INT],
    "no count": lambda memory, size: [memory[: 6 * size], None, MPI.INT],
    "memoryview": lambda memory, size: memoryview(memory[: 6 * size]),
    "bytes": lambda memory, size: [memory[: 6 * size].view("u1"), MPI.BYTE],
    "two-dimensional": lambda memory, size: memory[: 6 * size].reshape(size, 6),
    "Fortran order": lambda memory, size: memory[: 6 * size].reshape(6, size, order="F"),
}


@pytest.mark.parametrize("receive", FORMS)
@pytest.mark.parametrize("send", FORMS)
def test_buffer_forms(world: MPI.Intracomm, send: str, receive: str) -> None:
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        ours = comm.forced("alltoall", "direct")
        results = []
        for caller in (world, ours):
            source = np.arange(6 * size + 12, dtype="i4") + 1000 * rank
            into = np.full(6 * size + 12, -1, "i4")
            caller.Alltoall(FORMS[send](source, size), FORMS[receive](into, size))
            results.append(into)
        assert (results[0] == results[1]).all()


def test_no_buffers_at_all(world: MPI.Intracomm) -> None:
    with grid_comm(world) as comm:
        for caller in (world, comm.forced("alltoall", "direct")):
            caller.Alltoall([None, 0, MPI.INT], [None, 0, MPI.DOUBLE])


def test_an_array_of_the_standard_library(world: MPI.Intracomm) -> None:
    size = world.Get_size()
    with grid_comm(world) as comm:
        got = array("d", [0.0] * size)
        comm.forced("alltoall", "lg").Alltoall(array("d", map(float, range(size))), got)
        assert list(got) == [float(comm.Get_rank())] * size


def vector() -> MPI.Datatype:
    return MPI.INT.Create_vector(3, 1, 2).Create_resized(0, 24)


@pytest.mark.parametrize("make", [vector, struct, columns])
@pytest.mark.parametrize("algorithm", ["direct", "lg", "bruck", "pairwise"])
def test_derived_types(
    world: MPI.Intracomm, make: Callable[[], MPI.Datatype], algorithm: str
) -> None:
    """Types with gaps, the layout another one on odd ranks; what is between stays untouched."""
    rank, size = world.Get_rank(), world.Get_size()
    datatype = make().Commit()
    try:
        with grid_comm(world) as comm:
            results = []
            for caller in (world, comm.forced("alltoall", algorithm)):
                memory = np.arange(40 * size, dtype="i4") + 5000 * rank
                into = np.full(40 * size, -1, "i4")
                source = [memory, 1, datatype] if rank % 2 else [memory, 3, MPI.INT]
                caller.Alltoall(source, [into, 1, datatype])
                results.append(into)
                in_place = memory.copy()
                caller.Alltoall(MPI.IN_PLACE, [in_place, 1, datatype])
                results.append(in_place)
            assert (results[0] == results[2]).all()
            assert (results[1] == results[3]).all()
            assert (results[0] == -1).any()
    finally:
        datatype.Free()


@pytest.mark.parametrize(
    ("algorithm", "n_bytes"),
    [("lg", 50_000), ("bruck", 50_000), ("pairwise", 50_000)],
)
def test_scratch_is_freed_between_calls(world: MPI.Intracomm, algorithm: str, n_bytes: int) -> None:
    """No more at any time than twice the send buffer, and nothing of it afterwards."""
    size = world.Get_size()
    sent, got = np.zeros(size * n_bytes, "u1"), np.zeros(size * n_bytes, "u1")
    with grid_comm(world) as comm:
        forced = comm.forced("alltoall", algorithm)
        forced.Alltoall(sent, got)  # its plan is kept
        tracemalloc.start()
        try:
            for _ in range(3):
                forced.Alltoall(sent, got)
            left, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 2 * sent.nbytes + 50_000
        assert left < 50_000
