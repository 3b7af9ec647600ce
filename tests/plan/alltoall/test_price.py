"""All-to-all prices: the messages that plans really have, and the simulation of those plans."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.model import GridModel, PLogP, linear_plogp
from gridcoll.model.bounds import alltoall_limit_s
from gridcoll.model.gridmodel import MOST_SAMPLED
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan import REGISTRIES, choose
from gridcoll.plan.alltoall import cost
from gridcoll.plan.alltoall.bruck import bruck_messages, plan_bruck
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.direct import (
    direct_messages,
    far_order,
    farthest_first_messages,
    pairwise_messages,
    plan_direct,
    plan_pairwise,
)
from gridcoll.plan.alltoall.hierarchical import (
    hub_blocks,
    hub_messages,
    leader_messages,
    plan_hub,
    plan_leaders,
)
from gridcoll.plan.alltoall.lg import lg_messages, plan_lg
from gridcoll.plan.alltoall.messages import Messages, tally
from gridcoll.plan.cost import price_plan
from gridcoll.topology import Grid
from gridcoll.topology.gridfile import read_gridfile
from tests.plan.grids import model_of

HOSTFILES = Path(__file__).parents[3] / "hostfiles"
GRIDS = (
    *("one-cluster", "two-sites", "two-sites-uneven", "three-sites", "grid5000"),
    *("scrambled", "thin-wan", "long-fat", "two-sites-thin"),
)


def canonical(messages: Messages) -> tuple[list[object], list[object]]:
    """Messages with their stages, and what needs what, without regard to order."""
    rows = list(
        zip(
            messages.source.tolist(),
            messages.target.tolist(),
            messages.n_blocks.tolist(),
            messages.stage.tolist(),
            strict=True,
        )
    )
    return sorted(rows), sorted((rows[a], rows[b]) for a, b in messages.needs.tolist())


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=2, max_size=12))
def test_messages_are_those_of_the_plan(labels: list[int]) -> None:
    model = model_of(labels)
    grid, n = model.grid, len(labels)
    order = [rank for cluster in grid.clusters for rank in cluster.ranks]
    (*far_first,) = REGISTRIES["alltoall"]["farthest-first"].candidates(model, 1, 0)
    for candidate in far_first:
        assert candidate.build is not None
        fast = farthest_first_messages(grid, far_order(model))
        assert canonical(fast) == canonical(tally(candidate.build(1)))
    assert canonical(direct_messages(grid)) == canonical(tally(plan_direct(order, 1)))
    assert canonical(pairwise_messages(grid)) == canonical(tally(plan_pairwise(n, 1)))
    assert canonical(lg_messages(grid)) == canonical(tally(plan_lg(grid, 1)))
    if len(grid.clusters) > 1:
        assert canonical(leader_messages(grid)) == canonical(tally(plan_leaders(grid, 1)))
        for hub in range(len(grid.clusters)):
            plan = plan_hub(grid, hub, 1)
            assert canonical(hub_messages(grid, hub)) == canonical(tally(plan))
            assert hub_blocks(grid, hub) == max(plan.scratch_units)
    assert price_messages_s(model, bruck_messages(n), 1000) == pytest.approx(
        price_messages_s(model, tally(plan_bruck(n, 1)), 1000)
    )


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("n_bytes", [1, 1024, 8192, 65536, 1 << 20])
def test_every_candidate_takes_what_was_predicted(
    grid: str, n_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost, "RETRANSMISSION_S", 0.0)  # a simulation loses no packets
    model = load_model(str(HOSTFILES / f"{grid}.toml"))
    off = {
        c.name: price_plan(c.build(n_bytes), model).makespan_s / (c.predicted_s or 1.0) - 1
        for c in choose("alltoall", model, n_bytes, 0, grid_only=True).candidates
        if c.build
    }
    assert len(off) > 2
    # Bruck's steps wait for room besides data; it is never near the fastest where that counts.
    assert {n: by for n, by in off.items() if abs(by) > (0.18 if n == "bruck" else 0.15)} == {}
    # Of two that a pairwise exchange has under way, the second waits for its window meanwhile.
    close = {"direct": 0.03, "pairwise": 0.08}
    assert {n: by for n, by in off.items() if abs(by) > close.get(n, 1.0)} == {}


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("n_bytes", [1, 8192, 65536, 1 << 20])
def test_no_plan_is_faster_than_the_limit(grid: str, n_bytes: int) -> None:
    spec = read_gridfile(HOSTFILES / f"{grid}.toml")
    model = load_model(str(HOSTFILES / f"{grid}.toml"))
    limit_s = alltoall_limit_s(wires_from_spec(spec, model.grid.hosts), n_bytes)
    for candidate in choose("alltoall", model, n_bytes, 0, grid_only=True).candidates:
        if candidate.build:
            assert price_plan(candidate.build(n_bytes), model).makespan_s >= limit_s


def test_of_many_ranks_some_stand_for_several() -> None:
    """What is predicted of 208 ranks from a third of them, against the simulation of all."""
    model = load_model(str(HOSTFILES / "cem-five.toml"))
    assert model.sample.model.grid.n_ranks <= MOST_SAMPLED + model.n_clusters
    simulated_s = {"farthest-first": 73.7e-3, "direct": 59.1e-3, "lg": 93.3e-3, "bruck": 161e-3}
    times = {c.name: c.predicted_s for c in choose("alltoall", model, 8192, 0).candidates}
    assert {n: times[n] for n in simulated_s} == pytest.approx(simulated_s, rel=0.15)


def homogeneous(contention: tuple[float, ...]) -> GridModel:
    """Six ranks; a message of 1000 bytes has a gap of 500 us and overheads of 30 and 50."""
    lan = PLogP(1e-4, (0, 1000), (2e-4, 5e-4), (3e-5, 3e-5), (5e-5, 5e-5))
    return GridModel(Grid.from_labels([0] * 6), ((lan,),), contention=contention)


@pytest.mark.parametrize("contention", [(), (0.0,), (0.5,), (1.0,), (1.5,)])
def test_a_homogeneous_exchange_costs_what_table_3_says(contention: tuple[float, ...]) -> None:
    """``(P - 1) g(m)`` at γ = 1; overheads alone at γ = 0 (paper 003, section 5)."""
    model = homogeneous(contention)
    gamma = contention[0] if contention else 1.0
    predicted_s = price_messages_s(model, direct_messages(model.grid), 1000)
    # Four messages leave before the last, which takes what a lone one takes.
    assert predicted_s == pytest.approx(4 * (8e-5 + (5e-4 - 8e-5) * gamma) + 6e-4)


def test_contention_is_that_of_the_clusters_own() -> None:
    lan = homogeneous(()).links[0][0]
    model = GridModel(Grid.from_labels([0] * 3 + [1] * 3), ((lan, lan), (lan, lan)))
    times = [
        price_messages_s(replace(model, contention=c), direct_messages(model.grid), 1000)
        for c in ((), (1.0, 1.0), (2.0, 1.0), (1.0, 2.0), (2.0, 2.0))
    ]
    assert times[0] == times[1] < min(times[2:])


def test_what_a_message_costs_on_a_link_is_paid_at_the_interface() -> None:
    """Sixteen ranks, eight on either side; 1 ms a message between them, 10 us inside."""
    lan, wan = linear_plogp(50e-6, 12.5e6), linear_plogp(5e-3, 12.5e6, 1e-3)
    model = GridModel(Grid.from_labels([0] * 8 + [1] * 8), ((lan, wan), (wan, lan)))
    direct_s = price_messages_s(model, direct_messages(model.grid), 1)
    lg_s = price_messages_s(model, lg_messages(model.grid), 1)
    assert direct_s > 8e-3 + 5e-3
    assert lg_s < 1e-3 + 5e-3 + 1e-3


def test_of_short_messages_neighbours_share_nothing_but_arrive_as_late() -> None:
    """A gap of 0.4 ms is what a rank pays; a lone message at home takes its 30 us, not the gap."""
    lan = PLogP(3e-5, (0, 1 << 20), (4e-4, 0.3), (1e-5,) * 2, (1e-5,) * 2, (3e-5, 0.3))
    apart = GridModel(Grid.from_labels([0] * 4), ((lan,),))
    at_home = replace(apart, grid=Grid.from_labels([0] * 4, ["a"] * 4))
    in_pairs = replace(apart, grid=Grid.from_labels([0] * 4, ["a", "a", "b", "b"]))
    for model in (apart, at_home, in_pairs):
        predicted_s = price_messages_s(model, direct_messages(model.grid), 8)
        assert predicted_s == pytest.approx(2 * 4e-4 + 3e-5, rel=0.02)


def test_flows_wait_for_their_windows_side_by_side() -> None:
    """What a window keeps back holds up the next block only where blocks leave one by one."""
    lan, wan = linear_plogp(50e-6, 12.5e6), linear_plogp(40e-3, 1.6e6)
    together = ((12.5e6, 50e6), (50e6, 12.5e6))
    model = GridModel(
        Grid.from_labels([0] * 4 + [1] * 4),
        ((lan, wan), (wan, lan)),
        aggregate_bytes_per_s=together,
    )
    n_bytes = 1 << 20
    of_interface_s = lan.gap(n_bytes)
    side_by_side = direct_messages(model.grid)
    times = [
        price_messages_s(model, replace(side_by_side, one_by_one=one_by_one), n_bytes)
        for one_by_one in (False, True)
    ]
    assert times[0] == pytest.approx(wan.one_way(n_bytes), rel=0.02)
    assert times[1] > wan.one_way(n_bytes) + 3 * of_interface_s
    simulated_s = price_plan(plan_direct(range(8), n_bytes), model).makespan_s
    assert simulated_s == pytest.approx(times[0], rel=0.02)
    # As do the links themselves, where they are what all flows fill.
    full = replace(model, aggregate_bytes_per_s=((12.5e6, 8e6), (8e6, 12.5e6)))
    least_s = 16 * n_bytes / 8e6
    assert price_messages_s(full, side_by_side, n_bytes) == pytest.approx(least_s, rel=0.1)


def test_no_messages_take_no_time() -> None:
    none, zero = np.empty(0, int), np.empty(0)
    nothing = Messages(none, none, zero, zero, zero, zero, none, np.empty((0, 2), int))
    assert price_messages_s(model_of([0]), nothing, 100) == 0.0
