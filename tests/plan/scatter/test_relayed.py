"""Scatters and gathers whose pieces go round thin links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan.check import check_plan
from gridcoll.plan.choose import choose
from gridcoll.plan.cost import price_plan
from gridcoll.plan.registry import REGISTRIES
from gridcoll.plan.scatter import relayed
from gridcoll.plan.scatter.relayed import make_schedule, plan_collected, plan_relayed
from gridcoll.topology.gridfile import parse_gridfile, read_gridfile
from tests.plan.grids import unlike_model
from tests.plan.test_packed_trees import unlike_grids

PATCHWORK = Path(__file__).parents[3] / "hostfiles" / "patchwork.toml"


@settings(max_examples=25, deadline=None)
@given(spec=unlike_grids(4), data=st.data())
def test_plans_are_right(spec, data) -> None:  # type: ignore[no-untyped-def]
    model = declared_model(spec, spec.rank_hosts())
    root = data.draw(st.integers(0, model.grid.n_ranks - 1))
    n_pieces = data.draw(st.integers(1, 5))
    n_units = data.draw(st.sampled_from([0, 1, 7, 1000]))
    hops = make_schedule(model, root, 40_000, n_pieces)
    if hops:
        check_plan(plan_relayed(model, root, n_pieces, hops, n_units))
        check_plan(plan_collected(model, root, n_pieces, hops, n_units))


@pytest.mark.parametrize("collective", ["scatter", "gather"])
@pytest.mark.parametrize(("n_bytes", "most"), [(1 << 16, 1.15), (1 << 20, 1.02)])
def test_on_a_patchwork_it_comes_near_the_limit(collective: str, n_bytes: int, most: float) -> None:
    spec = read_gridfile(PATCHWORK)
    model, wires = unlike_model(), wires_from_spec(spec, spec.rank_hosts())
    winner = choose(collective, model, n_bytes, 0, grid_only=True).winner
    assert winner.name == "relayed"
    assert winner.build
    limit = limit_s(collective, wires, n_bytes)
    simulated_s = price_plan(winner.build(n_bytes), model).makespan_s
    assert limit <= (winner.predicted_s or 0) <= most * limit
    assert simulated_s <= (most + 0.01) * limit


@pytest.mark.parametrize("grid", ["three-sites", "thin-wan", "grid5000"])
def test_where_little_is_gained_nothing_is_relayed(grid: str) -> None:
    spec = read_gridfile(PATCHWORK.with_name(f"{grid}.toml"))
    model = declared_model(spec, spec.rank_hosts())
    assert not REGISTRIES["scatter"]["relayed"].candidates(model, 1 << 16, 0)
    assert not REGISTRIES["gather"]["relayed"].candidates(model, 1 << 16, 0)


@pytest.mark.parametrize(("n_sites", "n_hosts"), [(8, 8), (32, 2)])
def test_many_clusters_are_not_compared_for_every_piece(
    n_sites: int, n_hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 ranks in 32 clusters would take 7 s."""
    lines = ["version = 1", 'name = "unlike"']
    for c in range(n_sites):
        lines += ["[[clusters]]", f'name = "c{c}"', f"hosts = {n_hosts}", 'nic = "100 Mbit/s"']
    for a in range(n_sites):
        for b in range(a + 1, n_sites):
            lines += ["[[links]]", f'between = ["c{a}", "c{b}"]', 'latency = "10 ms"']
            lines += [f'rate = "{15 + 45 * ((a + b) % 2)} Mbit/s"']
    spec = parse_gridfile("\n".join(lines))
    model = declared_model(spec, spec.rank_hosts())
    n_compared = 0
    paths = relayed._paths

    def counted(*args: Any) -> list[Any]:
        nonlocal n_compared
        found = paths(*args)
        n_compared += len(found)
        return found

    monkeypatch.setattr(relayed, "_paths", counted)
    REGISTRIES["scatter"]["relayed"].candidates(model, 1 << 16, 0)
    assert (n_compared > 0) == (n_sites == 8)
    assert n_compared < 2 * relayed.MOST_STEPS
