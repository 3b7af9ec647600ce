"""Reductions by every algorithm, and of every type, against plain mpi4py; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.plan import REGISTRIES
from gridcoll.plan.natives import natives_of
from tests.mpi.bodies import check_allreduce, check_reduce, values
from tests.mpi.harness import Grids, algorithms_that_run, check_algorithm
from tests.mpi.support import SHARED, grid_comm

LAYOUTS = (
    *("one cluster", "two", "three", "interleaved", "three interleaved"),
    *("lonely root", "all alone", f"interleaved{SHARED}"),
)
SIZES = (0, 1, 2, 3, 7, 64, 1009, 65537)

OPS = ("MAX", "MIN", "SUM", "PROD", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR")
CODES = "?bBhHiIlLqQfdgFDGe"


@pytest.mark.long
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algorithm", [*natives_of("allreduce"), *REGISTRIES["allreduce"]])
def test_every_algorithm_on_every_layout(
    grids: Grids, algorithm: str, layout: str, n_planned: list[int]
) -> None:
    check_algorithm(
        grids(layout), "allreduce", algorithm, check_allreduce,
        cases=[(n, 0) for n in SIZES], n_calls=2, unit_bytes=8, n_planned=n_planned,
    )  # fmt: skip


@pytest.mark.parametrize("layout", ["one cluster", "three interleaved", "lonely root"])
@pytest.mark.parametrize("algorithm", REGISTRIES["reduce"])
def test_every_reduce_on_every_layout(
    grids: Grids, algorithm: str, layout: str, n_planned: list[int]
) -> None:
    size = MPI.COMM_WORLD.Get_size()
    check_algorithm(
        grids(layout), "reduce", algorithm, check_reduce,
        cases=[(7, 0), (0, size - 1), (65537, size // 2), (1009, size // 3)],
        n_calls=2, unit_bytes=8, n_planned=n_planned,
    )  # fmt: skip


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("collective", ["allreduce", "reduce"])
def test_every_algorithm_runs_somewhere(grids: Grids, collective: str) -> None:
    names = list(REGISTRIES[collective])
    assert algorithms_that_run(grids, collective, names, 8, 1 << 18) == set(names)


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


PAIRS: list[tuple[list[tuple[str, str]], MPI.Datatype]] = [
    ([("v", "i4"), ("at", "i4")], MPI.INT_INT),
    ([("v", "f4"), ("at", "i4")], MPI.FLOAT_INT),
    ([("v", "f8"), ("at", "i4")], MPI.DOUBLE_INT),  # with a gap at the end
    ([("v", "i2"), ("at", "i4")], MPI.SHORT_INT),  # and in the middle
    ([("v", "g"), ("at", "i4")], MPI.LONG_DOUBLE_INT),
]


def pairs(fields: list[tuple[str, str]], n: int) -> np.ndarray:
    """``n`` pairs of a value and its place; all bytes between them are 0x55."""
    found = np.zeros(n, np.dtype(fields, align=True))
    found.view(np.uint8)[:] = 0x55
    found["v"], found["at"] = 0, 0
    return found


def gaps(values: np.ndarray) -> set[int]:
    """What there is in the bytes between the fields of ``values``."""
    is_gap = np.ones(values.dtype.itemsize, bool)
    for field, start, *_ in (values.dtype.fields or {}).values():
        is_gap[start : start + field.itemsize] = False
    return set(values.view(np.uint8).reshape(len(values), -1)[:, is_gap].flat)


@pytest.mark.parametrize(("fields", "datatype"), PAIRS)
def test_values_with_their_places(
    world: MPI.Intracomm,
    fields: list[tuple[str, str]],
    datatype: MPI.Datatype,
    n_planned: list[int],
) -> None:
    """What is between them in the result stays untouched.

    Not compared with the library: MPI_Reduce of Intel MPI 2021.18 errs on MPI.LONG_DOUBLE_INT.
    """
    rank, n_ranks = world.Get_rank(), world.Get_size()
    mine = np.zeros(300 * n_ranks, np.dtype(fields, align=True))
    mine["v"] = (np.arange(len(mine)) * 5 + rank * 3) % 7
    mine["at"] = rank
    values = np.array(world.allgather(mine["v"].tolist()))
    with grid_comm(world) as comm:
        for op, find in ((MPI.MAXLOC, np.argmax), (MPI.MINLOC, np.argmin)):
            places = find(values, axis=0)
            all_of_them, in_place, at_root, later = (pairs(fields, len(mine)) for _ in range(4))
            block = pairs(fields, 300)
            in_place["v"], in_place["at"] = mine["v"], mine["at"]
            comm.Allreduce([mine, datatype], [all_of_them, datatype], op)
            comm.Allreduce(MPI.IN_PLACE, [in_place, datatype], op)
            comm.Reduce([mine, datatype], [at_root, datatype], op, root=n_ranks - 1)
            comm.Iallreduce([mine, datatype], [later, datatype], op).Wait()
            comm.Reduce_scatter_block([mine, datatype], [block, datatype], op)
            for found in (all_of_them, in_place, later, *[at_root] * (rank == n_ranks - 1)):
                assert (found["at"] == places).all()
                assert (found["v"] == values[places, np.arange(len(mine))]).all()
            assert (block["at"] == places[300 * rank :][:300]).all()
            for found in (all_of_them, in_place, at_root, later, block):
                assert gaps(found) <= {0x55}
        plans = comm.explain("allreduce", mine.nbytes).winner.build is not None
        assert n_planned[0] >= 2 * 4 * plans  # those that wait, without Iallreduce


def test_structs_with_gaps_and_an_operation_of_the_user(
    world: MPI.Intracomm, n_planned: list[int]
) -> None:
    datatype = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.INT]).Create_resized(
        0, 16
    )
    datatype.Commit()
    fields = [("v", "f8"), ("at", "i4")]

    def combine(given: Any, into: Any, _: MPI.Datatype) -> None:
        a, b = (np.frombuffer(each, np.dtype(fields, align=True)) for each in (given, into))
        b["v"] += a["v"]
        b["at"] = np.maximum(a["at"], b["at"])

    op = MPI.Op.Create(combine, commute=True)
    with grid_comm(world) as comm:
        mine, result = pairs(fields, 5), pairs(fields, 5)
        mine["v"], mine["at"] = 1.5, world.Get_rank()
        comm.Allreduce([mine, datatype], [result, datatype], op)
        expected = pairs(fields, 5)
        expected["v"], expected["at"] = 1.5 * world.Get_size(), world.Get_size() - 1
        assert result.tobytes() == expected.tobytes()
        assert n_planned[0] >= (comm.explain("allreduce", 80).winner.build is not None)
    op.Free()
    datatype.Free()


def test_a_column_of_a_matrix_is_left_to_the_library(
    world: MPI.Intracomm, n_planned: list[int]
) -> None:
    """A plan would send the whole matrix."""
    column = MPI.DOUBLE.Create_resized(0, 80).Commit()
    op = MPI.Op.Create(lambda given, into, _: None, commute=True)
    with grid_comm(world) as comm:
        mine, result = np.ones((4, 10)), np.zeros((4, 10))
        comm.Allreduce([mine, 4, column], [result, 4, column], op)
        assert not result[:, 1:].any()
        assert n_planned[0] == 0
    op.Free()
    column.Free()


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
