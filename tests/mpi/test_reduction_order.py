"""What the order of combination decides: the same bits everywhere, and users' operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll import GridComm
from gridcoll.comm.decisions import Semantics
from gridcoll.model import TimesBySize
from gridcoll.plan import REGISTRIES
from gridcoll.plan.allreduce import rank_order
from tests.mpi.bodies import values
from tests.mpi.harness import Grids
from tests.mpi.support import grid_comm, grid_model, layouts

LAYOUTS = (
    *("one cluster", "two", "three", "interleaved", "three interleaved"),
    *("lonely root", "all alone"),
)


def require_same_bits(world: MPI.Intracomm, result: np.ndarray) -> None:
    everybody = world.allgather(result.tobytes())
    assert all(other == everybody[0] for other in everybody)


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", REGISTRIES["allreduce"])
def test_the_same_bits_on_every_rank(world: MPI.Intracomm, algorithm: str, layout: str) -> None:
    """Sums that depend on the order, zeros of both signs, infinities, NaNs of many kinds."""
    random = np.random.default_rng(world.Get_rank())
    with grid_comm(world, layouts(world.Get_size())[layout]) as comm:
        forced = comm.forced("allreduce", algorithm)
        for n, skip in ((3, 0), (1009, world.Get_rank() % 3), (20011, 0)):
            if forced.explain("allreduce", n * 8).winner.build is None:
                continue  # what the library does: Intel MPI's NaNs differ from rank to rank
            mine = random.normal(size=n) * 10.0 ** random.integers(-300, 300, n)
            mine[random.integers(0, n, n // 4)] = random.choice(
                [0.0, -0.0, np.inf, -np.inf, 5e-324]
            )
            payloads = random.integers(1, 1 << 50, n) | 0x7FF8 << 48
            mine = np.where(random.random(n) < 0.05, payloads.view("f8"), mine)
            for op in (MPI.SUM, MPI.MAX, MPI.MIN, MPI.PROD):
                result = np.empty(n + skip)[skip:]  # results at unequal alignments
                forced.Allreduce(mine, result, op)
                require_same_bits(world, result)


def test_special_values_survive(world: MPI.Intracomm) -> None:
    special = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1.5])
    mine = special if world.Get_rank() == 0 else np.array([0, 0, 0, -0.0, 0, 0])
    result = np.empty(6)
    with grid_comm(world) as comm:
        comm.Allreduce(mine, result)
    assert np.isnan(result[0])
    assert result[1:].tobytes() == special[1:].tobytes()


def _append_digits(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """``b = a`` followed by ``b``, as decimal numbers: associative, not commutative."""
    left, right = np.frombuffer(a, "i8"), np.frombuffer(b, "i8")
    n_digits = np.floor(np.log10(right)).astype("i8") + 1
    right[:] = left * 10**n_digits + right


def _chain_maps(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """2 x 2 matrix products, row by row."""
    left, right = (np.frombuffer(x, "i8").reshape(-1, 2, 2) for x in (a, b))
    right[:] = left @ right


def _add(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    assert datatype.Get_size() == 8
    right = np.frombuffer(b, "i8")
    right += np.frombuffer(a, "i8")


@pytest.fixture
def user_op(request: pytest.FixtureRequest) -> Any:
    function, commutes = request.param
    op = MPI.Op.Create(function, commutes)
    yield op
    op.Free()


@pytest.mark.parametrize("user_op", [(_append_digits, False)], indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", ["", *REGISTRIES["allreduce"]])
def test_rank_order_is_kept(grids: Grids, algorithm: str, layout: str, user_op: MPI.Op) -> None:
    comm = grids(layout)
    size, rank = comm.Get_size(), comm.Get_rank()
    wanted = int("".join(str(r + 1) for r in range(size)))
    forced = comm.forced("allreduce", algorithm) if algorithm else comm
    for n in (1, 7, 3001):
        result = np.zeros(n, "i8")
        forced.Allreduce(np.full(n, rank + 1), result, user_op)
        assert (result == wanted).all()
        if algorithm:
            continue  # reductions to a root are the same whatever is forced for others
        result[:] = 0
        comm.Reduce(np.full(n, rank + 1), result, user_op, root=size - 1)
        assert (result == (wanted if rank == size - 1 else 0)).all()


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("user_op", [(_append_digits, False)], indirect=True)
@pytest.mark.parametrize("layout", ["two", "interleaved"])
def test_rank_order_is_kept_by_plans(
    world: MPI.Intracomm, layout: str, user_op: MPI.Op, n_planned: list[int]
) -> None:
    with grid_comm(world, layouts(world.Get_size())[layout]) as comm:
        for n in (5, 20000):
            comm.Allreduce(np.ones(n, "i8"), np.zeros(n, "i8"), user_op)
            comm.Reduce(np.ones(n, "i8"), np.zeros(n, "i8"), user_op, 1)
    assert n_planned[0] == 4


def test_inexact_sums_are_never_left_to_the_library(
    world: MPI.Intracomm, n_planned: list[int]
) -> None:
    """However fast it may be: between clusters, its ranks may get different bits."""
    fast = TimesBySize((1,), (1e-9,))
    for layout, labels in layouts(world.Get_size()).items():
        model = replace(grid_model(labels), native={"allreduce": fast})
        own = world.Dup()
        comm = GridComm(own, model=model)
        for code, op, exact in (
            ("f8", MPI.SUM, False), ("F", MPI.PROD, False), ("f4", MPI.MAX, False),
            ("i4", MPI.SUM, True), ("u1", MPI.BOR, True),
        ):  # fmt: skip
            before, result = n_planned[0], np.zeros(3, code)
            comm.Allreduce(values(code, 3, world.Get_rank()), result, op)
            require_same_bits(world, result)
            planned = not exact and len(set(labels)) > 1
            assert n_planned[0] - before == planned, (layout, code)
        comm.Free()
        own.Free()


ROUNDED = [0.1, 1e16, -1e16, 3.0, 1e-9, -7.7, 1e8, 2.5e-3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reproducible_results_are_the_same_by_all_ways(
    world: MPI.Intracomm, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every algorithm, for every root, on every layout, in parts or whole."""
    monkeypatch.setenv("GRIDCOLL_REPRODUCIBLE", "1")
    size, rank = world.Get_size(), world.Get_rank()
    n = 3001
    mine = np.resize(ROUNDED, n) * (rank * 0.37 + 1) + np.arange(n) / 7
    terms = list(np.array(world.allgather(mine)))
    while len(terms) > 1:  # pairs, pairs of pairs, and so on
        terms = [sum(terms[k + 1 : k + 2], terms[k]) for k in range(0, len(terms), 2)]
    with grid_comm(world, layouts(size)[layout]) as comm:
        for algorithm in ("", "native", "ring", "leaders", "rank-order"):
            forced = comm.forced("allreduce", algorithm) if algorithm else comm
            result = np.zeros(n)
            forced.Allreduce(mine, result)
            assert result.tobytes() == terms[0].tobytes()
            forced.Allreduce(mine[:5], result[:5])
            assert result.tobytes() == terms[0].tobytes()
        for root in range(size):
            result[:] = 0
            comm.Reduce(mine, result, root=root)
            assert result.tobytes() == (terms[0] if rank == root else np.zeros(n)).tobytes()


def test_reproducible_results_in_little_room(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever combines a long message has room for two segments of many."""
    monkeypatch.setenv("GRIDCOLL_REPRODUCIBLE", "1")
    size, rank = world.Get_size(), world.Get_rank()
    mine = np.arange(40_000) / 7 * (rank + 1)
    with grid_comm(world, layouts(size).get("two", [0] * size)) as comm:
        wanted = np.zeros_like(mine)
        comm.Reduce(mine, wanted, root=size - 1)
        wanted = comm.bcast(wanted, size - 1)
        monkeypatch.setattr(rank_order, "MOST_SCRATCH_BYTES", 1 << 15)
        monkeypatch.setattr(rank_order, "SMALLEST_PIECE_BYTES", 1 << 30)  # one piece
        again = comm.forced("reduce", "rank-order")
        for root in range(size):
            result = np.zeros_like(mine)
            again.Reduce(mine, result, root=root)
            assert rank != root or result.tobytes() == wanted.tobytes()
        result = np.zeros_like(mine)
        comm.forced("allreduce", "rank-order").Allreduce(mine, result)
        assert result.tobytes() == wanted.tobytes()
        flow = again._context.decisions.decide(
            "reduce", mine.nbytes, 0, unit_bytes=8, semantics=Semantics(reproducible=True)
        ).flow
        assert size == 1 or (flow is not None and flow.scratch_units * 8 <= 1 << 16)


@pytest.mark.parametrize("user_op", [(_chain_maps, False)], indirect=True)
def test_matrices_are_never_cut(
    world: MPI.Intracomm, user_op: MPI.Op, n_planned: list[int]
) -> None:
    matrix = MPI.INT64_T.Create_contiguous(4).Commit()
    step = np.array([[1, world.Get_rank()], [1, 1]])
    mine = np.tile(step, (333, 1, 1))
    plain, ours = np.zeros_like(mine), np.zeros_like(mine)
    world.Allreduce([mine, 333, matrix], [plain, 333, matrix], user_op)
    for labels in layouts(world.Get_size()).values():
        with grid_comm(world, labels) as comm:
            before = n_planned[0]
            comm.Allreduce([mine, 333, matrix], [ours, 333, matrix], user_op)
            assert (plain == ours).all()
            assert n_planned[0] - before == (len(set(labels)) > 1)
    matrix.Free()


@pytest.mark.parametrize("user_op", [(_add, True)], indirect=True)
@pytest.mark.parametrize("algorithm", REGISTRIES["allreduce"])
def test_users_operations(world: MPI.Intracomm, algorithm: str, user_op: MPI.Op) -> None:
    mine = np.arange(5003) * (world.Get_rank() + 1)
    result = np.zeros_like(mine)
    with grid_comm(world) as comm:
        comm.forced("allreduce", algorithm).Allreduce(mine, result, user_op)
    size = world.Get_size()
    assert (result == np.arange(5003) * (size * (size + 1) // 2)).all()


def _first_largest(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """Pairs of value and place; of equal values, the place on the left. Said to commute."""
    left, right = (np.frombuffer(x, "i8").reshape(-1, 2) for x in (a, b))
    right[:] = np.where(left[:, :1] >= right[:, :1], left, right)


@pytest.mark.parametrize("user_op", [(_first_largest, True)], indirect=True)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_of_equals_wins_on_scattered_ranks(
    world: MPI.Intracomm, layout: str, user_op: MPI.Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by MPI libraries, whatever the operation says of itself."""
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    size, rank = world.Get_size(), world.Get_rank()
    pair = MPI.INT64_T.Create_contiguous(2).Commit()
    with grid_comm(world, layouts(size)[layout]) as comm:
        for n in (1, 7, 128):  # up to 2 KiB
            mine = np.tile([5, rank], (n, 1))
            result = np.zeros_like(mine)
            comm.Allreduce([mine, n, pair], [result, n, pair], user_op)
            assert (result == [5, 0]).all()
            for root in {0, size - 1}:
                result[:] = -1
                comm.Reduce([mine, n, pair], [result, n, pair], user_op, root=root)
                assert (result == ([5, 0] if rank == root else [-1, -1])).all()
        blocks, part = np.tile([5, rank], (size, 1)), np.zeros((1, 2), "i8")
        comm.Reduce_scatter_block([blocks, pair], [part, pair], user_op)
        assert (part == [5, 0]).all()
    pair.Free()


def _first_largest_apart(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """All values, then all places: wrong for a part of a message, which MPI may ask for."""
    left, right = (np.frombuffer(x, "i8").reshape(2, -1) for x in (a, b))
    right[:] = np.where(left[0] >= right[0], left, right)


@pytest.mark.parametrize(
    "user_op", [(_first_largest_apart, True), (_first_largest_apart, False)], indirect=True
)
def test_short_messages_are_whole_to_users_operations(
    world: MPI.Intracomm, user_op: MPI.Op, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by MPI libraries."""
    monkeypatch.setenv("GRIDCOLL_FORCE", "grid")
    size, rank = world.Get_size(), world.Get_rank()
    values = np.arange(128) * (np.arange(size) + 1)[:, None] % 5
    wanted = np.array([values.max(axis=0), values.argmax(axis=0)])
    mine = np.array([values[rank], np.full(128, rank)])
    for labels in layouts(size).values():
        with grid_comm(world, labels) as comm:
            result = np.zeros_like(mine)
            comm.Allreduce(mine, result, user_op)  # 2 KiB
            assert (result == wanted).all()
            comm.Reduce(mine, result, user_op, root=size - 1)
            assert rank != size - 1 or (result == wanted).all()
