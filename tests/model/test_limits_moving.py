"""Limits of gather, scatter, allgather and reduce-scatter against figures by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridcoll.cli.models import load_model
from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import Wires, wires_from_model, wires_from_spec
from gridcoll.plan import choose
from gridcoll.plan.cost import price_plan
from gridcoll.topology.gridfile import parse_gridfile
from tests.model.wires import wires

HOSTFILES = Path(__file__).parents[2] / "hostfiles"


@pytest.mark.parametrize(
    ("grid", "n_bytes", "wanted_s"),
    [
        (wires([0]), 1000, 0.0),
        (wires([0] * 5), 1000, 4e-4 + 0.1e-3),
        (wires([0, 0, 1, 1]), 1_000_000, 0.3 + 0.1e-3),  # the farthest first, the neighbour last
        (wires([0, 1]), 1_000_000, 0.1 + 10e-3),
        (wires([0, 1, 2]), 1, 12e-3 + 1e-7),
        (wires([0, 1, 1, 1], rate=1e6), 1_000_000, 3 + 10e-3),
        (wires([0, 1, 1, 2], uplink=1e6), 1_000_000, 3 + 10e-3),
        (wires([0, 0, 1], hosts=("a", "a", "b")), 1_000_000, 0.1 + 10e-3),
        (wires([0, 1, 1, 1], hosts=("a", "b", "b", "b")), 1_000_000, 0.3 + 10e-3),
        (wires([0, 0, 1, 1], hosts=("a", "b", "a", "b")), 1_000_000, 0.3 + 0.1e-3),
        (wires([0] * 3, burst_bytes=500), 1000, 1.5e-4 + 0.1e-3),
    ],
)
def test_scatter(grid: Wires, n_bytes: int, wanted_s: float) -> None:
    assert limit_s("scatter", grid, n_bytes, 0) == pytest.approx(wanted_s, rel=1e-5)


def test_gather_is_a_scatter_backwards() -> None:
    """Two thin links out of the first cluster: on the way to it they do not count."""
    grid = wires([0, 1, 2], rate=1e6)
    # Both thin links are busy for a second, and 10 and 12 ms away: one is late by half of both.
    assert limit_s("scatter", grid, 1_000_000, 0) == pytest.approx(1 + 11e-3)
    assert limit_s("gather", grid, 1_000_000, 0) == pytest.approx(0.2 + 10e-3)
    assert limit_s("gather", grid, 1_000_000, 1) == pytest.approx(0.5 + 10e-3)  # by both at once


@pytest.mark.parametrize(
    ("grid", "n_bytes", "wanted_s"),
    [
        (wires([0]), 1000, 0.0),
        (wires([0] * 5), 1000, 4e-4 + 0.1e-3),
        (wires([0, 0, 1, 1]), 1_000_000, 0.3 + 0.1e-3),
        (wires([0, 1, 2]), 1, 12e-3 + 1e-7),
        (wires([0, 0, 0, 1], rate=1e6), 1_000_000, 3 + 10e-3),  # three blocks out
        (wires([0, 1, 1, 1], rate=1e6), 1_000_000, 1 + 10e-3),  # one block out, three in
        (wires([0, 0, 1, 1], hosts=("a", "a", "b", "c")), 1_000_000, 0.3 + 0.1e-3),
    ],
)
def test_allgather(grid: Wires, n_bytes: int, wanted_s: float) -> None:
    assert limit_s("allgather", grid, n_bytes) == pytest.approx(wanted_s, rel=1e-5)


def test_reduce_scatter_is_an_allgather_backwards() -> None:
    """Over the thin link go sums for all who are on the other side."""
    assert limit_s("reduce_scatter", wires([0, 1, 1, 1], rate=1e6), 1_000_000) == pytest.approx(
        3 + 10e-3
    )
    assert limit_s("reduce_scatter", wires([0, 0, 0, 1], rate=1e6), 1_000_000) == pytest.approx(
        1 + 10e-3
    )


@pytest.mark.parametrize("collective", ["gather", "scatter", "allgather", "reduce_scatter"])
def test_no_plan_is_faster(collective: str) -> None:
    """On the grids by name, in the simulation."""
    for name in ("three-sites", "two-sites-uneven", "one-cluster"):
        model = load_model(str(HOSTFILES / f"{name}.toml"))
        for n_bytes in (8, 4096, 65536):
            bound_s = limit_s(collective, wires_from_model(model), n_bytes, 1)
            for candidate in choose(collective, model, n_bytes, 1).candidates:
                if candidate.build:
                    simulated_s = price_plan(candidate.build(n_bytes), model).makespan_s
                    assert simulated_s > 0.999 * bound_s


def test_what_several_flows_carry_is_no_limit_of_one() -> None:
    """Between two hosts of 50 and four of 200 Mbit/s, a flow carries 50; all of them 100."""
    spec = parse_gridfile(
        'version = 1\nname = "two"\n[[clusters]]\nname = "a"\nhosts = 2\nnic = "50 Mbit/s"\n'
        '[[clusters]]\nname = "b"\nhosts = 4\nnic = "200 Mbit/s"\n[[links]]\nbetween = ["a", "b"]\n'
        'latency = "1 ms"\nrate = "1 Gbit/s"\n'
    )
    model = declared_model(spec, spec.rank_hosts())
    wires = wires_from_model(model)
    assert wires.rate_bytes_per_s[0, 1] == pytest.approx(100e6 / 8)
    declared = wires_from_spec(spec, spec.rank_hosts())
    limits = [limit_s("alltoall", each, 1 << 20) for each in (wires, declared)]
    assert limits[0] == pytest.approx(limits[1], rel=0.01)
