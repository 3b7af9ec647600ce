"""Scatters and gathers whose pieces go round thin links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import GridModel, declared_model
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


def unlike_sites(
    sites: list[tuple[int, int, int]], links: dict[tuple[int, int], tuple[float, int]]
) -> GridModel:
    """Sites of hosts, whose interfaces and uplink (0: none) have Mbit/s; links of ms and Mbit/s."""
    lines = ["version = 1", 'name = "unlike"']
    for c, (hosts, nic, uplink) in enumerate(sites):
        lines += ["[[clusters]]", f'name = "c{c}"', f"hosts = {hosts}", f'nic = "{nic} Mbit/s"']
        lines += [f'uplink = "{uplink} Mbit/s"'] if uplink else []
    for (a, b), (latency, rate) in links.items():
        lines += ["[[links]]", f'between = ["c{a}", "c{b}"]']
        lines += [f'latency = "{latency} ms"', f'rate = "{rate} Mbit/s"']
    spec = parse_gridfile("\n".join(lines))
    return declared_model(spec, spec.rank_hosts())


@pytest.mark.parametrize("collective", ["scatter", "gather"])
def test_relayed_pieces_do_not_hold_up_direct_ones_at_an_uplink(collective: str) -> None:
    """They reach it later, if their way is longer. By turns at the time of sending, 108 ms."""
    model = unlike_sites(
        [(4, 100, 240), (4, 200, 0), (3, 50, 90), (3, 50, 60)],
        {
            (0, 1): (16.2, 60),
            (0, 2): (56.3, 30),
            (0, 3): (29.4, 1000),
            (1, 2): (39.8, 15),
            (1, 3): (27.0, 15),
            (2, 3): (13.9, 15),
        },
    )
    winner = choose(collective, model, 1 << 16, 0, grid_only=True).winner
    assert winner.name == "relayed"
    assert winner.expected_s < 85e-3
    assert winner.build
    assert price_plan(winner.build(1 << 16), model).makespan_s < 86e-3


@pytest.mark.parametrize("collective", ["scatter", "gather"])
def test_pieces_to_slow_hosts_take_turns_also_if_none_is_relayed(collective: str) -> None:
    """A link carries more than any host behind it. Block after block takes 85 ms."""
    model = unlike_sites(
        [(4, 100, 160), (4, 20, 0), (2, 50, 75)],
        {(0, 1): (25.5, 60), (0, 2): (45.9, 100), (1, 2): (27.8, 1000)},
    )
    (candidate,) = REGISTRIES[collective]["relayed"].candidates(model, 1 << 16, 0)
    assert candidate.label.startswith("0 of ")
    assert candidate.expected_s < 71e-3
    assert candidate.build
    assert price_plan(candidate.build(1 << 16), model).makespan_s < 72e-3


@pytest.mark.parametrize(("n_sites", "n_hosts"), [(8, 8), (32, 2)])
def test_many_clusters_are_not_compared_for_every_piece(
    n_sites: int, n_hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 ranks in 32 clusters would take 9 s."""
    pairs = [(a, b) for a in range(n_sites) for b in range(a + 1, n_sites)]
    model = unlike_sites(
        [(n_hosts, 100, 0)] * n_sites, {pair: (10.0, 15 + 45 * (sum(pair) % 2)) for pair in pairs}
    )
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
