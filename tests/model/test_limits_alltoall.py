from __future__ import annotations

import pytest

from gridcoll.model.bounds import alltoall_limit_s, limit_s
from tests.model.wires import wires


def test_inside_one_cluster_interfaces_limit() -> None:
    assert alltoall_limit_s(wires([0] * 5), 1000) == pytest.approx(4 * 1e-4 + 0.1e-3)


def test_short_blocks_take_the_longest_way() -> None:
    assert alltoall_limit_s(wires([0, 0, 1, 2]), 1) == pytest.approx(12e-3, rel=1e-3)


def test_interfaces_wait_while_blocks_are_on_their_way() -> None:
    """Three blocks of 100 ms each; on average they are 6.7 ms under way, whatever the order."""
    assert alltoall_limit_s(wires([0, 0, 1, 1]), 1_000_000) == pytest.approx(300e-3 + 6.7e-3)
    assert alltoall_limit_s(wires([0, 1]), 1_000_000) == pytest.approx(100e-3 + 10e-3)


def test_the_farthest_go_first() -> None:
    """Of two blocks of 1 ms for the other cluster, the last leaves after 2 ms, 10 ms away."""
    assert alltoall_limit_s(wires([0, 0, 1, 1]), 10_000) == pytest.approx(2e-3 + 10e-3)


def test_ranks_of_one_host_share_its_interface() -> None:
    shared = wires([0, 0, 1], hosts=("a", "a", "b"))
    assert alltoall_limit_s(shared, 1_000_000) == pytest.approx(200e-3 + 10e-3)


def test_links_and_uplinks_limit() -> None:
    """Nine blocks of a megabyte each way over 1 MB/s; among three clusters four per link.

    Both links out of the first are busy to the end, and 11 ms long on average.
    """
    assert alltoall_limit_s(wires([0] * 3 + [1] * 3, rate=1e6), 1_000_000) == pytest.approx(9.01)
    assert alltoall_limit_s(wires([0] * 3 + [1] * 3, uplink=1e6), 1_000_000) == pytest.approx(9.01)
    three = wires([0, 0, 1, 1, 2, 2], rate=1e6)
    assert alltoall_limit_s(three, 1_000_000) == pytest.approx(4.011)


def test_what_a_burst_lets_pass_is_not_counted() -> None:
    burst = wires([0] * 3, burst_bytes=500)
    assert alltoall_limit_s(burst, 1000) == pytest.approx(1500 / 10e6 + 0.1e-3)


def test_one_rank_takes_no_time_and_many_clusters_are_limited_by_all_links() -> None:
    assert limit_s("alltoall", wires([0]), 1000) == 0
    many = wires(list(range(12)), rate=1e5)
    assert limit_s("alltoall", many, 100_000) == pytest.approx(1 + 10.18e-3, abs=1e-5)
