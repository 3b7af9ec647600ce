"""Reductions by every registered algorithm, over every layout of clusters, against plain mpi4py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.errors import DisagreementError
from gridcoll.model import TimesBySize
from gridcoll.plan import REGISTRIES
from tests.mpi.support import grid_comm, grid_model, layouts

LAYOUTS = (
    *("one cluster", "two", "three", "interleaved", "three interleaved"),
    *("lonely root", "all alone"),
)
SIZES = (0, 1, 2, 3, 7, 64, 1009, 65537)

OPS = ("MAX", "MIN", "SUM", "PROD", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR")
CODES = "?bBhHiIlLqQfdgFDGe"


def require_same_bits(world: MPI.Intracomm, result: np.ndarray) -> None:
    everybody = world.allgather(result.tobytes())
    assert all(other == everybody[0] for other in everybody)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", ["native", *REGISTRIES["allreduce"]])
def test_every_algorithm_on_every_layout(
    world: MPI.Intracomm, algorithm: str, layout: str, n_planned: list[int]
) -> None:
    size, rank = world.Get_size(), world.Get_rank()
    if layout not in layouts(size):
        return
    with grid_comm(world, layouts(size)[layout]) as comm:
        forced = comm.forced("allreduce", algorithm)
        for n in SIZES:
            mine = np.arange(n, dtype="i8") * (rank + 1) + rank
            wanted = np.arange(n) * (size * (size + 1) // 2) + size * (size - 1) // 2
            winner = forced.explain("allreduce", n * 8).winner
            assert winner.name in (algorithm, "native")
            before, kept, result = n_planned[0], mine.copy(), np.full(n, -1, "i8")
            assert forced.Allreduce(mine, result) is None
            assert (result == wanted).all()
            assert (mine == kept).all()
            forced.Allreduce(MPI.IN_PLACE if rank else None, mine)  # mpi4py takes both
            assert (mine == wanted).all()
            assert n_planned[0] - before == 2 * int(winner.build is not None)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("collective", ["allreduce", "reduce"])
def test_every_algorithm_runs_somewhere(world: MPI.Intracomm, collective: str) -> None:
    ran = set()
    for labels in layouts(world.Get_size()).values():
        with grid_comm(world, labels) as comm:
            for name in REGISTRIES[collective]:
                winner = comm.forced(collective, name).explain(collective, 65537 * 8, 0).winner
                if winner.build is not None:
                    ran.add(winner.name)
    assert ran == set(REGISTRIES[collective])


@pytest.mark.parametrize("layout", ["one cluster", "three interleaved", "lonely root"])
@pytest.mark.parametrize("algorithm", REGISTRIES["reduce"])
def test_every_reduce_on_every_layout(world: MPI.Intracomm, algorithm: str, layout: str) -> None:
    size, rank = world.Get_size(), world.Get_rank()
    if layout not in layouts(size):
        return
    with grid_comm(world, layouts(size)[layout]) as comm:
        forced = comm.forced("reduce", algorithm)
        for root, n in zip([0, size - 1, size // 2, size // 3], [7, 0, 65537, 1009], strict=True):
            mine = np.arange(n, dtype="i8") * (rank + 1)
            wanted = np.arange(n) * (size * (size + 1) // 2)
            result = np.full(n, -1, "i8") if rank == root else None
            assert forced.Reduce(mine, result, MPI.SUM, root) is None
            if result is not None:
                assert (result == wanted).all()
            forced.Reduce(MPI.IN_PLACE if rank == root else mine, mine, root=root)
            if rank == root:
                assert (mine == wanted).all()


def values(code: str, n: int, rank: int) -> np.ndarray:
    """Small whole numbers: exact in every type, in any order of combination."""
    return ((np.arange(n) * 7 + rank * 3) % 3).astype(code)


def outcome(call: Callable[[], Any]) -> tuple[type[BaseException], int] | None:
    """The kind of error, and MPI's class of it."""
    try:
        call()
    except MPI.Exception as error:
        return MPI.Exception, error.Get_error_class()
    except Exception as error:
        return type(error), 0
    return None


@pytest.mark.parametrize("code", CODES)
def test_every_type_and_operation(world: MPI.Intracomm, code: str) -> None:
    """As plain mpi4py: the same results, or the same refusal."""
    with grid_comm(world) as comm:
        for name in OPS:
            op: MPI.Op = getattr(MPI, name)
            mine = values(code, 1009, world.Get_rank())
            plain, ours = np.zeros_like(mine), np.zeros_like(mine)
            refusal = outcome(lambda: world.Allreduce(mine, plain, op))  # noqa: B023
            assert outcome(lambda: comm.Allreduce(mine, ours, op)) == refusal, name  # noqa: B023
            assert (plain == ours).all(), name
            root = world.Get_size() - 1
            refusal = outcome(lambda: world.Reduce(mine, plain, op, root))  # noqa: B023
            assert outcome(lambda: comm.Reduce(mine, ours, op, root)) == refusal, name  # noqa: B023


@pytest.mark.parametrize(
    ("dtype", "datatype", "planned"),
    [
        ([("v", "i4"), ("at", "i4")], MPI.INT_INT, True),
        ([("v", "f4"), ("at", "i4")], MPI.FLOAT_INT, True),
        ([("v", "f8"), ("at", "i4")], MPI.DOUBLE_INT, False),  # has a gap
    ],
)
def test_values_with_their_places(
    world: MPI.Intracomm, dtype: Any, datatype: MPI.Datatype, planned: bool, n_planned: list[int]
) -> None:
    rank = world.Get_rank()
    mine = np.zeros(300, np.dtype(dtype, align=True))
    mine["v"] = (np.arange(300) * 5 + rank * 3) % 7
    mine["at"] = rank
    with grid_comm(world) as comm:
        for op in (MPI.MAXLOC, MPI.MINLOC):
            plain, ours = np.zeros_like(mine), np.zeros_like(mine)
            world.Allreduce([mine, datatype], [plain, datatype], op)
            comm.Allreduce([mine, datatype], [ours, datatype], op)
            assert (plain == ours).all()
        plans = comm.explain("allreduce", 2400).winner.build is not None
        assert n_planned[0] == 2 * (planned and plans)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", REGISTRIES["allreduce"])
def test_the_same_bits_on_every_rank(world: MPI.Intracomm, algorithm: str, layout: str) -> None:
    """Sums that depend on the order, zeros of both signs, infinities, NaNs of many kinds."""
    if layout not in layouts(world.Get_size()):
        return
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
    power = 10 ** np.char.str_len(right.astype("U")).astype("i8")
    right[:] = left * power + right


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
def test_rank_order_is_kept(
    world: MPI.Intracomm, algorithm: str, layout: str, user_op: MPI.Op
) -> None:
    size, rank = world.Get_size(), world.Get_rank()
    if layout not in layouts(size):
        return
    wanted = int("".join(str(r + 1) for r in range(size)))
    with grid_comm(world, layouts(size)[layout]) as comm:
        forced = comm.forced("allreduce", algorithm) if algorithm else comm
        for n in (1, 7, 3001):
            result = np.zeros(n, "i8")
            forced.Allreduce(np.full(n, rank + 1), result, user_op)
            assert (result == wanted).all()
            result[:] = 0
            forced.Reduce(np.full(n, rank + 1), result, user_op, root=size - 1)
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
    if layout not in layouts(size):
        return
    n = 3001
    mine = np.resize(ROUNDED, n) * (rank * 0.37 + 1) + np.arange(n) / 7
    terms = list(np.array(world.allgather(mine)))
    while len(terms) > 1:  # pairs, pairs of pairs, and so on
        terms = [sum(terms[k + 1 : k + 2], terms[k]) for k in range(0, len(terms), 2)]
    with grid_comm(world, layouts(size)[layout]) as comm:
        for algorithm in ("", "native", "ring", "coordinators", "rank-order"):
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


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda b: b,
    "type": lambda b: [b, MPI.INT],
    "code": lambda b: [b, "i"],
    "count": lambda b: [b, 12],
    "tuple": lambda b: (b, 12, MPI.INT),
    "pair": lambda b: [b, (12, 0), MPI.INT],
    "displacement": lambda b: [b, 12, 0, MPI.INT],
    "no count": lambda b: [b, None, MPI.INT],
    "bytes": lambda b: [memoryview(b).cast("B"), MPI.INT],
    "matrix": lambda b: b.reshape(3, 4),
    "fortran": lambda b: b.reshape(3, 4).T,
    "buffer": lambda b: [MPI.buffer(b), MPI.INT],
}


def test_every_rank_may_say_it_otherwise(world: MPI.Intracomm, n_planned: list[int]) -> None:
    """What only one rank knows must not send it another way."""
    size, rank = world.Get_size(), world.Get_rank()
    names = list(FORMS)
    with grid_comm(world) as comm:
        for turn in range(len(names)):
            mine = np.arange(12, dtype="i") + rank
            result = np.zeros(12, "i")
            send = FORMS[names[(turn + rank) % len(names)]]
            recv = FORMS[names[(turn + 2 * rank + 1) % len(names)]]
            comm.Allreduce(send(mine), recv(result))
            assert (result == np.arange(12) * size + size * (size - 1) // 2).all()
        plans = comm.explain("allreduce", 48).winner.build is not None
        assert n_planned[0] == (len(names) if plans else 0)


def test_a_part_of_a_buffer(world: MPI.Intracomm) -> None:
    size = world.Get_size()
    mine, result = np.arange(10.0), np.full(10, -1.0)
    with grid_comm(world) as comm:
        comm.Allreduce([mine, (3, 2), MPI.DOUBLE], [result, 3, 5, MPI.DOUBLE])
    assert result.tolist() == [-1] * 5 + [2.0 * size, 3.0 * size, 4.0 * size] + [-1] * 2


WRONG: dict[str, Callable[[MPI.Intracomm, np.ndarray], object]] = {
    "other counts": lambda c, b: c.Allreduce(b, b[:3].copy()),
    "other types": lambda c, b: c.Allreduce(b, b.astype("i4")),
    "one buffer for both": lambda c, b: c.Allreduce(b, b),
    "read-only": lambda c, b: c.Allreduce(b, np.frombuffer(bytes(b.nbytes), b.dtype)),
    "no buffer": lambda c, b: c.Allreduce(b, object()),  # type: ignore[arg-type]
    "nothing to receive into": lambda c, b: c.Allreduce(b, None),  # type: ignore[arg-type]
    "in place of the result": lambda c, b: c.Allreduce(b, MPI.IN_PLACE),  # type: ignore[arg-type]
    "strided": lambda c, b: c.Allreduce(b[::2], b[::2].copy()),
    "indivisible": lambda c, b: c.Allreduce(
        [b.view("u1")[:-1], MPI.DOUBLE], [b.view("u1")[1:], MPI.DOUBLE]
    ),
    "negative count": lambda c, b: c.Allreduce([b, -1, MPI.DOUBLE], [b.copy(), -1, MPI.DOUBLE]),
    "unknown code": lambda c, b: c.Allreduce([b, "nothing"], b.copy()),
    "null type": lambda c, b: c.Allreduce([b, MPI.DATATYPE_NULL], b.copy()),
    "too many items": lambda c, b: c.Allreduce([b, 1, 0, MPI.DOUBLE, 0], b.copy()),  # type: ignore[list-item]
    "bits of doubles": lambda c, b: c.Allreduce(b, b.copy(), MPI.BAND),
    "places of doubles": lambda c, b: c.Allreduce(b, b.copy(), MPI.MAXLOC),
    "null op": lambda c, b: c.Allreduce(b, b.copy(), MPI.OP_NULL),
    "replace": lambda c, b: c.Allreduce(b, b.copy(), MPI.REPLACE),
    "no op": lambda c, b: c.Allreduce(b, b.copy(), "sum"),  # type: ignore[arg-type]
    "op None": lambda c, b: c.Allreduce(b, b.copy(), None),  # type: ignore[arg-type]
    "misspelt": lambda c, b: c.Allreduce(b, b.copy(), operation=MPI.SUM),  # type: ignore[call-arg]
    "one argument": lambda c, b: c.Allreduce(b),  # type: ignore[call-arg]
    "no such root": lambda c, b: c.Reduce(b, b.copy(), root=c.Get_size()),
    "root a float": lambda c, b: c.Reduce(b, b.copy(), root=0.5),  # type: ignore[arg-type]
    "reduce strided": lambda c, b: c.Reduce(b[::2], b.copy()),
    "barrier of something": lambda c, b: c.Barrier(1),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_as_ever(world: MPI.Intracomm, name: str) -> None:
    """Or accepted, where this MPI does; and the communicator works afterwards."""
    with grid_comm(world) as comm:
        plain = outcome(lambda: WRONG[name](world, np.arange(12.0)))
        assert outcome(lambda: WRONG[name](comm, np.arange(12.0))) == plain
        result = np.zeros(3)
        comm.Allreduce(np.ones(3), result)
        assert (result == world.Get_size()).all()


def test_checking_finds_ranks_that_disagree(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDCOLL_CHECK", "1")
    rank, size = world.Get_rank(), world.Get_size()
    with grid_comm(world) as comm:
        result = np.zeros(2)
        comm.Allreduce(np.ones(2), result)
        assert (result == size).all()
        if size > 1:
            with pytest.raises(DisagreementError, match="MAX"):
                comm.Allreduce(np.ones(2), result, MPI.MAX if rank == size - 1 else MPI.SUM)
            with pytest.raises(DisagreementError, match="count=3"):
                comm.Allreduce(np.ones(2 + (rank == 0)), np.ones(2 + (rank == 0)))
        comm.Barrier()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nobody_leaves_a_barrier_early(
    world: MPI.Intracomm, layout: str, n_planned: list[int]
) -> None:
    """A counter that all ranks raise before it is complete after it."""
    size = world.Get_size()
    if layout not in layouts(size):
        return
    counter = np.zeros(1, "i8")
    window = MPI.Win.Create(counter, 8, comm=world)
    seen = np.zeros(1, "i8")
    with grid_comm(world, layouts(size)[layout]) as comm:
        for turn in range(1, 6):
            window.Lock(0)
            window.Accumulate(np.ones(1, "i8"), 0)
            window.Unlock(0)
            comm.Barrier()
            window.Lock(0)
            window.Get_accumulate(np.zeros(1, "i8"), seen, 0, op=MPI.NO_OP)
            window.Unlock(0)
            assert seen[0] >= turn * size
        plans = comm.explain("barrier", 1).winner.build is not None
        assert n_planned[0] == 5 * plans
    window.Free()


def test_many_calls_in_a_row(world: MPI.Intracomm) -> None:
    """Late ranks and messages of the next call must not meet those of this one."""
    size, rank = world.Get_size(), world.Get_rank()
    random = np.random.default_rng(3)
    with grid_comm(world) as comm:
        views: list[GridComm] = [comm.forced("allreduce", a) for a in REGISTRIES["allreduce"]]
        for k in range(200):
            n = int(random.choice([1, 10, 500, 5000]))
            result = np.zeros(n, "i8")
            views[k % len(views)].Allreduce(np.full(n, rank + k), result)
            assert (result == size * k + size * (size - 1) // 2).all()
