"""The accounting, on times small enough to add up by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.schedule import Accounting, Instance, make_schedule, time_transfers, timeline

LATENCY = np.array([[0, 1, 2], [3, 0, 4], [5, 6, 0]], dtype=float)
GAP = np.array([[0, 10, 20], [30, 0, 40], [50, 60, 0]], dtype=float)
INTERNAL = np.array([100, 7, 8], dtype=float)
FLAT = [(0, 1), (0, 2)]
CHAIN = [(0, 1), (1, 2)]


def clock(transfers, **options):
    return time_transfers(transfers, Instance(LATENCY, GAP, INTERNAL, 0, Accounting(**options)))


def test_a_sender_is_busy_for_the_gap() -> None:
    found = clock(FLAT)
    assert found.start_s == (0, 10)
    assert found.arrival_s == (0, 11, 32)
    assert found.free_s == (30, 11, 32)
    assert found.end_s == (130, 18, 40)  # the root's broadcast waits for its last gap
    assert found.makespan_s == 130


def test_a_receiver_relays_from_its_arrival() -> None:
    found = clock(CHAIN)
    assert found.start_s == (0, 11)
    assert found.arrival_s == (0, 11, 55)
    assert found.end_s == (110, 58, 63)


def test_busy_for_gap_and_latency() -> None:
    assert clock(FLAT, busy="gap+latency").start_s == (0, 11)
    assert clock(FLAT, busy="gap+latency").end_s == (133, 18, 41)


def test_internal_from_arrival() -> None:
    assert clock(CHAIN, internal="from-arrival").end_s == (100, 18, 63)


def test_one_cluster_only_broadcasts_inside() -> None:
    instance = Instance(np.zeros((1, 1)), np.zeros((1, 1)), np.array([5.0]))
    assert make_schedule([], instance).makespan_s == 5


def test_the_schedule_has_the_timelines_makespan() -> None:
    instance = Instance(LATENCY, GAP, INTERNAL)
    schedule = make_schedule(CHAIN, instance)
    assert timeline(schedule, instance).makespan_s == schedule.makespan_s == 110


@pytest.mark.parametrize("transfers", [[(1, 2), (0, 1)], [(0, 1)]])
def test_transfers_that_are_no_broadcast(transfers) -> None:
    with pytest.raises(UsageError):
        clock(transfers)
