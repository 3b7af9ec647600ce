"""Limits of reductions against figures by hand."""

from __future__ import annotations

import numpy as np
import pytest

from gridcoll.model.bounds import limit_s
from gridcoll.model.wires import Wires
from gridcoll.topology import Grid


def wires(labels: list[int], rate: float = np.inf, uplink: float = np.inf) -> Wires:
    """Interfaces of 10 bytes/s, 1 s inside clusters, 5 s between them and 7 s from 0 to 1."""
    grid = Grid.from_labels(labels)
    n = len(grid.clusters)
    latency = np.full((n, n), 5.0)
    latency[:2, :2] = 7.0
    np.fill_diagonal(latency, 1.0)
    rates = np.full((n, n), rate)
    return Wires(grid, latency, np.full(n, 10.0), np.full(n, uplink), rates)


@pytest.mark.parametrize(
    ("grid", "wanted_s"),
    [
        (wires([0]), 0.0),
        (wires([0, 0, 0, 0]), 2 * 60 * 3 / 4 / 10 + 1),  # 2 m (P-1)/P through each interface
        (wires([0, 0]), 1 + 60 / 10),  # m from the other rank, which is 1 s away
        (wires([0, 0, 1, 1]), 7 + 60 / 10),  # before 7 s, interfaces combine inside clusters
        (wires([0, 0, 1, 1], rate=2.0), 7 + 60 / 2),  # m each way
        (wires([0, 0, 1, 1, 2, 2], rate=1.0), 17 / 3 + 2 * 60 * 2 / 6),  # all six links at once
        (wires([0, 0, 1, 1, 2, 2], uplink=1.0), 5 + 2 * 60 * 2 / 3),  # 2 m (C-1)/C
    ],
)
def test_allreduce(grid: Wires, wanted_s: float) -> None:
    assert limit_s("allreduce", grid, 60) == pytest.approx(wanted_s)


def test_the_latency_may_pass_while_interfaces_work() -> None:
    """The long latency and all that interfaces pass, one after the other, is more than need be."""
    grid = wires([0, 0, 0, 0, 1, 1, 1, 1])
    assert limit_s("allreduce", grid, 6000) == pytest.approx(2 * 6000 * 7 / 8 / 10 + 1)


def test_what_clusters_combine_alone_is_all_that_passes_before_the_first_arrival() -> None:
    grid = wires([0, 0, 1, 1, 2, 2])
    grid.latency_s[:2, :2] = 5.0
    np.fill_diagonal(grid.latency_s, 1.0)
    assert limit_s("allreduce", grid, 60) == pytest.approx(5 + 60 * (2 * 5 - 3) / 6 / 10)


def test_hosts_count_not_ranks() -> None:
    """Ranks of one host share its interface and need none among themselves."""
    grid = Grid.from_labels([0, 0, 0, 0], ["a", "a", "b", "b"])
    shared = Wires(
        grid, np.ones((1, 1)), np.full(1, 10.0), np.full(1, np.inf), np.full((1, 1), np.inf)
    )
    assert limit_s("allreduce", shared, 60) == pytest.approx(1 + 60 / 10)


def test_a_reduction_is_a_broadcast_backwards() -> None:
    grid = wires([0, 1, 1])
    grid.latency_s[0, 1] = 3.0
    assert limit_s("bcast", grid, 0, 0) == 3.0
    assert limit_s("reduce", grid, 0, 0) == 7.0


def test_a_barrier_takes_the_longest_way() -> None:
    assert limit_s("barrier", wires([0, 1, 2]), 1 << 30) == 7.0
    assert limit_s("barrier", wires([0, 0]), 1) == 1.0
