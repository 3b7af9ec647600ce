"""Allgathers and reduce-scatters by a tree per owner, beside all others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import GridModel, declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan.allgather.packed_trees import OwnedTrees, _reversed, grow_trees, hosts_of
from gridcoll.plan.allgather.trees import plan_allgather
from gridcoll.plan.check import check_plan
from gridcoll.plan.choose import choose
from gridcoll.plan.cost import price_plan
from gridcoll.plan.reduce_scatter.mirror import plan_reduce_scatter
from gridcoll.plan.registry import REGISTRIES, Candidate
from gridcoll.plan.tree_search import Parents
from gridcoll.plan.tree_walk import DOWNWARDS, TreeWalk, children_of
from gridcoll.topology.gridfile import GridSpec, parse_gridfile, read_gridfile
from tests.plan.grids import unlike_model
from tests.plan.test_packed_trees import unlike_grids

HOSTFILES = Path(__file__).parents[3] / "hostfiles"


def owned(model: GridModel, parents: Sequence[Parents]) -> OwnedTrees:
    platform, hosts, _ = hosts_of(model)
    return OwnedTrees(hosts, parents, [children_of(platform, tree) for tree in parents])


@settings(max_examples=15, deadline=None)
@given(spec=unlike_grids(4, 3), segment=st.integers(1, 9), data=st.data())
def test_plans_are_right(spec: GridSpec, segment: int, data: st.DataObject) -> None:
    model = declared_model(spec, spec.rank_hosts())
    n = model.grid.n_ranks
    sizes = data.draw(st.lists(st.integers(0, 20), min_size=n, max_size=n))
    wait = data.draw(st.sampled_from([0.5, 0.01]))
    trees = owned(model, grow_trees(model, 40_000, hosts_of(model)[2], wait))
    check_plan(plan_allgather(trees, sizes, segment))
    check_plan(plan_reduce_scatter(trees, sizes, segment))


SHARED = """version = 1
name = "shared"
[[clusters]]
name = "a"
hosts = 3
nic = "100 Mbit/s"
slots = 3
[[clusters]]
name = "b"
hosts = 2
nic = "50 Mbit/s"
slots = 2
uplink = "70 Mbit/s"
[[clusters]]
name = "c"
hosts = 2
nic = "120 Mbit/s"
[[links]]
between = ["a", "b"]
latency = "9 ms"
rate = "30 Mbit/s"
[[links]]
between = ["a", "c"]
latency = "10 ms"
rate = "500 Mbit/s"
[[links]]
between = ["b", "c"]
latency = "7 ms"
rate = "400 Mbit/s"
"""


@pytest.mark.parametrize("n_segments", [1, 3])
@pytest.mark.parametrize("wait", [0.5, 0.01])
def test_walks_of_all_owners_take_what_their_plan_takes(n_segments: int, wait: float) -> None:
    """On hosts that ranks share, too: these take turns, as in the walk."""
    spec = parse_gridfile(SHARED)
    model = declared_model(spec, spec.rank_hosts())
    n, n_bytes = model.grid.n_ranks, 12 << 10
    platform, _, home_of = hosts_of(model)
    parents = grow_trees(model, n_bytes, home_of, wait)
    plan = plan_allgather(owned(model, parents), (n_bytes,) * n, n_bytes // n_segments)
    walk = TreeWalk(model, platform, n * n_bytes, DOWNWARDS)
    uses = [(owner, 0) for _ in range(n_segments) for owner in range(n)]
    walked_s = walk.total_s(parents, uses, 0.0)
    assert walked_s == pytest.approx(price_plan(plan, model).makespan_s, rel=0.08)


@pytest.mark.parametrize(("collective", "most"), [("allgather", 1.1), ("reduce_scatter", 1.25)])
def test_where_ranks_share_hosts_trees_avoid_thin_links(collective: str, most: float) -> None:
    spec = parse_gridfile(SHARED)
    model = declared_model(spec, spec.rank_hosts())
    wires = wires_from_spec(spec, spec.rank_hosts())
    winner = choose(collective, model, 1 << 18, 0, grid_only=True).winner
    assert winner.name == "packed-trees"
    assert 1 <= (winner.predicted_s or 0) / limit_s(collective, wires, 1 << 18) <= most


@pytest.mark.parametrize(("collective", "most"), [("allgather", 1.1), ("reduce_scatter", 1.2)])
def test_on_a_patchwork_it_comes_near_the_limit(collective: str, most: float) -> None:
    spec = read_gridfile(HOSTFILES / "patchwork.toml")
    wires = wires_from_spec(spec, spec.rank_hosts())
    winner = choose(collective, unlike_model(), 1 << 16, 0, grid_only=True).winner
    assert winner.name == "packed-trees"
    assert 1 <= (winner.predicted_s or 0) / limit_s(collective, wires, 1 << 16) <= most


@pytest.mark.parametrize("upwards", [False, True])
def test_thin_uplinks_carry_little_more_than_they_must(upwards: bool) -> None:
    """Four blocks have to leave. With a wide uplink, ten or more leave, or are handed on."""
    text = SHARED.replace("70 Mbit/s", "40 Mbit/s").replace("50 Mbit/s", "100 Mbit/s")
    spec = parse_gridfile(text.replace("30 Mbit/s", "400 Mbit/s"))
    model = declared_model(spec, spec.rank_hosts())
    home_of = hosts_of(model)[2]
    trees = grow_trees(_reversed(model) if upwards else model, 1 << 18, home_of, 0.2)
    behind = {home_of[rank] for rank in model.grid.clusters[1].ranks}
    leaving = [
        host
        for tree in trees
        for host, parent in enumerate(tree)
        if parent in behind and host not in behind
    ]
    assert len(leaving) <= 7


def test_rivals_are_simulated_too() -> None:
    """A formula that is too low would win against them."""
    spec = parse_gridfile(SHARED)
    model = declared_model(spec, spec.rank_hosts())
    found = choose("allgather", model, 1 << 14, 0, grid_only=True).candidates
    for name in ("lanes", "ring"):
        rival = min(
            (each for each in found if each.name == name and each.build),
            key=lambda each: abs((each.predicted_s or 0) - simulated_s(each, model)),
        )
        assert rival.predicted_s == pytest.approx(simulated_s(rival, model))


def simulated_s(each: Candidate, model: GridModel) -> float:
    assert each.build is not None
    return price_plan(each.build(1 << 14), model).makespan_s


def test_slow_interfaces_hand_on_next_to_nothing() -> None:
    model = unlike_model()
    slow = set(model.grid.clusters[3].ranks)
    trees = grow_trees(model, 1 << 16, range(model.grid.n_ranks), 0.5)
    others = [(owner, parent) for owner, tree in enumerate(trees) for parent in tree]
    handed_on = sum(parent in slow and parent != owner for owner, parent in others)
    assert handed_on < 0.1 * len(trees) * (len(trees) - 1)


@pytest.mark.parametrize("grid", ["three-sites", "grid5000", "one-cluster"])
def test_even_grids_are_left_alone(grid: str) -> None:
    spec = read_gridfile(HOSTFILES / f"{grid}.toml")
    model = declared_model(spec, spec.rank_hosts())
    for collective in ("allgather", "reduce_scatter"):
        assert not REGISTRIES[collective]["packed-trees"].candidates(model, 1 << 20, 0)
