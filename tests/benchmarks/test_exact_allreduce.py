"""The exact optimum of an allreduce in time slots, where the solver is there."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.mark.parametrize(
    ("sites", "paces", "latency", "slots"),
    [([1, 1], [1, 1], 2, 4), ([1, 1], [1, 2], 1, 5), ([2], [1], 5, 2)],
)
def test_two_hosts_exchange_all_they_have(
    sites: list[int], paces: list[int], latency: int, slots: int, script: Script
) -> None:
    """Two segments each way pass the slower interface, then the latency."""
    pytest.importorskip("highspy")
    exact = script("exact_allreduce")
    assert exact.allreduce_program(sites, paces, 2, latency, slots).solvable(60.0) is True
    assert exact.allreduce_program(sites, paces, 2, latency, slots - 1).solvable(60.0) is False


def test_three_hosts_cannot_end_at_the_limit(script: Script) -> None:
    """Two and one, a slot apart: limit 3 slots; four are needed."""
    pytest.importorskip("highspy")
    exact = script("exact_allreduce")
    assert exact.allreduce_program([2, 1], [1, 1], 2, 1, 3).solvable(60.0) is False
    assert exact.allreduce_program([2, 1], [1, 1], 2, 1, 4).solvable(60.0) is True


def test_the_grid_is_that_of_the_program(script: Script) -> None:
    """A segment takes a slot for each step of a site's pace."""
    exact = script("exact_allreduce")
    spec = exact.spec_of([2, 1], [1, 4], 3)
    per_slot = spec.nic_bytes_per_s * exact.SLOT_S / exact.SEGMENT_BYTES
    assert per_slot.tolist() == pytest.approx([1.0, 0.25])
    assert spec.latency_s[0, 1] == pytest.approx(3 * exact.SLOT_S)
