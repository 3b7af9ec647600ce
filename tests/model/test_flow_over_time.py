"""When a message is there over all ways at once, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from gridcoll.model.bounds import limit_s
from gridcoll.model.flow_over_time import over_all_paths_s
from tests.model.wires import wires

MESSAGE = 100_000


def test_a_thin_short_way_and_a_wide_long_one() -> None:
    """1 MB/s for T - 10 ms and 10 MB/s for T - 20 ms. Interfaces are faster."""
    grid = replace(wires([0, 1, 2]), nic_bytes_per_s=np.full(3, 1e9))
    rates, latency_s = np.full((3, 3), 10e6), np.full((3, 3), 10e-3)
    rates[0, 1] = 1e6
    grid = replace(grid, rate_bytes_per_s=rates, latency_s=latency_s)
    both_s = (MESSAGE + 1e6 * 10e-3 + 10e6 * 20e-3) / 11e6
    assert over_all_paths_s(grid, 0, 1, MESSAGE) == pytest.approx(both_s)
    assert over_all_paths_s(grid, 0, 2, MESSAGE) == pytest.approx(10e-3 + MESSAGE / 10e6)
    # Five KB are there before anything comes the long way.
    assert over_all_paths_s(grid, 0, 1, 5_000) == pytest.approx(15e-3)
    for collective in ("bcast", "allreduce"):
        assert limit_s(collective, grid, MESSAGE) >= both_s


def test_what_was_sent_one_way_is_sent_another() -> None:
    """0 to 3: the shortest way is by 1 and 2; of two, one goes by 1 and one by 2."""
    rates, latency_s = np.full((4, 4), 1.0), np.full((4, 4), 10.0)
    for a, b, length_s in ((0, 1, 1e-3), (1, 2, 1e-3), (2, 3, 1e-3), (0, 2, 4e-3), (1, 3, 4e-3)):
        rates[a, b], latency_s[a, b] = 1e6, length_s
    grid = replace(wires([0, 1, 2, 3]), rate_bytes_per_s=rates, latency_s=latency_s)
    # By 3 ms, then another of 5 + 5 - 3.
    took_s = (MESSAGE + 1e6 * (3e-3 + 7e-3)) / 2e6
    assert over_all_paths_s(grid, 0, 3, MESSAGE) == pytest.approx(took_s, rel=1e-4)


def test_uplinks_limit_all_ways_together() -> None:
    grid = wires([0, 1, 2], uplink=2e6)
    assert over_all_paths_s(grid, 0, 1, MESSAGE) == pytest.approx(10e-3 + MESSAGE / 2e6)


def test_both_ways_share_the_interfaces_of_the_two_hosts() -> None:
    """1 MB/s for T - 10 ms, and the rest of 2 MB/s for T - 20 ms; a burst passes at once."""
    rates, latency_s = np.full((3, 3), 10e6), np.full((3, 3), 10e-3)
    rates[0, 1] = 1e6
    grid = replace(wires([0, 1, 2]), rate_bytes_per_s=rates, latency_s=latency_s)
    shared_s = (MESSAGE - 10_000 + 1e6 * 10e-3 + 1e6 * 20e-3) / 2e6
    for slow in ([2e6, 10e6, 10e6], [10e6, 2e6, 10e6]):
        here = replace(grid, nic_bytes_per_s=np.array(slow), burst_bytes=10_000)
        assert over_all_paths_s(here, 0, 1, MESSAGE) == pytest.approx(shared_s)
        assert limit_s("allreduce", here, MESSAGE) >= shared_s
