"""How many trees at once, and what each takes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gridcoll.cli.models import load_model
from gridcoll.model import GridModel, PLogP, linear_plogp
from gridcoll.plan import REGISTRIES, Recv, check_plan
from gridcoll.plan.bcast import several_trees
from gridcoll.plan.cost import price_plan
from gridcoll.plan.registry import Candidate
from gridcoll.plan.split_shares import split_shares
from tests.plan.grids import thin_grid

HOSTFILES = Path(__file__).parents[3] / "hostfiles"


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
    found = several_trees._fewest_trees(model, [(0, 1)], tried)
    assert [candidate.label for candidate in found] == [str(chosen)] * (chosen is not None)


@pytest.mark.parametrize("algorithm", ["lanes", "stars"])
@pytest.mark.parametrize("n_bytes", [1 << 16, 1 << 20, 1 << 22])
def test_segments_that_meet_at_an_interface_are_priced(algorithm: str, n_bytes: int) -> None:
    """The simulation, in which each interface takes one segment at a time, says the same."""
    model = load_model(str(HOSTFILES / "three-sites.toml"))
    (found,) = REGISTRIES["bcast"][algorithm].candidates(model, n_bytes, 0)
    assert found.build is not None
    simulated_s = price_plan(found.build(n_bytes), model).makespan_s
    assert found.predicted_s == pytest.approx(simulated_s, rel=0.01)


def test_inside_one_cluster_no_flow_has_to_be_spared() -> None:
    model = load_model(str(HOSTFILES / "one-cluster.toml"))
    (found,) = REGISTRIES["bcast"]["stars"].candidates(model, 1 << 20, 0)
    assert found.label.startswith("5 trees")


def split_of(grid: str, n_bytes: int) -> tuple[GridModel, list[Candidate]]:
    model = load_model(str(HOSTFILES / f"{grid}.toml"))
    return model, REGISTRIES["bcast"]["split"].candidates(model, n_bytes, 0)


@pytest.mark.parametrize(
    ("n_bytes", "turns"),
    [
        (16384, ""),  # through the farther site nothing arrives before all is there
        (65536, "20:12"),  # 7 ms longer on the way, and 17.5 ms less of 26 on a link
        (1 << 20, ""),
    ],
)
def test_shares_are_such_that_all_arrive_together(n_bytes: int, turns: str) -> None:
    """Orsay to Toulouse to Grenoble takes 10.6 ms, Orsay to Grenoble to Toulouse 17.6."""
    _, (found,) = split_of("thin-wan", n_bytes)
    how = f"2 trees in turns of {turns} as " if turns else "2 trees as "
    assert found.label.startswith(how)


def test_shares_follow_delays_and_rates() -> None:
    model = thin_grid([0, 1, 2, 3], 1e6)
    assert shares_of(model, 300_000) == pytest.approx([1 / 3] * 3)
    slower = np.full((4, 4), 1e6)
    slower[0, 1] = 0.5e6
    thinner = replace(model, links=_with_rates(slower), aggregate_bytes_per_s=())
    shares = shares_of(thinner, 300_000)
    assert shares == pytest.approx([0.2, 0.4, 0.4], rel=1e-3)
    # With 30 ms more on its way, a tree carries 30 kB less than the others.
    late = replace(model, links=_with_rates(np.full((4, 4), 1e6), late_s=30e-3))
    shares = shares_of(late, 300_000)
    assert shares == pytest.approx([80 / 300, 110 / 300, 110 / 300], rel=1e-3)
    assert shares_of(late, 20_000) == pytest.approx([0, 0.5, 0.5])


def shares_of(model: GridModel, n_bytes: int) -> np.ndarray:
    trees = _two_levels(model.n_clusters)
    return split_shares(trees, model.latency_s, model.link_bytes_per_s, n_bytes)


def _two_levels(n: int) -> list[tuple[tuple[int, int], ...]]:
    return [((0, k), *((k, c) for c in range(1, n) if c != k)) for k in range(1, n)]


def _with_rates(rates: np.ndarray, late_s: float = 0.0) -> tuple[tuple[PLogP | None, ...], ...]:
    """Links of 5 ms; one into cluster 1 takes ``late_s`` longer."""
    n = len(rates)
    return tuple(
        tuple(
            linear_plogp(5e-3 + late_s * ((i, j) == (0, 1)), rates[i, j]) if i != j else None
            for j in range(n)
        )
        for i in range(n)
    )


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.625, 0.375), (0.9, 0.1), (0.2, 0.0, 0.8)])
def test_turns_are_as_many_as_shares_ask_for_all_the_way(shares: tuple[float, ...]) -> None:
    turns = several_trees._turns(np.array(shares))
    assert len(turns) == several_trees.TURNS_PER_TREE * len(shares)
    for n in range(1, len(turns) + 1):
        for tree, share in enumerate(shares):
            assert abs(turns[:n].count(tree) - n * share) <= 1


@pytest.mark.parametrize("grid", ["three-sites", "grid5000", "scrambled"])
def test_shares_are_equal_where_links_are_as_wide_as_interfaces(grid: str) -> None:
    _, (found,) = split_of(grid, 65536)
    assert " in turns of " not in found.label


def test_a_tree_with_more_turns_gets_more_segments() -> None:
    model, (candidate,) = split_of("thin-wan", 65536)
    assert candidate.build is not None
    plan = candidate.build(65536)
    check_plan(plan)
    streams: Counter[int] = Counter()
    for op in plan.programs[5]:  # within Toulouse: all of the message, by two ways
        if isinstance(op, Recv):
            streams[op.stream] += op.chunk.size
    assert streams == {0: 40 << 10, 1: 24 << 10}
    assert price_plan(plan, model).makespan_s == pytest.approx(candidate.predicted_s, rel=0.05)
