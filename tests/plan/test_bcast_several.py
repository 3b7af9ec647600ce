"""How many trees at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridcoll.cli.models import load_model
from gridcoll.plan import REGISTRIES
from gridcoll.plan.choose import Candidate
from gridcoll.plan.collectives import bcast_several

HOSTFILES = Path(__file__).parents[2] / "hostfiles"


@pytest.mark.parametrize(
    ("grid", "n_lanes"),
    [
        ("three-sites", 2),  # one flow fills an interface: the fewest
        ("long-fat", 12),  # eight do, on average, between waits for their windows
    ],
)
def test_flows_that_windows_limit_have_something_to_spare(grid: str, n_lanes: int) -> None:
    model = load_model(str(HOSTFILES / f"{grid}.toml"))
    (found,) = REGISTRIES["bcast"]["lanes"].candidates(model, 1 << 20, 0)
    assert found.label.startswith(f"{n_lanes} trees")


@pytest.mark.parametrize(
    ("predicted_s", "chosen"),
    [
        ({2: 1.0, 8: 0.6, 10: 0.605}, 10),  # all have too few flows
        ({2: 1.0, 8: 0.6, 12: 0.605, 16: 0.6}, 12),
        ({2: 1.0, 8: 0.5, 12: 0.6}, 8),  # more would take longer
        ({}, None),
    ],
)
def test_of_those_alike_the_first_with_enough(
    predicted_s: dict[int, float], chosen: int | None
) -> None:
    """An interface carries as much as seven to eight flows."""
    model = load_model(str(HOSTFILES / "long-fat.toml"))
    tried = {n: Candidate("lanes", str(n), seconds) for n, seconds in predicted_s.items()}
    found = bcast_several._fewest(model, [(0, 1)], tried)
    assert [candidate.label for candidate in found] == [str(chosen)] * (chosen is not None)


def test_inside_one_cluster_no_flow_has_to_be_spared() -> None:
    model = load_model(str(HOSTFILES / "one-cluster.toml"))
    (found,) = REGISTRIES["bcast"]["stars"].candidates(model, 1 << 20, 0)
    assert found.label.startswith("5 trees")
