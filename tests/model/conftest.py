"""A small model with everything in it."""

from __future__ import annotations

import pytest

from gridcoll.model import GridModel, PLogP, TimesBySize
from gridcoll.topology import Cluster, Grid, Process


def make_link(latency_s: float, s_per_byte: float = 1e-8) -> PLogP:
    sizes = (0, 1000, 100_000)
    gaps = tuple(1e-5 + size * s_per_byte for size in sizes)
    return PLogP(
        latency_s,
        sizes,
        gaps,
        tuple(gap / 2 for gap in gaps),
        tuple(gap / 3 for gap in gaps),
        tuple(latency_s * 1.5 + gap for gap in gaps),
    )


@pytest.fixture
def model() -> GridModel:
    """Clusters a (ranks 0, 2), b (rank 1) and c (ranks 3, 4); latencies tell who is who."""
    grid = Grid(
        (
            Cluster("a", (Process(0, "a0"), Process(2, "a1")), "north", "x"),
            Cluster("b", (Process(1, "b0"),), "south"),
            Cluster("c", (Process(3, "c0"), Process(4, "c0")), "south"),
        ),
        "sample",
    )
    links: tuple[tuple[PLogP | None, ...], ...] = (
        (make_link(1e-5), make_link(2e-3), make_link(3e-3)),
        (make_link(4e-3), None, make_link(5e-3, 2e-9)),
        (make_link(6e-3), make_link(7e-3), make_link(8e-5)),
    )
    native = {"bcast": TimesBySize((8, 1000), (1e-3, 5e-3))}
    together = ((1e9, 2e8, 3e8), (4e8, 5e8, 6e8), (7e8, 8e8, 9e8))
    relay_gap = TimesBySize((64, 4096), (2e-6, 3e-6))
    return GridModel(grid, links, "measured", 0.25, native, relay_gap, together)
