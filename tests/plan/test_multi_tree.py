"""Several trees: right on any grid, as long as predicted, nobody busier than was counted."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.errors import PlanError
from gridcoll.model import GridModel, declared_model
from gridcoll.model.bounds import limit_s
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan import REGISTRIES, Send, check_plan
from gridcoll.plan.cost import price_plan
from gridcoll.plan.multi_tree import (
    MultiTree,
    Transfers,
    grow_tree,
    plan_allreduce_up_down,
    plan_bcast_down,
    plan_reduce_up,
)
from gridcoll.plan.multi_tree_cost import best_trees, busiest, nearest_to_all
from gridcoll.plan.pacing import thin_links
from gridcoll.topology import Grid
from gridcoll.topology.gridfile import GridSpec, parse_gridfile
from tests.plan.grids import model_of

COLLECTIVES = ("bcast", "reduce", "allreduce")


def even(n_clusters: int, n_hosts: int, slots: int = 1) -> GridModel:
    """Clusters alike, several ranks on each host if asked for."""
    labels = [c for c in range(n_clusters) for _ in range(n_hosts * slots)]
    model = model_of(labels, together=1e9)
    hosts = [f"h{rank // slots}" for rank in range(len(labels))]
    return replace(model, grid=Grid.from_labels(labels, hosts))


@st.composite
def trees(draw: st.DrawFn, most_ranks: int) -> MultiTree:
    """Any trees over any grid: ranks dealt out anyhow over clusters and hosts."""
    n = draw(st.integers(1, most_ranks))
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    labels = rng.integers(0, draw(st.integers(1, 12)), n).tolist()
    n_hosts = draw(st.integers(1, n))
    grid = Grid.from_labels(labels, [f"h{host}" for host in rng.integers(0, n_hosts, n)])
    root = draw(st.integers(-1, n - 1))
    top = grid.cluster_of[root] if root >= 0 else draw(st.integers(0, len(grid.clusters) - 1))
    latency_s = rng.random((len(grid.clusters),) * 2)
    most = rng.integers(1, 5, len(grid.clusters)).tolist()
    shape = draw(st.sampled_from(["binary", "binomial", "flat", "chain", "3-chain"]))
    transfers = grow_tree(latency_s, top, most)
    in_turn: tuple[Transfers, ...] = ()
    if root < 0 and draw(st.booleans()):  # each of several groups of clusters has its own trees
        transfers = tuple(each for each in transfers if rng.random() < draw(st.floats(0.3, 1.0)))
    else:
        others = [rng.integers(0, 5, len(most)).tolist() for _ in range(draw(st.integers(0, 2)))]
        in_turn = tuple(grow_tree(latency_s, top, most) for most in others)
    n_trees = draw(st.integers(1, 9 // (1 + len(in_turn)))) * (1 + len(in_turn))
    return MultiTree(grid, top, transfers, shape, n_trees, root, in_turn)


@settings(max_examples=40, deadline=None)
@given(trees(24), st.integers(0, 40), st.integers(1, 12))
def test_any_trees_over_any_grid_are_right(some: MultiTree, n_units: int, segment: int) -> None:
    """Matched, free of deadlocks, and everybody ends up with what he should."""
    check_plan(plan_allreduce_up_down(some, n_units, segment, unit_s=1e-6))
    if some.root >= 0:
        check_plan(plan_bcast_down(some, n_units, segment))
        check_plan(plan_reduce_up(some, n_units, segment, unit_s=1e-6))


@settings(max_examples=6, deadline=None)
@given(trees(300))
@pytest.mark.long
def test_hundreds_of_ranks_are_right(some: MultiTree) -> None:
    check_plan(plan_allreduce_up_down(some, 24, 2))
    if some.root >= 0:
        check_plan(plan_bcast_down(some, 24, 2))
        check_plan(plan_reduce_up(some, 24, 2))


def test_a_broadcast_needs_a_root() -> None:
    rootless = MultiTree(Grid.from_labels([0, 0]), 0, (), "binary", 1)
    for plan in (plan_bcast_down, plan_reduce_up):
        with pytest.raises(PlanError, match="no common root"):
            plan(rootless, 8, 1)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("n_bytes", [8, 64 << 10, 1 << 20])
@pytest.mark.parametrize("size", [(1, 16, 1), (3, 4, 1), (4, 12, 1), (3, 5, 4)])
def test_it_takes_what_was_predicted(
    collective: str, n_bytes: int, size: tuple[int, int, int]
) -> None:
    model = even(*size)
    (found,) = REGISTRIES[collective]["multi-tree"].candidates(model, n_bytes, 1)
    assert found.build is not None
    walked_s = price_plan(found.build(n_bytes), model).makespan_s
    assert walked_s == pytest.approx(found.predicted_s, rel=0.12)


@pytest.mark.parametrize("shape", ["binary", "binomial", "flat"])
@pytest.mark.parametrize(("n_hosts", "n_trees"), [(7, 2), (12, 4), (12, 16), (31, 8)])
def test_the_busiest_host_is_counted(shape: str, n_hosts: int, n_trees: int) -> None:
    """Against the sends of the very plan; every tree has one segment."""
    model = even(3, n_hosts)
    trees = MultiTree(model.grid, 0, ((0, 1), (0, 2)), shape, n_trees)
    plan = plan_allreduce_up_down(trees, n_trees, 1)
    down = [
        sum(isinstance(op, Send) and op.tag >= n_trees for op in program)
        for program in plan.programs
    ]
    n_out = {0: 2, 1: 0, 2: 0}
    for c, cluster in enumerate(model.grid.clusters):
        most = max(down[rank] for rank in cluster.ranks)
        assert max(most / n_trees, 1.0) == pytest.approx(busiest(shape, n_hosts, n_trees, n_out[c]))


def test_two_trees_send_nothing_twice() -> None:
    """Sanders, Speck and Träff: nobody sends more than he gets, but for one vertex."""
    for n_hosts in (8, 16, 64):
        assert busiest("binary", n_hosts, 2, 0) <= 1.5
        assert busiest("binary", n_hosts, 8, 0) <= 1.25
        assert busiest("binary", n_hosts, 1, 0) == 2.0


@given(st.integers(1, 20), st.integers(0, 1 << 20))
def test_a_tree_over_clusters_reaches_all_and_keeps_to_its_limits(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    latency_s, most, top = rng.random((n, n)), rng.integers(0, 4, n), int(rng.integers(n))
    transfers = grow_tree(latency_s, top, most.tolist())
    reached = {top}
    for sender, receiver in transfers:
        assert sender in reached
        assert receiver not in reached
        reached.add(receiver)
    assert reached == set(range(n))
    for sender, count in Counter(sender for sender, _ in transfers).items():
        assert count <= max(most[sender], 1)


def many_small(n_clusters: int, n_hosts: int) -> GridSpec:
    """Clusters on a circle, up to 20 ms apart, each of ``n_hosts``."""
    lines = ["version = 1", 'name = "circle"']
    for k in range(n_clusters):
        lines += ["[[clusters]]", f'name = "c{k}"', f"hosts = {n_hosts}", 'nic = "1 Gbit/s"']
    for a in range(n_clusters):
        for b in range(a):
            far = min(a - b, n_clusters - a + b) / (n_clusters / 2)
            lines += ["[[links]]", f'between = ["c{b}", "c{a}"]', f'latency = "{20 * far:.2f} ms"']
    return parse_gridfile("\n".join(lines))


@pytest.mark.parametrize("n_hosts", [3, 4, 5])
def test_many_small_clusters_take_two_trees_over_clusters(n_hosts: int) -> None:
    """In one, clusters with two others below them would send 1.25 times the message or more."""
    spec = many_small(30, n_hosts)
    model = declared_model(spec, spec.rank_hosts())
    (candidate,) = REGISTRIES["bcast"]["multi-tree"].candidates(model, 64 << 20, 0)
    found = best_trees(model, 64 << 20, 0, 0)
    assert len(found.trees.over_clusters) == 2
    limit = limit_s("bcast", wires_from_spec(spec, spec.rank_hosts()), 64 << 20)
    assert candidate.predicted_s is not None
    assert limit < candidate.predicted_s < 1.25 * limit
    n_below = Counter(sender for each in found.trees.over_clusters for sender, _ in each)
    assert max(n_below.values()) <= 3


def test_two_trees_over_clusters_take_what_is_predicted() -> None:
    """By a walk through the plan."""
    spec = many_small(12, 3)
    model = declared_model(spec, spec.rank_hosts())
    found = best_trees(model, 16 << 20, 0, 0)
    assert len(found.trees.over_clusters) == 2
    plan = plan_bcast_down(found.trees, 16 << 20, found.segment_bytes)
    assert price_plan(plan, model).makespan_s == pytest.approx(found.total_s, rel=0.1)


def test_few_segments_have_few_trees() -> None:
    """Each tree has as many segments as any other."""
    model = even(6, 20)
    for n_bytes in (0, 8, 5000, 1 << 20):
        found = best_trees(model, n_bytes, 0, 0)
        n_segments = -(-max(n_bytes, 1) // max(found.segment_bytes, 1))
        assert n_segments % found.trees.n_trees == 0


@pytest.mark.parametrize(("n_bytes", "over_limit"), [(64 << 10, 1.11), (1 << 20, 1.3)])
def test_groups_of_clusters_exchange_over_long_ways(n_bytes: int, over_limit: float) -> None:
    """Up to one top and down again is twice the longest way."""
    at = np.repeat(np.arange(3), 2)
    latency_ms = np.where(at[:, None] == at, 1, 30)
    lines = ["version = 1", 'name = "regions"']
    for k, n_hosts in enumerate((9, 2, 1, 12, 7, 3)):
        lines += ["[[clusters]]", f'name = "c{k}"', f"hosts = {n_hosts}", 'nic = "1 Gbit/s"']
    for a, b in combinations(range(len(at)), 2):
        lines += ["[[links]]", f'between = ["c{a}", "c{b}"]', f'latency = "{latency_ms[a, b]} ms"']
    spec = parse_gridfile("\n".join(lines))
    model = declared_model(spec, spec.rank_hosts())
    (found,) = REGISTRIES["allreduce"]["multi-tree"].candidates(model, n_bytes, 0)
    assert found.build is not None
    limit = limit_s("allreduce", wires_from_spec(spec, spec.rank_hosts()), n_bytes)
    assert found.predicted_s <= over_limit * limit
    walked_s = price_plan(found.build(n_bytes), model).makespan_s
    assert walked_s == pytest.approx(found.predicted_s, rel=0.06)


def test_short_messages_go_the_nearest_ways_over_thin_links() -> None:
    """Straight on from the first cluster to the third takes ten times as long as by the second."""
    lines = ["version = 1", 'name = "detour"']
    lines += [f'[[clusters]]\nname = "c{k}"\nhosts = 2\nnic = "1 Gbit/s"' for k in range(3)]
    for ends, latency, rate in (("01", 2, 20), ("12", 2, 1000), ("02", 40, 1000)):
        lines += ["[[links]]", f'between = ["c{ends[0]}", "c{ends[1]}"]']
        lines += [f'latency = "{latency} ms"', f'rate = "{rate} Mbit/s"']
    spec = parse_gridfile("\n".join(lines))
    model = declared_model(spec, spec.rank_hosts())
    assert thin_links(model).any()
    for collective in COLLECTIVES:
        (found,) = REGISTRIES[collective]["multi-tree"].candidates(model, 1000, 0)
        limit = limit_s(collective, wires_from_spec(spec, spec.rank_hosts()), 1000)
        assert found.predicted_s <= 1.25 * limit
        assert not REGISTRIES[collective]["multi-tree"].candidates(model, 1 << 16, 0)


def test_an_allreduce_turns_where_the_farthest_is_nearest() -> None:
    model = model_of([0, 1, 2], latencies_s=(5e-3, 1e-3, 9e-3))
    latency_s = model.latency_s * (1 - np.eye(3))
    assert latency_s[nearest_to_all(model)].max() == latency_s.max(axis=1).min()
