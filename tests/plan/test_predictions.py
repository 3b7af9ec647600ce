"""What choices rest on, against the simulation of the very plan that would run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridcoll.cli.models import load_model
from gridcoll.plan import choose
from gridcoll.plan.cost import price_plan

HOSTFILES = Path(__file__).parents[2] / "hostfiles"

GRIDS = ("three-sites", "grid5000", "long-fat", "thin-wan", "one-cluster", "two-sites-uneven")
GRIDS += ("two-sites-shared",)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("n_bytes", [8, 8192, 100_000])
def test_every_broadcast_takes_what_was_predicted(grid: str, n_bytes: int) -> None:
    model = load_model(str(HOSTFILES / f"{grid}.toml"))
    candidates = choose("bcast", model, n_bytes, 1, grid_only=True).candidates
    plans = [(c, c.build(n_bytes)) for c in candidates if c.build]
    assert len(plans) > 4
    off = {
        f"{c.name}: {c.label}": price_plan(plan, model).makespan_s / (c.predicted_s or 1.0) - 1
        for c, plan in plans
    }
    assert {name: by for name, by in off.items() if abs(by) > 0.07} == {}
