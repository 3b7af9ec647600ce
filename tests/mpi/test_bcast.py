"""Broadcast down every registered algorithm's plans, over every layout of clusters."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll.plan import REGISTRIES
from gridcoll.plan.bcast.strategies import PREFIX
from gridcoll.plan.natives import natives_of
from tests.mpi.bodies import check_bcast
from tests.mpi.harness import Grids, algorithms_that_run, check_algorithm
from tests.mpi.support import SHARED, SIZES, grid_comm, layouts, unlike_comm

LAYOUTS = (
    *("one cluster", "two", "three", "interleaved", "three interleaved"),
    *("lonely root", "all alone", f"interleaved{SHARED}"),
)
EVERY = [
    (algorithm, layout)
    for algorithm in (*natives_of("bcast"), *REGISTRIES["bcast"])
    for layout in LAYOUTS
    # What knows nothing of clusters does the same over any.
    if not algorithm.startswith(PREFIX) or layout in ("one cluster", "three interleaved")
]


@pytest.mark.long
@pytest.mark.parametrize(("algorithm", "layout"), EVERY)
def test_every_algorithm_on_every_layout(
    grids: Grids, algorithm: str, layout: str, n_planned: list[int]
) -> None:
    """The bytes arrive, and they came the way that was asked for."""
    size = MPI.COMM_WORLD.Get_size()
    cases = [(n, place % size) for place, n in enumerate((0, 1, 7, 1009, 8191, 65537))]
    check_algorithm(
        grids(layout), "bcast", algorithm, check_bcast,
        cases=cases, n_calls=1, unit_bytes=4, n_planned=n_planned,
    )  # fmt: skip


@pytest.mark.mpi(min_size=3)
def test_every_algorithm_runs_somewhere(grids: Grids) -> None:
    """Falling back to native everywhere would pass the test above."""
    names = list(REGISTRIES["bcast"])
    assert algorithms_that_run(grids, "bcast", names, 1 << 18) == set(names)


@pytest.mark.mpi(min_size=4)
def test_trees_packed_round_a_thin_link(world: MPI.Intracomm, n_planned: list[int]) -> None:
    with unlike_comm(MPI.Intracomm(world.Dup())) as comm:
        packed = comm.forced("bcast", "packed-trees")
        n_calls = 0
        for n in (20_000, 50_021):
            for root in range(world.Get_size()):
                if packed.explain("bcast", 4 * n, root).winner.name == "packed-trees":
                    check_bcast(packed, n, root)
                    n_calls += 1
        assert n_planned[0] == n_calls > 0


@pytest.mark.parametrize("n", SIZES)
def test_from_every_root(world: MPI.Intracomm, n: int, n_planned: list[int]) -> None:
    """The plans that are chosen where native is left out."""
    with grid_comm(world) as comm:
        assert comm.grid.n_ranks == world.Get_size()
        for root in range(world.Get_size()):
            check_bcast(comm, n, root)
        if len(comm.grid.clusters) > 1:
            assert n_planned[0] == world.Get_size()


def test_native_where_it_is_predicted_to_win(world: MPI.Intracomm, n_planned: list[int]) -> None:
    with grid_comm(world, native_s=1e-6) as comm:
        check_bcast(comm, 1009, 0)
        assert n_planned[0] == 0
        assert comm.bcast({"a": 1}) == {"a": 1}
        assert n_planned[0] == 0


@pytest.mark.mpi(min_size=3)
def test_a_plan_where_native_is_slow(world: MPI.Intracomm, n_planned: list[int]) -> None:
    with grid_comm(world, native_s=10.0) as comm:
        check_bcast(comm, 1009, 0)
        assert n_planned[0] == 1


def test_one_cluster_is_left_to_native(world: MPI.Intracomm, n_planned: list[int]) -> None:
    with grid_comm(world, [0] * world.Get_size()) as comm:
        check_bcast(comm, 65537, world.Get_size() - 1)
        assert n_planned[0] == 0


def test_ranks_choose_alike(world: MPI.Intracomm) -> None:
    """Law 4, on ranks rather than in theory."""
    for labels in layouts(world.Get_size()).values():
        with grid_comm(world, labels) as comm:
            for n_bytes in (0, 8, 100_000, 4 << 20):
                choice = comm.explain("bcast", nbytes=n_bytes, root=0)
                seen = [(c.name, c.label, c.predicted_s) for c in choice.candidates]
                everywhere = world.allgather((choice.winner.label, choice.reason, seen))
                assert everywhere == everywhere[:1] * len(everywhere)


def test_calls_of_many_sizes_and_roots_without_a_pause(world: MPI.Intracomm) -> None:
    """Calls overlap between ranks; a rank may be several calls ahead."""
    random = np.random.default_rng(3)  # the same on all ranks
    with grid_comm(world) as comm:
        for _ in range(120):
            check_bcast(comm, int(random.choice(SIZES[:8])), int(random.integers(comm.Get_size())))


def test_two_communicators_in_turn(world: MPI.Intracomm) -> None:
    with grid_comm(world) as one, grid_comm(world, list(range(world.Get_size()))) as other:
        for root in range(world.Get_size()):
            check_bcast(one, 1009, root)
            check_bcast(other, 300, root)


def test_large(world: MPI.Intracomm, n_planned: list[int]) -> None:
    """Four megabytes in many segments, by one tree and by several."""
    n = 1 << 20
    with grid_comm(world) as comm:
        for algorithm in ("chain", "split", "stars", "lanes"):
            check_bcast(comm.forced("bcast", algorithm), n, world.Get_size() - 1)
