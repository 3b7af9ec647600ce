"""A model in seconds, on one machine: the grid or the latencies are given, the rest runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import pytest
from mpi4py import MPI

from gridcoll.measure import engine_cost, landmarks, pairs
from gridcoll.measure import quick as measuring
from gridcoll.measure.landmarks import find_groups_by_landmarks
from gridcoll.measure.natives import CALLS
from gridcoll.measure.pairs import End, measure_pairs
from gridcoll.measure.probe import Channel
from gridcoll.measure.quick import quick_model
from gridcoll.measure.uplinks import measure_uplinks
from gridcoll.model import GridModel, digest, linear_plogp
from gridcoll.topology import Grid
from tests.mpi.support import layouts

pytestmark = pytest.mark.mpi(min_size=3, max_size=4)


@pytest.fixture
def grid(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> Grid:
    """Two clusters of hosts, and little to measure between them."""
    grid = Grid.from_labels(layouts(world.Get_size())["two"])
    monkeypatch.setattr(measuring, "find_grid", lambda *_args: grid)
    monkeypatch.setattr(pairs, "BASE_SIZES", (0, 1 << 10, 1 << 12, 1 << 13))
    monkeypatch.setattr(pairs, "LARGEST_BYTES", 1 << 13)
    monkeypatch.setattr(measuring, "RELAY_SIZES", (1 << 10, 1 << 12))
    return grid


def test_pairs_are_the_same_on_all_ranks(world: MPI.Intracomm, grid: Grid) -> None:
    wanted = [(0, 0), (0, 1), (0, 1), (1, 1)]
    found = measure_pairs(world, grid, wanted)
    assert world.allgather(found) == [found] * world.Get_size()
    inside = {(c, c) for c in (0, 1) if len(grid.clusters[c]) > 1}
    assert set(found) == inside | {(0, 1)}
    for link in found.values():
        assert link.latency_s > 0
        assert min(link.gap_s) > 0


@pytest.mark.parametrize(("rate", "is_found"), [(1.0, False), (3e10, True)])
def test_an_uplink_is_what_links_together_do_not_carry(
    world: MPI.Intracomm, rate: float, is_found: bool
) -> None:
    """Every rank sends what it should, and all know the same: whatever links are said to carry.

    Of a cluster of two hosts, with four ranks; of lone hosts what they carry is always known.
    """
    n = world.Get_size()
    links = linear_plogp(1e-4, rate)
    n_clusters = range(3)
    model = GridModel(
        Grid.from_labels([max(rank - n + 3, 0) for rank in range(n)]),
        tuple(tuple(links for _ in n_clusters) for _ in n_clusters),
        "measured",
        aggregate_bytes_per_s=tuple(tuple(rate for _ in n_clusters) for _ in n_clusters),
    )
    found = measure_uplinks(world, model, n_messages=4)
    assert world.allgather(found) == [found] * n
    assert [each > 0 for each in found] == [is_found or n < 4, True, True]


def test_no_pairs_at_all(world: MPI.Intracomm, grid: Grid) -> None:
    assert measure_pairs(world, grid, []) == {}


@pytest.mark.mpi(min_size=4)
def test_pairs_do_not_wait_for_a_slow_link_between_others(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pair is not done before the second one, of a later round, has begun."""
    monkeypatch.setattr(pairs, "disjoint_rounds", lambda wanted: [[pair] for pair in wanted])
    grid = Grid.from_labels(range(world.Get_size()))
    word = bytearray(1)

    def measure(channel: Channel) -> bool | None:
        if channel.peer == 3:
            world.Send([word, MPI.BYTE], 0, 99)
        elif channel.peer == 1:
            end_s = time.monotonic() + 10
            while not (has_begun := world.Iprobe(2, 99)) and time.monotonic() < end_s:
                os.sched_yield()
            return has_begun
        return None

    found = pairs.measure_between(world, grid, [(0, 1), (2, 3)], measure)
    if world.Get_rank() == 0:
        world.Recv([word, MPI.BYTE], 2, 99)
    assert found[0, 1], "it waited in vain"


def test_a_link_carries_no_more_than_its_budget(
    world: MPI.Intracomm, grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted where messages are sent."""
    sent = [0]
    train, exchange = Channel.train, Channel.exchange

    def counting_train(channel: Channel, n_bytes: int, n_messages: int) -> tuple[float, float]:
        sent[0] += n_bytes * n_messages * channel.active
        return train(channel, n_bytes, n_messages)

    def counting_exchange(channel: Channel, n_bytes: int) -> tuple[float, float, float]:
        sent[0] += n_bytes * channel.active
        return exchange(channel, n_bytes)

    monkeypatch.setattr(Channel, "train", counting_train)
    monkeypatch.setattr(Channel, "exchange", counting_exchange)
    measure_pairs(world, grid, [(0, 1)], budget_bytes=1 << 18)
    assert 0 < world.allreduce(sent[0]) <= 1 << 18


def test_a_quick_model(world: MPI.Intracomm, grid: Grid) -> None:
    """Of everything that a choice rests on something; natives are estimated, and it says so."""
    told: list[tuple[str, int, int]] = []
    model = quick_model(world, 0.4, lambda *step: told.append(step), "here")
    assert len(set(world.allgather(digest(model)))) == 1
    assert model.grid == grid
    assert (model.origin, model.tolerance, model.mpi) == ("measured", 0.4, MPI.get_vendor()[0])
    assert model.aggregate_bytes_per_s[0][1] == model.aggregate_bytes_per_s[1][0] > 1
    assert model.relay_gap is not None
    assert model.relay_gap.sizes_bytes == (1 << 10, 1 << 12)
    assert min(model.relay_gap.seconds) > 0
    assert set(model.native) == set(model.native_priors) == set(CALLS)
    assert (model.native_variants, model.corrections, model.stages) == ({}, {}, ())
    assert told[-1][1] == told[-1][2]
    assert engine_cost.RELAY_SIZES != measuring.RELAY_SIZES  # discovery's are its own


def test_one_host_is_left_to_the_library(world: MPI.Intracomm) -> None:
    model = quick_model(world, 0.3)
    assert len(model.grid.clusters) == 1
    assert model.native == {}


@pytest.mark.parametrize("name", ["one cluster", "two", "interleaved", "lonely root"])
def test_groups_by_landmarks(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    n = world.Get_size()
    labels: Sequence[int] = {**layouts(n), "lonely root": [0] + [1] * (n - 1)}[name]
    rank = world.Get_rank()

    def quick_latency(channel: End) -> tuple[float, float]:
        if not channel.active:
            return 0.0, 0.0
        assert isinstance(channel, Channel)
        seconds = 50e-6 if labels[rank] == labels[channel.peer] else 5e-3
        return seconds, seconds

    def concurrent_latencies(
        comm: MPI.Intracomm, asked: Sequence[int], asking: Sequence[int]
    ) -> dict[int, tuple[float, float]]:
        assert comm.Get_size() == n
        return dict.fromkeys([*asked, *asking], (1e-3, 1e-3))  # near, and that is looked at again

    monkeypatch.setattr(landmarks, "concurrent_latencies", concurrent_latencies)
    monkeypatch.setattr(landmarks, "quick_latency", quick_latency)
    found = find_groups_by_landmarks(world, range(n), 0.3)
    assert world.allgather(found) == [found] * n
    assert found == sorted([r for r in range(n) if labels[r] == site] for site in set(labels))


def test_far_hosts_are_not_looked_at_again(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What trips with all peers together say of far ones counts; both ends know."""
    n, rank = world.Get_size(), world.Get_rank()
    again: list[int] = []

    def concurrent_latencies(
        _comm: MPI.Intracomm, asked: Sequence[int], asking: Sequence[int]
    ) -> dict[int, tuple[float, float]]:
        far = {peer: 5e-3 if 0 in (peer, rank) else 50e-6 for peer in [*asked, *asking]}
        return {peer: (seconds, seconds) for peer, seconds in far.items()}

    def quick_latency(channel: Channel) -> tuple[float, float]:
        again.append(channel.peer)
        return (50e-6, 50e-6) if channel.active else (0.0, 0.0)

    monkeypatch.setattr(landmarks, "concurrent_latencies", concurrent_latencies)
    monkeypatch.setattr(landmarks, "quick_latency", quick_latency)
    assert find_groups_by_landmarks(world, range(n), 0.3) == [[0], list(range(1, n))]
    assert set(again) == ({*range(1, n)} - {rank} if rank else set())


def test_hosts_that_seem_far_and_answer_unevenly_are_looked_at_again(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may only be busy: dozens of emulated hosts on two processors answer late."""
    n, rank = world.Get_size(), world.Get_rank()
    again: list[int] = []

    def concurrent_latencies(
        _comm: MPI.Intracomm, asked: Sequence[int], asking: Sequence[int]
    ) -> dict[int, tuple[float, float]]:
        far = {peer: 5e-3 if 0 in (peer, rank) else 50e-6 for peer in [*asked, *asking]}
        return {peer: (seconds, 1.5 * seconds) for peer, seconds in far.items()}

    def quick_latency(channel: Channel) -> tuple[float, float]:
        again.append(channel.peer)
        return (50e-6, 50e-6) if channel.active else (0.0, 0.0)

    monkeypatch.setattr(landmarks, "concurrent_latencies", concurrent_latencies)
    monkeypatch.setattr(landmarks, "quick_latency", quick_latency)
    assert find_groups_by_landmarks(world, range(n), 0.3) == [list(range(n))]
    assert set(again) == set(range(n)) - {rank}


def test_trips_with_all_together(world: MPI.Intracomm) -> None:
    """Both ends have the same of every pair; nothing is left under way."""
    n, rank = world.Get_size(), world.Get_rank()
    comm = world.Dup()
    try:
        for _ in range(2):
            found = landmarks.concurrent_latencies(comm, range(rank + 1, n), range(rank))
            assert set(found) == {*range(n)} - {rank}
            for other, theirs in enumerate(comm.allgather(found)):
                assert other == rank or theirs[rank] == found[other]
            assert all(0 < shortest <= typical for shortest, typical in found.values())
        assert landmarks.concurrent_latencies(comm, [], []) == {}
        assert not comm.Iprobe()
    finally:
        comm.Free()


def test_half_a_train(world: MPI.Intracomm) -> None:
    """The active end knows when half of the messages were there, and all."""
    rank = world.Get_rank()
    if rank < 2:
        channel = Channel(world, 1 - rank, rank == 0)
        for n_bytes, n_messages in ((0, 2), (1 << 12, 40), (1 << 16, 16)):
            half_s, took_s = channel.train(n_bytes, n_messages)
            assert (0 < half_s <= took_s) if rank == 0 else (half_s, took_s) == (0, 0)
