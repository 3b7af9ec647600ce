"""Waiting is polite. Clocks are replaced, so that a busy machine changes nothing."""

from __future__ import annotations

import pytest

from gridcoll.engine import waiting
from gridcoll.engine.waiting import FIRST_PAUSE_S, LONGEST_PAUSE_S, SPIN_S, Hold, PoliteWait


class Clock:
    """Time that passes only when somebody yields (1 us) or sleeps."""

    def __init__(self) -> None:
        self.now_s = 1.0
        self.n_yields = 0
        self.slept_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def sched_yield(self) -> None:
        self.n_yields += 1
        self.now_s += 1e-6

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    monkeypatch.setattr(waiting, "os", clock)
    return clock


def test_spins_first_then_sleeps_longer_and_longer(clock: Clock) -> None:
    wait = PoliteWait()
    for _ in range(1000):
        wait()
    assert clock.n_yields == pytest.approx(SPIN_S / 1e-6, abs=2)
    assert clock.slept_s[0] == FIRST_PAUSE_S
    assert clock.slept_s == sorted(clock.slept_s)
    assert clock.slept_s[-1] == LONGEST_PAUSE_S


def test_a_wide_area_latency_is_mostly_slept(clock: Clock) -> None:
    """Law 6: of 12 ms, all but the spin goes to others, in a few hundred polls."""
    wait = PoliteWait()
    while clock.now_s < 1.012:
        wait()
    assert sum(clock.slept_s) > 0.99 * 12e-3
    assert len(clock.slept_s) < 400


def test_reset_spins_again(clock: Clock) -> None:
    wait = PoliteWait()
    for _ in range(200):
        wait()
    n_yields, n_sleeps = clock.n_yields, len(clock.slept_s)
    wait.reset()
    wait()
    assert (clock.n_yields, len(clock.slept_s)) == (n_yields + 1, n_sleeps)
    for _ in range(100):
        wait()
    assert clock.slept_s[n_sleeps] == FIRST_PAUSE_S


def test_the_spin_can_be_left_out(clock: Clock) -> None:
    wait = PoliteWait(spin_s=0.0)
    for _ in range(5):
        wait()
    assert clock.n_yields == 0
    assert clock.slept_s == [FIRST_PAUSE_S] * 5


@pytest.mark.parametrize("n_polls", [1, 8])
def test_wait_politely_polls_until_true_as_often_between_pauses_as_the_mpi_needs(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, n_polls: int
) -> None:
    monkeypatch.setattr(waiting, "polls_at_once", lambda: n_polls)
    answers = iter([False] * 17 + [True])
    waiting.wait_politely(lambda: next(answers))
    assert clock.n_yields == 17 // n_polls
    assert next(answers, None) is None


def interrupted(clock: Clock, *at: int) -> None:
    """From now on, these sleeps (the first is 1) are interrupted."""
    plain = clock.sleep

    def sleep(seconds: float) -> None:
        plain(seconds)
        if len(clock.slept_s) in at:
            raise KeyboardInterrupt

    clock.sleep = sleep  # type: ignore[method-assign]


def test_an_interrupt_waits_for_the_end(clock: Clock) -> None:
    """What is under way would reach into buffers that are no more."""
    interrupted(clock, 2)
    polls = iter([False] * 200 + [True])
    with pytest.raises(KeyboardInterrupt):
        waiting.wait_politely(lambda: next(polls))
    assert next(polls, None) is None


def test_a_second_interrupt_gets_through_and_buffers_are_kept(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned: list[object] = []
    monkeypatch.setattr(Hold, "abandoned", abandoned)
    interrupted(clock, 2, 5)
    buffers = [bytearray(3)]
    with pytest.raises(KeyboardInterrupt):
        waiting.wait_politely(lambda: False, kept=buffers)
    assert len(clock.slept_s) == 5
    [(_, kept)] = abandoned
    assert kept is buffers
