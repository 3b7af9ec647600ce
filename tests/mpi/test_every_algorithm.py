"""What moves a block per rank, by every registered algorithm, over every layout of clusters."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.plan import REGISTRIES
from gridcoll.plan.natives import natives_of
from tests.mpi import bodies
from tests.mpi.blocks import LAYOUTS
from tests.mpi.harness import Grids, algorithms_that_run, check_algorithm
from tests.mpi.support import SHARED, grid_comm, unlike_comm


class Subject(NamedTuple):
    """The calls of a collective, and how many plans they are."""

    body: bodies.Body
    n_calls: int
    rooted: bool


SUBJECTS = {
    "gather": Subject(bodies.check_gather, 2, True),
    "scatter": Subject(bodies.check_scatter, 2, True),
    "allgather": Subject(bodies.check_allgather, 3, False),
    "reduce_scatter": Subject(bodies.check_reduce_scatter_block, 3, False),
}
EVERY = [(collective, name) for collective in SUBJECTS for name in REGISTRIES[collective]]
EVERY += [(collective, name) for collective in SUBJECTS for name in natives_of(collective)]


@pytest.mark.long
@pytest.mark.parametrize("layout", [*LAYOUTS, f"two{SHARED}", f"three interleaved{SHARED}"])
@pytest.mark.parametrize(("collective", "algorithm"), EVERY)
def test_on_every_layout(
    grids: Grids, collective: str, algorithm: str, layout: str, n_planned: list[int]
) -> None:
    subject, last = SUBJECTS[collective], MPI.COMM_WORLD.Get_size() - 1
    roots = sorted({0, last}) if subject.rooted else [0]
    check_algorithm(
        grids(layout), collective, algorithm, subject.body,
        cases=[(n, root) for root in roots for n in (0, 1, 1009, 20011)],
        n_calls=subject.n_calls, unit_bytes=4, n_planned=n_planned,
    )  # fmt: skip


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize(
    ("collective", "algorithm"),
    [
        ("scatter", "relayed"),
        ("gather", "relayed"),
        ("allgather", "packed-trees"),
        ("reduce_scatter", "packed-trees"),
    ],
)
def test_round_a_thin_link(
    world: MPI.Intracomm, collective: str, algorithm: str, n_planned: list[int]
) -> None:
    subject, last = SUBJECTS[collective], world.Get_size() - 1
    roots = sorted({0, last}) if subject.rooted else [0]
    with unlike_comm(MPI.Intracomm(world.Dup())) as comm:
        check_algorithm(
            comm, collective, algorithm, subject.body,
            cases=[(n, root) for root in roots for n in (5_003, 20_011)],
            n_calls=subject.n_calls, unit_bytes=4, n_planned=n_planned,
        )  # fmt: skip
        assert n_planned[0] > 0


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("collective", SUBJECTS)
def test_each_runs_somewhere(grids: Grids, collective: str) -> None:
    names = (*natives_of(collective), *REGISTRIES[collective])
    assert algorithms_that_run(grids, collective, names, 1 << 16) == set(names)


@pytest.mark.parametrize("collective", SUBJECTS)
def test_calls_of_many_sizes_and_roots_without_a_pause(
    world: MPI.Intracomm, collective: str
) -> None:
    random = np.random.default_rng(5)  # the same on all ranks
    with grid_comm(world) as comm:
        names = (*natives_of(collective), *REGISTRIES[collective])
        views = [comm.forced(collective, name) for name in names]
        for _ in range(30):
            view = views[int(random.integers(len(views)))]
            root = int(random.integers(comm.Get_size()))
            SUBJECTS[collective].body(view, int(random.choice([0, 1, 3, 64, 1009])), root)
