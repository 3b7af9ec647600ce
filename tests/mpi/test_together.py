"""Flows that are measured together run together."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.engine.transport import MPITransport
from gridcoll.measure import flows as together
from gridcoll.measure.flows import N_MESSAGES, measure_aggregate_bandwidth
from gridcoll.measure.learning.links import look_at_links
from gridcoll.model import linear_plogp
from gridcoll.topology import Grid
from tests.mpi.support import layouts
from tests.plan.grids import model_of

pytestmark = pytest.mark.mpi(min_size=4)


@pytest.mark.parametrize("layout", ["two", "interleaved", "three"])
def test_none_is_measured_before_all_windows_are_open(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """The rates of flows that follow one another would add up to more than the link has."""
    opened_s, measured_s = [0.0], [np.inf]
    stream = together._stream

    def late(comm: MPI.Intracomm, flows: Any, n_messages: int) -> float:
        if n_messages == N_MESSAGES:
            measured_s.append(time.monotonic())
            return stream(comm, flows, n_messages)
        if min(flows.peers) == 0 or world.Get_rank() == 0:  # both ends of one flow
            time.sleep(0.1)
        took_s = stream(comm, flows, n_messages)
        opened_s.append(time.monotonic())
        return took_s

    monkeypatch.setattr(together, "_stream", late)
    monkeypatch.setattr(together, "WORTHWHILE_GAIN", np.inf)
    monkeypatch.setattr(together, "rounds_of_pairs", lambda n: [[(0, 1)]])
    labels = layouts(world.Get_size())[layout]
    grid = Grid.from_labels(labels)
    n = len(grid.clusters)
    rates = measure_aggregate_bandwidth(world, grid, np.ones((n, n)))
    assert rates[0][1] == rates[1][0] > 1
    # Both runs count: each opens its windows first.
    firsts = world.allgather((sorted(opened_s)[1:2], sorted(measured_s)[:1]))
    opened = [each for each, _ in firsts if each]
    ends = together._lane_ends(grid, 0, 1, together.FIRST_LANES)
    assert len(opened) == len({rank for end in ends for rank in end})
    assert max(opened)[0] <= min(each for _, each in firsts)[0]


@pytest.mark.parametrize("layout", ["two", "interleaved", "three"])
def test_a_quick_look_starts_flows_together(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """One that starts when others end is faster than its part of the link."""
    begun_s: list[float] = []
    ready_s: list[float] = []
    stream = together._stream

    def noted(comm: MPI.Intracomm, flows: Any, n_messages: int) -> float:
        begun_s.append(time.monotonic())
        took_s = stream(comm, flows, n_messages)
        if flows.active and world.Get_rank() == 0:
            time.sleep(0.1)  # it comes late to the next run
        ready_s.append(time.monotonic())
        return took_s

    monkeypatch.setattr(together, "_stream", noted)
    monkeypatch.setattr(together, "WORTHWHILE_GAIN", 0.0)  # only the budget ends the runs
    monkeypatch.setattr(together, "rounds_of_pairs", lambda n: [[(0, 1)]])
    grid = Grid.from_labels(layouts(world.Get_size())[layout])
    n = len(grid.clusters)
    together.quick_aggregate_bandwidth(world, grid, np.ones((n, n)), np.zeros((n, n)))
    every = world.allgather(
        (begun_s, ready_s) if world.Get_rank() in grid.clusters[0].ranks else ()
    )
    senders = [each for each in every if each and each[0]]
    assert len(senders) == len(set(together._lane_ends(grid, 0, 1, together.FIRST_LANES)[0]))
    for run in (1, 2):
        assert min(begun[run] for begun, _ in senders) >= max(was[run - 1] for _, was in senders)


@pytest.mark.parametrize("layout", ["two", "interleaved"])
def test_a_look_at_what_seems_a_thin_link_starts_several_flows(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """Over our own messages, so that the application's are never touched."""
    sent: list[tuple[int, ...]] = []
    stream = together._stream

    def noted(comm: MPI.Intracomm, flows: Any, n_messages: int) -> float:
        assert not isinstance(comm, MPI.Comm)
        sent.append(flows.peers)
        return stream(comm, flows, n_messages)

    monkeypatch.setattr(together, "_stream", noted)
    n = world.Get_size()
    labels = layouts(n)[layout]
    model = model_of(labels, together=1e15)
    monkeypatch.setattr("gridcoll.measure.learning.links._gap_s", lambda *_: (1.0, False))
    fast = linear_plogp(1e3, 1e9)  # so all links seem to be thin, and none is longer
    links = tuple(tuple(fast for _ in range(model.n_clusters)) for _ in range(model.n_clusters))
    own = world.Dup()
    found = look_at_links(world, MPITransport(own), replace(model, links=links), [(0, 1)])
    own.Free()
    assert all(each == found for each in world.allgather(found))
    assert found.keys() == {(0, 1), (1, 0)}
    assert all(each.together_bytes_per_s > 0 for each in found.values())
    grid, rank = model.grid, world.Get_rank()
    ends = together._lane_ends(grid, 0, 1, together.FIRST_LANES)
    assert bool(sent) == any(rank in end for end in ends)
    others = {grid.cluster_of[peer] for peers in sent for peer in peers}
    assert others <= {1 - grid.cluster_of[rank]}
