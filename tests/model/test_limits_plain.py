"""The limit as people reckon it, by hand, and beside the one that nothing is below."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridcoll.errors import UsageError
from gridcoll.model.bounds import limit_s, plain_limit_s
from gridcoll.model.wires import Wires, wires_from_spec
from gridcoll.topology import Grid
from gridcoll.topology.gridfile import read_gridfile
from tests.model.wires import wires

HOSTFILES = Path(__file__).parents[2] / "hostfiles"

FAMILY = (
    *("bcast", "alltoall", "allreduce", "reduce", "gather", "scatter"),
    *("allgather", "reduce_scatter", "barrier"),
)


@pytest.mark.parametrize(
    ("collective", "grid", "root", "wanted_s"),
    [
        ("bcast", wires([0, 0, 1, 1, 2, 2]), 0, 0.1 + 12e-3),
        ("bcast", wires([0, 0, 1, 1, 2, 2]), 2, 0.1 + 10e-3),
        ("reduce", wires([0, 0, 1, 1, 2, 2]), 4, 0.1 + 12e-3),
        ("allreduce", wires([0, 0, 1, 1, 2, 2]), 2, 2 * 0.1 * 5 / 6 + 12e-3),
        ("alltoall", wires([0, 0, 1, 1, 2, 2]), 2, 0.5 + 12e-3),
        ("barrier", wires([0, 0, 1, 1, 2, 2]), 2, 12e-3),
        ("bcast", wires([0] * 4), 3, 0.1 + 0.1e-3),
        ("bcast", wires([0] * 4, burst_bytes=500_000), 3, 0.05 + 0.1e-3),
        ("bcast", wires([0, 1], rate=1e6), 0, 1 + 10e-3),
        ("alltoall", wires([0, 0, 1, 1], uplink=5e6), 0, 0.8 + 10e-3),
        ("bcast", wires([0, 0], hosts=("a", "a")), 0, 0.0),
        ("scatter", wires([0]), 0, 0.0),
    ],
)
def test_by_hand(collective: str, grid: Wires, root: int, wanted_s: float) -> None:
    """A megabyte each."""
    assert plain_limit_s(collective, grid, 1_000_000, root) == pytest.approx(wanted_s, rel=1e-6)


def test_ways_to_a_root_are_not_ways_from_it() -> None:
    grid = Wires(
        Grid.from_labels([0, 1]),
        np.array([[0.0, 5.0], [7.0, 0.0]]),
        *(np.full(2, np.inf), np.full(2, np.inf), np.full((2, 2), np.inf)),
    )
    assert plain_limit_s("scatter", grid, 8, 0) == 5.0
    assert plain_limit_s("gather", grid, 8, 0) == 7.0
    assert plain_limit_s("allgather", grid, 8, 0) == 7.0


def test_a_collective_without_a_limit() -> None:
    with pytest.raises(UsageError, match="limit of 'scan': known are"):
        plain_limit_s("scan", wires([0, 1]), 8)


@given(
    st.sampled_from(FAMILY),
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.sampled_from([1e5, 1e9]),
    st.sampled_from([1e6, 1e9]),
    st.sampled_from([0, 500]),
    st.sampled_from([0, 1000, 100_000]),
    st.integers(0, 7),
)
def test_it_is_never_below_the_strict_one(
    collective: str,
    labels: list[int],
    rate: float,
    uplink: float,
    burst_bytes: int,
    n_bytes: int,
    root: int,
) -> None:
    grid, root = wires(labels, rate, uplink, (), burst_bytes), root % len(labels)
    strict_s = limit_s(collective, grid, n_bytes, root)
    assert plain_limit_s(collective, grid, n_bytes, root) >= strict_s * (1 - 1e-9)


def test_a_few_bytes_of_many_hosts_have_one_as_well() -> None:
    """So few that the time of the busiest wire rounds to nothing."""
    spec = read_gridfile(HOSTFILES / "grid5000-88.toml")
    grid = wires_from_spec(spec, spec.rank_hosts())
    assert plain_limit_s("allreduce", grid, 8) == pytest.approx(0.1952, rel=1e-3)
