"""Measuring, on one machine: what is found is small, but how it is found is the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.measure import contention, engine_cost, probe
from gridcoll.measure import discover as measuring
from gridcoll.measure.clusters import find_grid
from gridcoll.measure.discover import discover, measure_links
from gridcoll.measure.pairs import representatives
from gridcoll.measure.probe import Channel, measure_latency
from gridcoll.model import GridModel, digest
from gridcoll.plan.dataflow import Dataflow
from gridcoll.plan.ops import Recv, Send
from gridcoll.topology import Grid
from tests.mpi.support import layouts


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few and small messages: these are not measurements to rely on."""
    monkeypatch.setattr(probe, "FIRST_SIZES", (0, 1 << 10, 1 << 14))
    monkeypatch.setattr(measuring, "NATIVE_SIZES", (8, 1 << 12))
    monkeypatch.delenv("GRIDCOLL_GRID", raising=False)


def test_one_machine_is_one_cluster(world: MPI.Intracomm) -> None:
    grid = find_grid(world, 0.3, name="here")
    n = world.Get_size()
    assert [c.ranks for c in grid.clusters] == [tuple(range(n))]
    assert grid.hosts == (MPI.Get_processor_name(),) * n
    assert len(grid.clusters[0].nodes) == 1
    assert grid.name == "here"


def test_progress_is_told_and_comes_to_its_end(world: MPI.Intracomm) -> None:
    steps: list[tuple[str, int, int]] = []
    find_grid(world, 0.3, lambda *step: steps.append(step))
    assert steps
    assert all(0 <= done <= of for _, done, of in steps)
    assert steps[-1][1] == steps[-1][2]


@pytest.mark.mpi(min_size=3, max_size=4)  # beyond, ranks that share a core measure the scheduler
@pytest.mark.parametrize("both_directions", [False, True])
def test_links_are_the_same_on_all_ranks(
    world: MPI.Intracomm, both_directions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One measurement per cluster and per pair of clusters, or two where directions differ."""
    n_measured = [0]
    measure = measuring.measure_plogp

    def counting(channel: Channel) -> object:
        n_measured[0] += channel.active
        return measure(channel)

    monkeypatch.setattr(measuring, "measure_plogp", counting)
    grid = Grid.from_labels(layouts(world.Get_size())["two"])
    links = measure_links(world, grid, both_directions)
    model = GridModel(grid, links, "measured")
    assert len(set(world.allgather(digest(model)))) == 1
    inside = sum(len(c) > 1 for c in grid.clusters)
    assert world.allreduce(n_measured[0]) == inside + 1 + both_directions
    assert (links[0][1] is links[1][0]) == (not both_directions)
    for row in links:
        for link in row:
            assert link is None or (link.latency_s > 0 and min(link.gap_s) > 0)


def test_representatives() -> None:
    """Coordinators between clusters; inside, two on different nodes where there are."""
    grid = Grid.from_labels([0, 1, 0, 0, 1], ["a", "b", "a", "c", "b"])
    assert representatives(grid, 0, 1) == (0, 1)
    assert representatives(grid, 0, 0) == (0, 3)
    assert representatives(grid, 1, 1) == (1, 4)


@pytest.mark.mpi(min_size=3)
def test_latency_is_the_active_ends(world: MPI.Intracomm) -> None:
    rank = world.Get_rank()
    if rank < 2:
        measured, _ = measure_latency(Channel(world, 1 - rank, active=rank == 0), longest_s=0.02)
        assert (measured > 0) == (rank == 0)


@pytest.mark.mpi(max_size=3)
def test_discover_is_the_same_on_all_ranks(world: MPI.Intracomm) -> None:
    model = discover(world, 0.3, name="here")
    assert len(set(world.allgather(digest(model)))) == 1
    assert model.origin == "measured"
    assert model.tolerance == 0.3
    assert model.mpi == MPI.get_vendor()[0]
    assert model.grid.n_ranks == world.Get_size()


@pytest.mark.mpi(max_size=3)
def test_a_communicator_that_measures_itself(world: MPI.Intracomm) -> None:
    """No file, no model: one node is found, and left to the MPI library."""
    comm = GridComm(world)
    assert len(comm.grid.clusters) == 1
    buffer = np.full(100, comm.Get_rank())
    comm.Bcast(buffer, 0)
    assert (buffer == 0).all()
    comm.Free()


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("most", [2, 64])
def test_the_pace_of_some_is_that_of_many(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """The same on all ranks, those that only watch included."""
    monkeypatch.setattr(contention, "MOST_EXCHANGING", most)
    monkeypatch.setattr(engine_cost, "RELAY_SIZES", (1 << 10,))
    ran: list[int] = []
    run = engine_cost.run_program

    def counting(*args: object) -> object:
        ran.append(1)
        return run(*args)

    monkeypatch.setattr(engine_cost, "run_program", counting)
    labels = layouts(world.Get_size())["lonely root"]
    grid = Grid.from_labels(labels)
    pace = engine_cost.measure_relay_gap(world, grid, 1e-3)
    assert pace is not None
    assert world.allgather(pace) == [pace] * world.Get_size()
    n_running = sum(bool(n) for n in world.allgather(len(ran)))
    several = [len(cluster) for cluster in grid.clusters if len(cluster) > 1]
    assert n_running == sum(min(n_ranks, most) for n_ranks in several)


@pytest.mark.mpi(min_size=2)
def test_what_precedes_a_broadcast_is_no_part_of_the_pace(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a disturbance of one of the runs. The clock here runs only while segments do."""
    now_s, n_runs = 0.0, 0

    def run_together(_clock: object, run: Callable[[], object]) -> float:
        nonlocal now_s, n_runs
        n_runs += 1
        began_s = now_s
        now_s += 0.07 * n_runs  # until all ranks have begun, and the chain is full
        run()
        return now_s - began_s

    def run_program(flow: Dataflow, *_: object) -> None:
        nonlocal now_s
        kind = Recv if world.Get_rank() else Send
        n_segments = sum(isinstance(op, kind) for op in flow.program)
        now_s += 2e-3 * n_segments + (0.5 if n_runs == 2 else 0.0)

    for name, stand_in in (
        ("run_together", run_together),
        ("run_program", run_program),
        ("time", SimpleNamespace(monotonic=lambda: now_s)),
        ("LONG_S", math.inf),
    ):
        monkeypatch.setattr(engine_cost, name, stand_in)
    grid = Grid.from_labels([0] * world.Get_size())
    pace = engine_cost.measure_relay_gap(world, grid, 0.2, (1 << 10,))
    assert pace is not None
    assert pace.seconds == pytest.approx((2e-3,))


def test_nobody_alone_has_a_pace(world: MPI.Intracomm) -> None:
    grid = Grid.from_labels(range(world.Get_size()))
    assert engine_cost.measure_relay_gap(world, grid) is None
