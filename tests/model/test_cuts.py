"""What crosses a cut, against every way of cutting it, and limits of scatters that rest on it."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest

from gridcoll.model.bounds import _cut, limit_s
from gridcoll.model.flow_bounds import scatter_flow_limit_s
from gridcoll.model.wires import Wires, wires_from_spec
from gridcoll.topology import Grid
from gridcoll.topology.gridfile import read_gridfile

HOSTFILES = Path(__file__).parents[2] / "hostfiles"


def random_wires(seed: int) -> Wires:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    grid = Grid.from_labels([c for c in range(n) for _ in range(int(rng.integers(1, 4)))])
    rates = rng.choice([1.0, 3.0, 10.0, 30.0], (n, n))
    nics, uplinks = rng.choice([2.0, 5.0, 20.0], n), rng.choice([4.0, 15.0, np.inf], n)
    return Wires(grid, np.full((n, n), 1e-9), nics, uplinks, rates)


def least_cut(wires: Wires, side: set[int]) -> float:
    """Every cluster cut off at its end or not: whatever then still crosses, links carry."""
    n = len(wires.grid.clusters)
    hosts = np.array([len(cluster.nodes) for cluster in wires.grid.clusters])
    ends = np.minimum(hosts * wires.nic_bytes_per_s, wires.uplink_bytes_per_s)
    return min(
        sum(ends[c] for c in range(n) if by_end[c])
        + sum(
            wires.rate_bytes_per_s[a, b]
            for a in side
            for b in range(n)
            if b not in side and not by_end[a] and not by_end[b]
        )
        for by_end in product([False, True], repeat=n)
    )


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_is_no_less_than_the_least_and_seldom_more(seed: int) -> None:
    wires = random_wires(seed)
    n, ratios = len(wires.grid.clusters), []
    for inside in product([False, True], repeat=n):
        side = {c for c in range(n) if inside[c]}
        if 0 < len(side) < n:
            assert least_cut(wires, side) * (1 - 1e-9) <= _cut(wires, side).bytes_per_s
            ratios.append(_cut(wires, side).bytes_per_s / least_cut(wires, side))
    assert np.mean(ratios) < 1.1


def test_what_enters_a_cluster_counts_like_what_leaves_one() -> None:
    """From one fast host to three behind a thin uplink: all links are fast."""
    grid = Grid.from_labels([0, 1, 1, 1])
    infinite = np.full((2, 2), 1e9)
    wires = Wires(
        grid, np.full((2, 2), 1e-9), np.array([1e9, 1e6]), np.array([np.inf, 1e6]), infinite
    )
    assert limit_s("scatter", wires, 1 << 20) == pytest.approx(3 * (1 << 20) / 1e6)
    assert limit_s("gather", wires, 1 << 20) == pytest.approx(3 * (1 << 20) / 1e6)


@pytest.mark.parametrize("grid", ["patchwork", "unlike-hosts", "three-sites", "grid5000"])
def test_flows_of_a_scatter_need_no_longer_than_its_limit(grid: str) -> None:
    spec = read_gridfile(HOSTFILES / f"{grid}.toml")
    wires = wires_from_spec(spec, spec.rank_hosts())
    for n_bytes in (8, 1 << 16, 1 << 22):
        limit = limit_s("scatter", wires, n_bytes)
        assert scatter_flow_limit_s(wires, n_bytes, limit, 0) <= limit * (1 + 1e-9)


def test_flows_bound_a_scatter_that_cuts_around_one_cluster_do_not() -> None:
    """Links carry 1 in two halves of six, and 0.05 between them: six blocks cross 1.8 in all."""
    n = 12
    grid = Grid.from_labels(range(n))
    half = np.arange(n) < 6
    rates = np.where(half[:, None] == half[None], 1.0, 0.05)
    wires = Wires(grid, np.full((n, n), 1e-9), np.full(n, 50.0), np.full(n, np.inf), rates)
    crossing_s = 6 * 1000 / 1.8
    assert 0.98 * crossing_s <= limit_s("scatter", wires, 1000) <= crossing_s


def test_what_interfaces_pass_at_once_needs_no_time() -> None:
    """A lone host behind 100 Mbit/s: 16 KiB reach it as soon as an empty message does."""
    spec = read_gridfile(HOSTFILES / "patchwork.toml")
    wires = wires_from_spec(spec, spec.rank_hosts())
    assert wires.burst_bytes == 16 << 10
    assert limit_s("bcast", wires, 16 << 10) == pytest.approx(13e-3, rel=0.02)
    later_s = limit_s("bcast", wires, 1 << 20) - limit_s("bcast", wires, (1 << 20) - 12_500)
    assert later_s > 1e-3
