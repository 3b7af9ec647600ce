"""When ranks exchange what calls took, by call numbers; on a job of one rank."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mpi4py import MPI

from gridcoll.measure.learning import agreed
from gridcoll.measure.learning.agreed import (
    COMPARE_EVERY_S,
    FIRST_DEAF_CALLS,
    LATENCIES_PER_EXCHANGE,
    MOST_STAMPED,
    OVERHEAD_PART,
    WATCH_CALLS,
    Agreed,
    Alarm,
)
from gridcoll.measure.learning.learner import REGRET_BUDGET
from gridcoll.measure.learning.offsets import Offset


def test_the_first_clock_costs_what_a_trial_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanges teach nothing without one. They do not delay it, nor does it delay them."""
    # An exchange costs what is said here, however long it takes on a busy machine.
    monkeypatch.setattr(agreed, "time", SimpleNamespace(monotonic=lambda: 0.0))
    call_s, exchange_s = 0.07, 0.004
    calls = Agreed(MPI.COMM_SELF, latency_s=0.012)

    def call() -> bool:
        point = calls.end("call", calls.n_calls * call_s, (calls.n_calls + 1) * call_s)
        if point:
            calls.spend(exchange_s)
        return point is not None

    while not calls.is_clock_due:
        call()
    taken_s = calls.n_calls * call_s
    assert calls.clock_cost_s <= REGRET_BUDGET * taken_s <= 2 * calls.clock_cost_s
    calls.offset = Offset()
    while not call():
        assert calls.n_calls * call_s < taken_s + 2 * exchange_s / OVERHEAD_PART


def test_what_plans_of_trials_took_to_build_is_told_once() -> None:
    calls = Agreed(MPI.COMM_SELF, 1e-6, offset=Offset())
    found: list[float] = []
    calls.spend_building(2.0)
    calls.spend_building(1.0)
    while len(found) < 2:
        if point := calls.end("call", float(calls.n_calls), calls.n_calls + 1.0):
            found.append(point.built_s)
    assert found == [3.0, 0.0]


def test_a_clock_that_is_old_is_compared_again() -> None:
    """It is saved for, too: exchanges alone would use up all that they may cost."""
    call_s, exchange_s = 0.07, 0.004
    calls = Agreed(MPI.COMM_SELF, latency_s=0.012, offset=Offset())
    for _ in range(2):
        began_s = calls.n_calls * call_s
        while not calls.is_clock_due:
            if calls.end("call", calls.n_calls * call_s, (calls.n_calls + 1) * call_s):
                calls.spend(exchange_s)
            assert calls.n_calls * call_s < began_s + 2 * COMPARE_EVERY_S
        assert calls.n_calls * call_s > began_s + COMPARE_EVERY_S
        calls.offset = Offset()
        calls.spend(calls.clock_cost_s)


def test_calls_are_watched_while_exchanges_are_too_expensive() -> None:
    slow = False
    calls = Agreed(MPI.COMM_SELF, 1e-6, offset=Offset(), watch=lambda _: Alarm(slow=slow))

    def call() -> bool:
        return calls.end("call", float(calls.n_calls), calls.n_calls + 1.0) is not None

    while not call():
        pass
    calls.spend(100.0)
    while not call():
        pass
    assert not any(call() for _ in range(10 * WATCH_CALLS))
    slow, began = True, calls.n_calls
    while not call():
        assert calls.n_calls < began + 2 * WATCH_CALLS


@pytest.mark.parametrize("heeds", [False, True])
def test_alarms_that_come_to_nothing_become_rare(heeds: bool) -> None:
    """Of a program in which ranks are always late."""
    calls = Agreed(MPI.COMM_SELF, 1e-6, offset=Offset(), watch=lambda _: Alarm(slow=True))
    n_points = 0
    for _ in range(32 * FIRST_DEAF_CALLS):
        if calls.end("call", float(calls.n_calls), calls.n_calls + 1.0):
            n_points += 1
            calls.spend(0.0 if n_points > 2 else 100.0)
            if heeds:
                calls.heed()
    assert n_points > 25 if heeds else 4 < n_points < 10


def test_an_exchange_is_left_time_among_short_calls_too() -> None:
    """With a long call now and then, one short call would not be enough for it."""
    latency_s, short_s, long_s = 5e-3, 5e-3, 1.0
    calls, now_s = Agreed(MPI.COMM_SELF, latency_s, offset=Offset()), 0.0
    for _ in range(100):
        exit_s = now_s + (long_s if calls.n_calls % 4 == 3 else short_s)
        calls.end("call", now_s, exit_s)
        now_s = exit_s
    assert calls._lag() >= LATENCIES_PER_EXCHANGE * latency_s / short_s


def test_a_watch_sees_the_last_calls() -> None:
    """Those of the last exchange are not among them."""
    watched: list[list[object]] = []
    calls = Agreed(
        *(MPI.COMM_SELF, 1e-6),
        offset=Offset(),
        watch=lambda stamps: watched.append([each.tag for each in stamps]) or Alarm(),
    )
    for number in range(200):
        if calls.end(number, float(number), number + 1.0):
            calls.spend(100.0)
    assert watched
    assert all(tags == list(range(tags[0], tags[0] + len(tags))) for tags in watched)
    assert {len(tags) for tags in watched[1:]} == {WATCH_CALLS}


def test_times_before_there_was_a_clock_are_none_of_it() -> None:
    """A host that is up for long has a monotonic clock far ahead of the common one."""
    ahead_s, call_s = 1e6, 0.07
    calls = Agreed(MPI.COMM_SELF, latency_s=0.012)

    def call() -> None:
        began_s = ahead_s + calls.n_calls * call_s
        calls.end("call", began_s, began_s + call_s)

    while not calls.is_clock_due:
        call()
    calls.offset = Offset(-ahead_s)
    n_calls = calls.n_calls
    while not calls.is_clock_due:
        call()
        assert (calls.n_calls - n_calls) * call_s < 2 * COMPARE_EVERY_S


def test_trials_are_seen_however_many_calls_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, and with when the call before each of them ended."""
    monkeypatch.setattr(agreed, "FIRST_CALLS", 1000)
    calls = Agreed(MPI.COMM_SELF, 1e-6, offset=Offset(), begins=lambda _: False)
    trials = {3: "first trial", 600: "second trial"}
    seen = None
    while seen is None:
        now_s = float(calls.n_calls)
        tag = trials.get(calls.n_calls, "call")
        point = calls.end(tag, now_s + 0.25, now_s + 1.0, is_trial=tag != "call")
        seen = point and point.seen
    found = {each.tag: each.ended_s for each in seen}
    assert {tag: found.get(tag) for tag in trials.values()} == {
        tag: number + 1.0 for number, tag in trials.items()
    }
    ends = [each.ended_s for each in seen]
    assert ends == sorted(ends)
    assert all(each.whole_s == 1.0 for each in seen if each.tag)
    assert len(seen) <= MOST_STAMPED + 2 * len(trials) + 1
