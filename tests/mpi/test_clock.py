"""One clock for all ranks, whatever their own ones say."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from gridcoll.comm import clock
from gridcoll.topology import Grid
from tests.mpi.support import layouts

LAYOUTS = ("one cluster", "two", "three interleaved", "lonely root", "all alone")
SKEW_S = 1000.0
CLOSE_S = 100.0
"""Skews are so far from that that no pause of a busy machine matters."""


@pytest.fixture
def skewed(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank's clock is another thousand seconds ahead."""
    real, ahead_s = clock.time.monotonic, SKEW_S * world.Get_rank()
    monkeypatch.setattr(clock.time, "monotonic", lambda: real() + ahead_s)


@pytest.mark.usefixtures("skewed")
@pytest.mark.parametrize("layout", [None, *LAYOUTS])
def test_all_clocks_tell_rank_0s_time(world: MPI.Intracomm, layout: str | None) -> None:
    grid = None
    if layout is not None:
        labels = layouts(world.Get_size()).get(layout, [0] * world.Get_size())
        grid = Grid.from_labels(labels)
    found = clock.estimate_offset(world, grid)
    assert abs(found.offset_s + SKEW_S * world.Get_rank()) < CLOSE_S
    assert (found.latency_s > 0) == (world.Get_size() > 1)
    assert world.allgather(found.latency_s) == [found.latency_s] * world.Get_size()
    assert 0 <= clock.run_together(world, found, lambda: None) < CLOSE_S


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rank_0_compares_with_coordinators_only(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    told: list[int] = []
    tell = clock._tell_time

    def telling(comm: MPI.Intracomm, peer: int, offset_s: float) -> None:
        told.append(peer)
        tell(comm, peer, offset_s)

    monkeypatch.setattr(clock, "_tell_time", telling)
    labels = layouts(world.Get_size()).get(layout, [0] * world.Get_size())
    grid = Grid.from_labels(labels)
    clock.estimate_offset(world, grid)
    coordinators = [cluster.coordinator for cluster in grid.clusters]
    rank = world.Get_rank()
    wanted = coordinators[1:] if rank == 0 else []
    if rank in coordinators:
        wanted += grid.clusters[coordinators.index(rank)].ranks[1:]
    assert told == wanted
