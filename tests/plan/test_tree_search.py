"""The search of trees, and the walk in C and in Python that times them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gridcoll.model.bounds import limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.wires import wires_from_spec
from gridcoll.plan import compiled_walk, meeting_trees, packed_trees, tree_search, tree_walk
from gridcoll.plan.check import check_plan
from gridcoll.plan.cost import price_plan
from gridcoll.plan.multi_tree import plan_bcast_down, plan_reduce_up
from gridcoll.plan.pacing import root_ahead_s
from gridcoll.plan.packed_trees import PackedTrees, best_packed, platform_of
from gridcoll.plan.registry import REGISTRIES
from gridcoll.plan.tree_search import TimedTrees, improved, timed
from gridcoll.plan.tree_walk import (
    BOTH,
    DOWNWARDS,
    TICKS_PER_S,
    UPWARDS,
    TreeWalk,
    children_of,
    use_in_turns,
)
from gridcoll.topology.gridfile import GridSpec, parse_gridfile
from tests.plan.test_meeting_trees import named
from tests.plan.test_packed_trees import unlike_grids

Walk = tuple[TreeWalk, tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...], float]


def draw_trees(draw: st.DrawFn, n_hosts: int, root: int) -> tuple[tuple[int, ...], ...]:
    """One to three trees over the hosts, from ``root`` if it is not -1, else with one to 4 tops."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        order = [h for h in draw(st.permutations(range(n_hosts))) if h != root]
        order = [root, *order] if root >= 0 else order
        parents, n_tops = [-1] * n_hosts, 1
        for at, host in enumerate(order[1:], 1):
            tops = [-1] if root < 0 and n_tops < 4 else []
            parents[host] = draw(st.sampled_from([*tops, *order[:at]]))
            n_tops += parents[host] < 0
        found.append(tuple(parents))
    return tuple(found)


@st.composite
def walks(draw: st.DrawFn) -> Walk:
    """Draw a walk in Python, trees, how they are used in turn, and the period of contributions."""
    spec = draw(unlike_grids(4))
    model = declared_model(spec, spec.rank_hosts())
    uplinks = draw(st.lists(st.sampled_from([np.inf, 4e6]), min_size=model.n_clusters))
    model = replace(model, uplink_bytes_per_s=tuple(uplinks[: model.n_clusters]))
    way = draw(st.sampled_from([BOTH, UPWARDS, DOWNWARDS]))
    root = -1 if way == BOTH else draw(st.sampled_from([-1, 0]))
    platform, _ = platform_of(model, root)
    top = platform.kind_of.index(platform.root) if root >= 0 else -1
    if way != BOTH and root < 0:  # an owner's tree has one top
        top = draw(st.integers(0, len(platform.kind_of) - 1))
    trees = draw_trees(draw, len(platform.kind_of), top)
    shares = tuple(1 / len(trees) for _ in trees)
    uses = use_in_turns(shares, draw(st.integers(1, 20)))
    period_s = draw(st.sampled_from([0.0, 1e-4, 3e-3]))
    n_bytes = draw(st.sampled_from([1 << 10, 1 << 16, 1 << 20]))
    walk = TreeWalk(model, platform, n_bytes, way)
    walk._compiled = None
    return walk, trees, uses, period_s


@settings(max_examples=60, deadline=None)
@given(drawn=walks(), most_s=st.sampled_from([float("inf"), 0.02]))
def test_the_walk_in_c_takes_the_very_same_time(drawn: Walk, most_s: float) -> None:
    """To the last bit, and by as many messages: else ranks would choose different trees."""
    walk, *call = drawn
    found = [(walk.total_s(*call, most_s), walk.n_messages)]
    walk._compiled, walk.n_messages = compiled_walk.load_walk(), 0
    assert walk._compiled is not None, "not compiled: install gridcoll with a C compiler"
    found.append((walk.total_s(*call, most_s), walk.n_messages))
    assert found[0] == found[1]


@settings(max_examples=60, deadline=None)
@given(drawn=walks(), in_c=st.booleans())
def test_a_walk_ends_early_only_if_it_takes_too_long(drawn: Walk, in_c: bool) -> None:
    walk, *call = drawn
    walk._compiled = compiled_walk.load_walk() if in_c else None
    total_s, n_messages = walk.total_s(*call), walk.n_messages
    assert walk.total_s(*call, total_s) == total_s
    assert walk.n_messages == 2 * n_messages
    assert walk.total_s(*call, total_s - 1 / TICKS_PER_S) == np.inf


@pytest.mark.parametrize(
    ("grid", "shape", "n_segments"),
    [("patchwork", "line", 1), ("patchwork", "star", 32), ("three-sites", "star", 32)],
)
def test_a_walk_ends_once_it_is_clear_that_it_takes_too_long(
    grid: str, shape: str, n_segments: int
) -> None:
    """Almost at once if the path is too long, or a thin link or the root has too much to send."""
    _, model = named(grid)
    platform, _ = platform_of(model, 0)
    root = platform.kind_of.index(platform.root)
    order = [root, *(host for host in range(len(platform.kind_of)) if host != root)]
    parents = [-1] * len(order)
    for above, below in pairwise(order):
        parents[below] = above if shape == "line" else root
    walk = TreeWalk(model, platform, 1 << 20, DOWNWARDS)
    call = (parents,), use_in_turns((1.0,), n_segments), 0.0
    total_s, n_messages = walk.total_s(*call), walk.n_messages
    assert walk.total_s(*call, 0.9 * total_s) == np.inf
    assert walk.n_messages - n_messages < 0.1 * n_messages


@settings(max_examples=25, deadline=None)
@given(spec=unlike_grids(4), upwards=st.booleans(), data=st.data())
def test_walks_from_and_to_a_root_take_what_their_plans_take(
    spec: GridSpec, upwards: bool, data: st.DataObject
) -> None:
    model = declared_model(spec, spec.rank_hosts())
    platform, kinds = platform_of(model, 0)
    (tree, *_) = draw_trees(data.draw, len(platform.kind_of), platform.kind_of.index(platform.root))
    n, unit_bytes = data.draw(st.integers(1, 12)), 64
    uses, period_s = use_in_turns((1.0,), n), data.draw(st.sampled_from([0.0, 2e-3]))
    packed = PackedTrees(model.grid, kinds, (tree,), uses, (children_of(platform, tree),), 0)
    if upwards:
        plan = plan_reduce_up(packed, 64 * n, 64, "", period_s / 64)
    else:
        plan = plan_bcast_down(packed, 64 * n, 64, "", period_s / 64, root_ahead_s(model, 0))
    check_plan(plan)
    walk = TreeWalk(model, platform, 64 * n * unit_bytes, UPWARDS if upwards else DOWNWARDS)
    planned_s = price_plan(plan, model, unit_bytes=unit_bytes).makespan_s
    slowest_s = 64 * unit_bytes * max(1 / rate for rate in platform.rates)
    walked_s = walk.total_s((tree,), uses, period_s)
    assert walked_s == pytest.approx(planned_s, rel=0.1, abs=4 * slowest_s)


@pytest.mark.parametrize(
    ("collective", "n_bytes", "most"),
    [("bcast", 16 << 10, 1.16), ("bcast", 64 << 10, 1.18), ("reduce", 64 << 10, 1.18)],
)
def test_searched_trees_are_near_the_limit(collective: str, n_bytes: int, most: float) -> None:
    """On the patchwork, formulas alone found trees of 1.21, 1.31 and 1.38 times the limit."""
    spec, model = named("patchwork")
    (found,) = REGISTRIES[collective]["packed-trees"].candidates(model, n_bytes, 0)
    assert found.build
    assert found.predicted_s
    plan = found.build(n_bytes // 8)
    check_plan(plan)
    limit = limit_s(collective, wires_from_spec(spec, spec.rank_hosts()), n_bytes)
    simulated_s = price_plan(plan, model, unit_bytes=8).makespan_s
    assert 1 <= simulated_s / limit <= most
    assert found.predicted_s == pytest.approx(simulated_s, rel=0.02)


@pytest.mark.parametrize("root", [-1, 0])
def test_without_a_compiler_the_same_trees_are_found(
    root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_search, "MOST_MESSAGES", 5_000)
    monkeypatch.setattr(meeting_trees, "MOST_MESSAGES", 5_000)
    monkeypatch.setattr(meeting_trees, "MOST_CHANGED_MESSAGES", 5_000)
    _, model = named("unlike-hosts")
    compiled = best_packed(model, 64 << 10, root)
    monkeypatch.setattr(compiled_walk, "load_walk", lambda: None)
    assert best_packed(model, 64 << 10, root) == compiled


@pytest.mark.parametrize("root", [-1, 0])
@pytest.mark.parametrize("grid", ["patchwork", "unlike-hosts", "thin-wan"])
def test_machines_that_differ_in_the_last_bit_find_the_same(
    grid: str, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = named(grid)
    found = best_packed(model, 64 << 10, root)
    link_times_s, random = tree_walk.link_times_s, np.random.default_rng(1)

    def other(*arguments: Any) -> tuple[np.ndarray, ...]:
        """The same times, some of them the next number."""
        times = link_times_s(*arguments)
        return tuple(np.nextafter(t, np.where(random.random(t.shape) < 0.5, t, 9.0)) for t in times)

    monkeypatch.setattr(tree_walk, "link_times_s", other)
    again = best_packed(model, 64 << 10, root)
    assert found
    assert again == found


def test_more_segments_must_save_more_than_their_messages_cost() -> None:
    _, model = named("patchwork")
    platform, _ = platform_of(model, 0)
    known = best_packed(model, 64 << 10, 0)
    assert known
    start = TimedTrees(0.0, known.trees.trees, known.shares, 8, 0.0)
    n_segments = []
    for overhead_s in (0.0, 1.0):
        walk = TreeWalk(model, platform, 64 << 10)
        walk.overhead_s = overhead_s
        n_segments.append(improved(walk, platform, 64 << 10, timed(walk, start), 50_000).n_segments)
    assert n_segments[0] > 8 >= n_segments[1]


def test_a_library_of_another_version_is_not_used(
    tmp_path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = tmp_path / "_walk.so"
    other.write_bytes(b"not a library")
    monkeypatch.setattr(compiled_walk, "LIBRARY", other)
    compiled_walk.load_walk.cache_clear()
    try:
        assert compiled_walk.load_walk() is None
    finally:
        compiled_walk.load_walk.cache_clear()
    assert "install gridcoll again" in caplog.text


def test_on_even_grids_nothing_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    def search(*_: object) -> None:
        raise AssertionError("a search")

    for name in ("rooted_trees", "meeting_trees"):
        monkeypatch.setattr(packed_trees, name, search)
    _, model = named("three-sites")
    assert best_packed(model, 64 << 10, 0)
    assert best_packed(model, 64 << 10)
    with pytest.raises(AssertionError):
        best_packed(named("patchwork")[1], 64 << 10, 0)


UNLIKE_SITES = """
version = 1
name = "unlike"

[[clusters]]
name = "fast"
hosts = 5
nic = "200 Mbit/s"

[[clusters]]
name = "slow"
hosts = 4
nic = "50 Mbit/s"

[[clusters]]
name = "third"
hosts = 2
nic = "100 Mbit/s"

[[links]]
between = ["fast", "slow"]
latency = "4 ms"
rate = "60 Mbit/s"

[[links]]
between = ["fast", "third"]
latency = "3.2 ms"
rate = "30 Mbit/s"

[[links]]
between = ["slow", "third"]
latency = "5 ms"
rate = "30 Mbit/s"
"""


@pytest.mark.parametrize(
    ("root", "most_s"),
    [
        (0, 19.5e-3),  # from packed trees alone, a broadcast ends at 21.2 ms,
        (-1, 24.5e-3),  # and an allreduce at 26.4 ms
    ],
)
def test_a_search_also_starts_from_a_tree_per_cluster(root: int, most_s: float) -> None:
    spec = parse_gridfile(UNLIKE_SITES)
    model = declared_model(spec, spec.rank_hosts())
    found = best_packed(model, 64 << 10, root)
    assert found is not None
    assert len({tree for tree, _ in found.trees.uses}) > 1
    assert found.total_s < most_s


def test_a_start_that_is_not_searched_keeps_its_prediction() -> None:
    """A simulated time would be compared with predictions of other algorithms."""
    _, model = named("patchwork")
    platform, _ = platform_of(model, 0)
    hosts = range(len(platform.kind_of))
    star = tuple(-1 if platform.kind_of[h] == platform.root else 0 for h in hosts)
    chain = tuple(h - 1 for h in hosts)
    busy, idle = (TimedTrees(1.0, (star,), (1.0,), 16, part) for part in (0.9, 0.1))
    slow = TimedTrees(9.0, (chain,), (1.0,), 16, 0.9)
    starts = [busy, slow]
    assert tree_search.rooted_trees(model, platform, 64 << 10, starts, False) is busy
    assert tree_search.rooted_trees(model, platform, 64 << 10, [idle, slow], False) is not idle
