"""Discovery of several hosts, on one machine: latencies or the grid are given, the rest runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import pytest
from mpi4py import MPI
from msgspec.structs import replace

from gridcoll.measure import clusters as grouping
from gridcoll.measure import discover as measuring
from gridcoll.measure import engine_cost, natives, probe, tuner
from gridcoll.measure.clusters import find_groups
from gridcoll.measure.discover import discover, stage_names
from gridcoll.measure.natives import CALLS
from gridcoll.measure.probe import Channel
from gridcoll.measure.trials import RUNS
from gridcoll.model import GridModel, digest
from gridcoll.topology import Grid
from tests.mpi.support import count_calls, layouts

pytestmark = [pytest.mark.mpi(min_size=3), pytest.mark.long]

NEAR_S, FAR_S = 20e-6, 500e-6


class Latencies:
    """Instead of measuring: near where labels are equal, else far.

    Medians are 5 % longer, of ``busy`` links ``times`` as long.
    """

    def __init__(self, world: MPI.Intracomm, labels: Sequence[int]) -> None:
        self.busy: list[set[int]] = []
        self.times = 1.05
        self.n_measured = 0
        self._rank, self._labels = world.Get_rank(), labels

    def measure(self, channel: Channel) -> tuple[float, float]:
        """As `probe.measure_latency`, without a message."""
        if not channel.active:
            return 0.0, 0.0
        self.n_measured += 1
        near = self._labels[self._rank] == self._labels[channel.peer]
        shortest_s = NEAR_S if near else FAR_S
        is_busy = {self._rank, channel.peer} in self.busy
        return shortest_s, shortest_s * (self.times if is_busy else 1.05)


Given = tuple[Latencies, list[int]]


@pytest.fixture(params=["one cluster", "two", "interleaved", "lonely root"])
def given(
    request: pytest.FixtureRequest, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> Given:
    """Latencies of some layout, and the label of each rank."""
    labels = {**layouts(world.Get_size()), "lonely root": [0] + [1] * (world.Get_size() - 1)}
    latencies = Latencies(world, labels[request.param])
    monkeypatch.setattr(grouping, "measure_latency", latencies.measure)
    return latencies, labels[request.param]


def are_found(world: MPI.Intracomm, labels: Sequence[int]) -> bool:
    """Whether groups are those of equal labels; the same on all ranks."""
    ranks = range(len(labels))
    found = find_groups(world, ranks, 0.3)
    assert world.allgather(found) == [found] * len(labels)
    return found == sorted([r for r in ranks if labels[r] == site] for site in set(labels))


def test_hosts_that_are_near_are_one_group(world: MPI.Intracomm, given: Given) -> None:
    latencies, labels = given
    assert are_found(world, labels)
    n_pairs = len(labels) * (len(labels) - 1) // 2
    assert world.allreduce(latencies.n_measured) >= grouping.N_PASSES * n_pairs


@pytest.mark.parametrize("times", [1.2, 2.1, 5.0])
def test_a_busy_link_changes_nothing(world: MPI.Intracomm, given: Given, times: float) -> None:
    latencies, labels = given
    latencies.times = times
    for link in combinations(range(len(labels)), 2):
        latencies.busy = [set(link)]
        assert are_found(world, labels)


@pytest.mark.parametrize("times", [1.2, 2.1, 5.0])
def test_a_busy_host_changes_nothing(world: MPI.Intracomm, given: Given, times: float) -> None:
    """One that has others near it: how far away a busy one is on its own, nobody can tell."""
    latencies, labels = given
    latencies.times = times
    for host in (rank for rank, label in enumerate(labels) if labels.count(label) > 1):
        latencies.busy = [{host, other} for other in range(len(labels)) if other != host]
        assert are_found(world, labels)


SIZES = (8, 1 << 13)


@pytest.fixture
def quick(world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> Grid:
    """Two clusters of hosts are found, whatever is there; few and small messages."""
    grid = Grid.from_labels(layouts(world.Get_size())["two"])
    monkeypatch.setattr(measuring, "find_grid", lambda *_args: grid)
    monkeypatch.setattr(probe, "FIRST_SIZES", (0, 1 << 14))
    monkeypatch.setattr(engine_cost, "RELAY_SIZES", (1 << 10, 1 << 12))
    monkeypatch.setattr(measuring, "NATIVE_SIZES", SIZES)
    monkeypatch.setattr(tuner, "TRIAL_SIZES", dict.fromkeys(RUNS, SIZES))
    monkeypatch.setattr(tuner, "LONG_S", 0.0)
    for name in ("LONG_RUNS_S", "ENOUGH_S"):
        monkeypatch.setattr(natives, name, 0.0)
    return grid


def check_measured(world: MPI.Intracomm, grid: Grid, model: GridModel) -> None:
    """What discovery finds of several hosts, natives and plans aside."""
    assert len(set(world.allgather(digest(model)))) == 1
    assert model.grid == grid
    assert (model.origin, model.tolerance) == ("measured", 0.4)
    assert model.mpi == MPI.get_vendor()[0]
    assert model.relay_gap is not None
    assert model.relay_gap.sizes_bytes == (1 << 10, 1 << 12)
    assert model.aggregate_bytes_per_s[0][1] > 1
    assert model.aggregate_bytes_per_s[1][0] > 1
    assert model.start_s >= 0
    assert model.contention


def test_several_hosts_are_measured_to_the_end(
    world: MPI.Intracomm, quick: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[tuple[object, ...]] = []
    tune = tuner.tune

    def playing(*args: object) -> GridModel:
        learned = tune(*args)  # type: ignore[arg-type]
        played.append((*args, learned))
        return learned

    monkeypatch.setattr(measuring, "tune", playing)
    model = discover(world, 0.4)
    check_measured(world, quick, model)
    assert set(model.native) == set(model.native_variants) == set(CALLS)
    assert model.native["bcast"].sizes_bytes == SIZES
    assert set(model.corrections) == set(RUNS)
    assert [collective for _, _, _, collective, _ in played] == list(RUNS)
    for name, (_, before, _, _, learned) in zip(RUNS, played, strict=True):
        assert isinstance(before, GridModel)
        assert isinstance(learned, GridModel)
        assert learned == replace(
            before,
            native=learned.native,
            native_variants=learned.native_variants,
            corrections=learned.corrections,
        )
        assert set(before.native_runs[name]["native"]) == set(before.native[name].sizes_bytes)
        assert model.native[name] == learned.native[name]
    assert model.native_priors == ()
    assert list(model.stages) == stage_names()


def test_only_what_is_asked_for(
    world: MPI.Intracomm, quick: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of natives those of some collectives, or none; then plans compete alone."""
    played = count_calls(monkeypatch, measuring, "tune")
    model = discover(world, 0.4, collectives=("bcast", "gather"))
    check_measured(world, quick, model)
    assert set(model.native) - set(model.native_priors) == {"bcast", "gather"}
    assert list(model.stages) == stage_names(collectives=("bcast", "gather"))
    assert set(model.corrections) == {"bcast"}
    assert len(played) == 1
    model = discover(world, 0.4, collectives=("bcast",), native=False)
    check_measured(world, quick, model)
    assert (model.native, model.native_variants) == ({}, {})
    assert set(model.corrections) == {"bcast"}
    assert len(played) == 2


@pytest.mark.parametrize("both_directions", [False, True])
def test_directions_are_alike_or_both_are_measured(
    world: MPI.Intracomm, quick: Grid, monkeypatch: pytest.MonkeyPatch, both_directions: bool
) -> None:
    together = count_calls(monkeypatch, measuring, "measure_aggregate_bandwidth")
    model = discover(world, 0.4, both_directions=both_directions, native=False, collectives=())
    check_measured(world, quick, model)
    assert (model.link(0, 1) == model.link(1, 0)) == (not both_directions)
    rates = model.aggregate_bytes_per_s
    assert (rates[0][1] == rates[1][0]) == (not both_directions)
    assert [args[-1] for args in together] == [both_directions]
