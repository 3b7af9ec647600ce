"""One clock for all ranks, whatever their own ones say."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from gridcoll.measure import clock
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
    grid = Grid.from_labels(layouts(world.Get_size())[layout]) if layout else None
    found = clock.find_clock(world, grid)
    assert abs(found.offset_s + SKEW_S * world.Get_rank()) < CLOSE_S
    assert found.slack_s > 0
    assert world.allgather(found.slack_s) == [found.slack_s] * world.Get_size()
    assert 0 <= clock.run_together(found, lambda: None) < CLOSE_S


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_latest_of_all(world: MPI.Intracomm, layout: str) -> None:
    size = world.Get_size()
    found = clock.find_clock(world, Grid.from_labels(layouts(size)[layout]))
    for last in range(size):
        value = (world.Get_rank() - last) % size
        assert found.latest(-float(value)) == 0.0


class FakeTime:
    """A clock that only sleeping and `step` move; when steps began."""

    def __init__(self, world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 10.0
        self.began_s: list[float] = []
        self._rank = world.Get_rank()
        monkeypatch.setattr(clock.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(clock.time, "sleep", self._sleep)

    def step(self) -> None:
        """Takes a second on rank 0, one more on every following one."""
        self.began_s.append(self.now_s)
        self.now_s += 1.0 + self._rank

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds + 1e-4


def test_all_begin_after_the_last_has_come(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the time that the last one takes is everybody's."""
    found = clock.find_clock(world)
    fake = FakeTime(world, monkeypatch)
    fake.now_s += world.Get_rank()
    took_s = clock.run_together(clock.CommonClock(0.0, 0.5, found.latest), fake.step)
    assert fake.began_s[0] == pytest.approx(10.0 + world.Get_size() - 1 + 0.5, abs=1e-3)
    assert took_s == pytest.approx(world.Get_size(), abs=1e-3)


def test_the_next_begins_when_all_know_that_the_last_has_ended(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks that are done sooner wait as well, and nobody asks again."""
    asked: list[float] = []

    def latest(value: float) -> float:
        asked.append(value)
        return found.latest(value)

    found = clock.find_clock(world)
    fake = FakeTime(world, monkeypatch)
    series = clock.Series(clock.CommonClock(0.0, 0.5, latest))
    longest_s = world.Get_size()
    for _ in range(3):
        assert series.run(fake.step) == pytest.approx(longest_s, abs=1e-3)
    wanted = [10.5 + k * (longest_s + 0.5) for k in range(3)]
    assert fake.began_s == pytest.approx(wanted, abs=1e-2)
    assert series.began_s == pytest.approx(10.5)
    assert series.ended_s == pytest.approx(wanted[-1] + longest_s, abs=1e-2)
    assert len(asked) == 1 + 3


def test_after_a_barrier_time_counts_from_the_last_entry(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, size = clock.find_clock(world), world.Get_size()
    fake = FakeTime(world, monkeypatch)

    def barrier() -> None:
        fake.now_s += 0.25 * world.Get_rank()

    series = clock.Series(clock.CommonClock(0.0, 0.5, found.latest), barrier)
    assert series.run(fake.step) == pytest.approx(size, abs=1e-3)
    assert series.ended_s == pytest.approx(10.5 + 0.25 * (size - 1) + size, abs=1e-2)


@pytest.mark.parametrize(("latency_s", "wait_s"), [(1.0, 0.5), (0.1, 5.0)])
def test_the_slack_is_what_was_seen_and_no_more_than_can_be(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, latency_s: float, wait_s: float
) -> None:
    """A busy moment of the machine does not count as latency."""
    monkeypatch.setattr(clock, "_longest_wait", lambda _clock, _n: wait_s)
    monkeypatch.setattr(clock, "ask_time", lambda _comm, _peer, _n: (latency_s, 0.0))
    monkeypatch.setattr(clock, "tell_time", lambda *_args: None)
    slack_s = clock.find_clock(world).slack_s
    if world.Get_size() > 1:
        assert slack_s == pytest.approx(min(1.5 * wait_s, 3 * latency_s), rel=0.05)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_rank_0_compares_with_coordinators_only(
    world: MPI.Intracomm, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    told: list[int] = []
    tell = clock.tell_time

    def telling(comm: MPI.Intracomm, peer: int, offset_s: float, n_samples: int) -> None:
        told.append(peer)
        tell(comm, peer, offset_s, n_samples)

    monkeypatch.setattr(clock, "tell_time", telling)
    grid = Grid.from_labels(layouts(world.Get_size())[layout])
    clock.find_clock(world, grid)
    coordinators = [cluster.coordinator for cluster in grid.clusters]
    rank = world.Get_rank()
    wanted = coordinators[1:] if rank == 0 else []
    if rank in coordinators:
        wanted += grid.clusters[coordinators.index(rank)].ranks[1:]
    assert told == wanted
