"""An exchange with ways round thin links."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.cli.models import load_model
from gridcoll.constants import LINK_PACE
from gridcoll.model import GridModel
from gridcoll.model.bounds import alltoall_limit_s
from gridcoll.model.gridmodel import declared_model
from gridcoll.model.routing import whole_parts
from gridcoll.model.wires import wires_from_model, wires_from_spec
from gridcoll.plan import REGISTRIES, Candidate, Plan, Recv, Send, check_plan, choose
from gridcoll.plan.alltoall.messages import tally
from gridcoll.plan.alltoall.relayed import (
    Part,
    at_once_candidates,
    cut_and_route,
    direct_shares,
    longest_way_first,
    may_overflow,
    n_parts_of,
    parts_of,
    plan_relayed,
    relayed_first,
    relayed_messages,
)
from gridcoll.plan.cost import price_plan
from gridcoll.plan.pacing import thin_links
from gridcoll.topology import Grid
from gridcoll.topology.gridfile import parse_gridfile, read_gridfile

HOSTFILES = Path(__file__).parents[3] / "hostfiles"


def offered(model: GridModel, n_bytes: int) -> list[Candidate]:
    return REGISTRIES["alltoall"]["relayed"].candidates(model, n_bytes, 0)


@st.composite
def shares_of(draw: st.DrawFn, n: int) -> np.ndarray:
    """Any ways, also such that make no sense; none by the source itself."""
    of_one = st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n)
    parts = np.array([draw(of_one) for _ in range(n)]).reshape(n, n, n)
    parts[np.arange(n), :, np.arange(n)] = 0
    every = np.arange(n)
    parts[:, every, every] += ~np.eye(n, dtype=bool)
    return np.asarray(parts / np.maximum(parts.sum(axis=2, keepdims=True), 1))


def counts_of(shares: np.ndarray, n_parts: int, sizes: list[int]) -> np.ndarray:
    """Whole parts near ``shares``, of ``n_parts`` per block."""
    n = len(sizes)
    blocks = np.outer(sizes, sizes) * ~np.eye(n, dtype=bool)
    rates = np.full((n, n), 1e6), np.full(n, 1e7), np.full(n, np.inf)
    return whole_parts(shares, blocks * n_parts, blocks.astype(float), *rates)


def plan_of(grid: Grid, shares: np.ndarray, n_units: int, n_parts: int, **more: int) -> Plan:
    counts = counts_of(shares, n_parts, [len(cluster) for cluster in grid.clusters])
    return plan_relayed(grid, cut_and_route(grid, counts), n_units, **more)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_block_arrives_whatever_the_shares(data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, 3), min_size=3, max_size=9))
    grid = Grid.from_labels(labels)
    shares = data.draw(shares_of(len(grid.clusters)))
    n_units, n_parts = data.draw(st.integers(0, 12)), data.draw(st.integers(1, 4))
    check_plan(plan_of(grid, shares, n_units, n_parts))
    for room in (1, 2):  # in as many send buffers: most places are taken again and again
        plan = plan_of(grid, shares, n_units, n_parts, max_buffers=room, least_bytes=0)
        check_plan(plan)
        assert max(plan.scratch_units, default=0) <= room * grid.n_ranks * n_units


def three_by_third() -> tuple[Grid, np.ndarray]:
    """Clusters of 3, 4 and 2; three quarters from the first to the second go by the third."""
    shares = np.zeros((3, 3, 3))
    shares[0, 1] = (0.0, 0.25, 0.75)
    shares[0, 2, 2] = shares[1, 0, 0] = shares[1, 2, 2] = shares[2, 0, 0] = shares[2, 1, 1] = 1.0
    return Grid.from_labels([0] * 3 + [1] * 4 + [2] * 2), shares


def test_parts_meet_the_shares() -> None:
    grid, shares = three_by_third()
    parts = cut_and_route(grid, counts_of(shares, 2, [3, 4, 2]))
    between = [p for p in parts if p.source < 3 <= p.target < 7]
    assert len(between) == 24
    relays = Counter(part.relay for part in between)
    assert relays == {-1: 6, 7: 9, 8: 9}, "a quarter goes straight, the rest by both in turn"
    by_source = Counter(part.source for part in between if part.relay >= 0)
    assert max(by_source.values()) - min(by_source.values()) <= 1


def test_blocks_leave_side_by_side() -> None:
    """At no time has a rank sent much more of one block than of another, or by one way."""
    grid, shares = three_by_third()
    parts = cut_and_route(grid, counts_of(shares, 8, [3, 4, 2]), 8)
    for source in range(9):
        mine = [part for part in parts if part.source == source]
        assert [part.passed for part in mine] == sorted(part.passed for part in mine)
        for until in range(8, 64, 8):
            sent = Counter(part.target for part in mine[:until])
            assert max(sent.values()) - min(sent[t] for t in range(9) if t != source) <= 2
    to_second = [p.relay >= 0 for p in parts if p.source < 3 <= p.target < 7]
    for until in range(4, len(to_second), 4):
        assert abs(sum(to_second[:until]) - 0.75 * until) <= 1


def test_messages_are_those_of_the_plan() -> None:
    model = load_model("patchwork")
    parts = parts_of(model, model.exchange_routes.shares, 1 << 16, 1)
    of_plan = tally(plan_relayed(model.grid, parts, 1))
    given_, due_s = relayed_messages(parts)

    def ends(messages: object) -> Counter[tuple[int, int]]:
        return Counter(zip(messages.source.tolist(), messages.target.tolist(), strict=True))  # type: ignore[attr-defined]

    assert ends(of_plan) == ends(given_)
    assert len(of_plan.needs) == len(given_.needs)
    assert given_.n_blocks.sum() == of_plan.n_blocks.sum()
    assert len(due_s) == len(given_.source)


@pytest.mark.parametrize("n_bytes", [1 << 14, 1 << 16, 1 << 20])
def test_it_takes_what_it_is_priced_at(n_bytes: int) -> None:
    """By a walk through the plan that is run."""
    model = load_model("patchwork")
    for candidate in offered(model, n_bytes):
        assert candidate.build is not None
        walked_s = price_plan(candidate.build(n_bytes), model).makespan_s
        assert candidate.predicted_s == pytest.approx(walked_s, rel=0.05)


def test_a_patchwork_is_relayed_and_close_to_its_limit() -> None:
    model = load_model("patchwork")
    wires = wires_from_model(model)
    for n_bytes in (1 << 14, 1 << 16, 1 << 20):
        choice = choose("alltoall", model, n_bytes, 0)
        assert choice.winner.name == "relayed"
        (direct,) = (c for c in choice.candidates if c.name == "direct" and not c.segment_bytes)
        assert (direct.predicted_s or 0) > 1.8 * (choice.winner.predicted_s or 0)
        limit_s = alltoall_limit_s(wires, n_bytes)
        most = {1 << 14: 1.35, 1 << 16: 1.25, 1 << 20: 1.05}[n_bytes]
        assert limit_s < (choice.winner.predicted_s or 0) < most * limit_s


def test_short_blocks_are_relayed_first() -> None:
    """They have two latencies before them; of long ones, all wires are kept busy alike."""
    model = load_model("patchwork")
    shares = model.exchange_routes.shares
    parts = parts_of(model, shares, 1 << 14, 4)
    moved = relayed_first(parts)
    assert sorted(p[:6] for p in moved) == sorted(p[:6] for p in parts)
    for source in range(model.grid.n_ranks):
        mine = [part for part in moved if part.source == source]
        assert [p.relay < 0 for p in mine] == sorted(p.relay < 0 for p in mine)
        assert [p.due_s for p in mine] == [p.due_s for p in parts if p.source == source]
    assert "first" in choose("alltoall", model, 1 << 14, 0).winner.label
    assert "first" not in choose("alltoall", model, 1 << 20, 0).winner.label


HUB = """
version = 1
name = "hub"
clusters = [
    { name = "a", hosts = 3, nic = "100 Mbit/s" },
    { name = "b", hosts = 2, nic = "100 Mbit/s" },
    { name = "c", hosts = 4, nic = "200 Mbit/s" },
    { name = "d", hosts = 4, nic = "50 Mbit/s" },
]
links = [
    { between = ["a", "b"], latency = "2.1 ms", rate = "1 Gbit/s" },
    { between = ["a", "c"], latency = "25.2 ms", rate = "100 Mbit/s" },
    { between = ["a", "d"], latency = "15.1 ms", rate = "100 Mbit/s" },
    { between = ["b", "c"], latency = "13.7 ms", rate = "50 Mbit/s" },
    { between = ["b", "d"], latency = "3.1 ms", rate = "20 Mbit/s" },
    { between = ["c", "d"], latency = "22.3 ms", rate = "100 Mbit/s" },
]
"""


def test_short_blocks_do_not_wait_for_space_at_a_relay() -> None:
    """Blocks of others leave it after 14 ms, and two send buffers are 208 bytes."""
    spec = parse_gridfile(HUB)
    model = declared_model(spec, spec.rank_hosts())
    candidates = offered(model, 8)
    assert candidates
    for candidate in candidates:
        assert candidate.build is not None
        walked_s = price_plan(candidate.build(8), model).makespan_s
        assert candidate.predicted_s == pytest.approx(walked_s, rel=0.05)


def test_short_blocks_pay_no_second_latency() -> None:
    """A detour costs 12 ms more, and the thin link would be busy for 0.2 ms more."""
    spec = parse_gridfile(THIN)
    model = declared_model(spec, spec.rank_hosts())
    assert not offered(model, 8)
    assert not offered(model, 1 << 10)
    assert offered(model, 1 << 14)


THIN = """
version = 1
name = "thin"
clusters = [
    { name = "a", hosts = 3, nic = "100 Mbit/s" },
    { name = "b", hosts = 3, nic = "100 Mbit/s" },
    { name = "c", hosts = 3, nic = "100 Mbit/s" },
]
links = [
    { between = ["a", "b"], latency = "3 ms", rate = "20 Mbit/s" },
    { between = ["a", "c"], latency = "7 ms", rate = "1 Gbit/s" },
    { between = ["b", "c"], latency = "8 ms", rate = "1 Gbit/s" },
]
"""


@pytest.mark.parametrize("grid", ["three-sites", "thin-wan", "two-sites-thin", "one-cluster"])
def test_where_nothing_is_gained_nothing_is_offered(grid: str) -> None:
    assert not offered(load_model(grid), 1 << 16)


def test_long_blocks_are_cut_so_that_relays_forward_early() -> None:
    grid = load_model("patchwork").grid
    assert n_parts_of(grid, 1 << 20) == 16
    assert n_parts_of(grid, 4 << 10) == 1
    assert n_parts_of(grid, 16 << 10) == 4


def test_sends_to_thin_links_are_paced() -> None:
    candidate = offered(load_model("patchwork"), 1 << 16)[0]
    assert candidate.build is not None
    plan = candidate.build(1 << 16)
    check_plan(plan)
    assert any(op.due_us for p in plan.programs for op in p if isinstance(op, Send))
    scratch = sum(plan.scratch_units)
    relayed = sum(
        op.chunk.size
        for p in plan.programs
        for op in p
        if isinstance(op, Recv) and op.chunk.buffer == "scratch"
    )
    assert scratch == relayed > 0


@pytest.mark.parametrize("n_bytes", [1 << 16, 1 << 20])
def test_no_thin_link_is_sent_more_than_it_carries(n_bytes: int) -> None:
    model = load_model("patchwork")
    thin = thin_links(model)
    assert thin.any()
    parts = parts_of(model, model.exchange_routes.shares, n_bytes, 8)
    cluster_of = model.grid.cluster_of
    for a, b in zip(*np.nonzero(thin), strict=True):
        hops = [(part.source, part.relay if part.relay >= 0 else part.target) for part in parts]
        ends = [
            part
            for part, hop in zip(parts, hops, strict=True)
            if (cluster_of[hop[0]], cluster_of[hop[1]]) == (a, b)
        ]
        sent = 0.0
        for part in ends:
            allowed = (part.due_s + model.latency_s[a, b]) * model.link_bytes_per_s[a, b]
            assert sent <= allowed / LINK_PACE + 2 * n_bytes / part.of
            sent += n_bytes / part.of


def test_relays_take_in_more_as_what_they_hold_leaves() -> None:
    """Two clusters of four exchange all by way of a third one, of one rank."""
    grid = Grid.from_labels([0] * 4 + [1] * 4 + [2])
    shares = np.zeros((3, 3, 3))
    shares[0, 1, 2] = shares[1, 0, 2] = 1.0
    shares[0, 2, 2] = shares[1, 2, 2] = shares[2, 0, 0] = shares[2, 1, 1] = 1.0
    plan = plan_of(grid, shares, 5, 3, least_bytes=0)
    check_plan(plan)
    passed_on = sum(
        op.chunk.size
        for op in plan.programs[8]
        if isinstance(op, Recv) and op.chunk.buffer == "scratch"
    )
    assert passed_on == 32 * 5
    assert max(plan.scratch_units) <= 2 * 9 * 5 < passed_on


def test_what_is_passed_on_does_not_queue_behind_ones_own() -> None:
    """What is its own, a relay spreads over the time that all takes; what it passes on is not."""
    model = load_model("patchwork")
    relayed = offered(model, 1 << 16)[0]
    assert relayed.build is not None
    assert relayed.predicted_s is not None
    plan = relayed.build(1 << 16)
    for program in plan.programs:
        sends = [op for op in program if isinstance(op, Send)]
        own = [op.due_us for op in sends if op.chunk.buffer == "input"]
        assert all(op.due_us == 0 for op in sends if op.chunk.buffer == "scratch")
        assert 0.5 * relayed.predicted_s < max(own) * 1e-6 < relayed.predicted_s
        assert own == sorted(own)


def test_short_blocks_go_the_nearer_way() -> None:
    """From nancy to rennes it is 18 ms, by way of lille 10; no way is longer than 14."""
    spec = read_gridfile(HOSTFILES / "patchwork.toml")
    model = declared_model(spec, spec.rank_hosts())
    winner = choose("alltoall", model, 1 << 10, 0, grid_only=True).winner
    assert winner.name == "relayed"
    assert winner.build
    plan = winner.build(1 << 10)
    check_plan(plan)
    walked_s = price_plan(plan, model).makespan_s
    assert walked_s == pytest.approx(winner.predicted_s, rel=0.07)
    assert walked_s <= 1.15 * alltoall_limit_s(wires_from_spec(spec, spec.rank_hosts()), 1 << 10)


DETOUR = """
version = 1
name = "detour"
clusters = [
    { name = "a", hosts = 3, nic = "100 Mbit/s" },
    { name = "b", hosts = 2, nic = "150 Mbit/s" },
    { name = "c", hosts = 1, nic = "50 Mbit/s" },
]
links = [
    { between = ["a", "b"], latency = "9 ms", rate = "100 Mbit/s" },
    { between = ["a", "c"], latency = "2 ms", rate = "100 Mbit/s" },
    { between = ["b", "c"], latency = "30 ms", rate = "100 Mbit/s" },
]
"""
"""From b to c it is 30 ms, by way of a 11."""


@pytest.mark.parametrize(("n_bytes", "is_chosen"), [(1 << 14, True), (1 << 20, False)])
def test_longer_blocks_go_the_nearer_way_if_that_saves_more_than_it_takes(
    n_bytes: int, is_chosen: bool
) -> None:
    spec = parse_gridfile(DETOUR)
    model = declared_model(spec, spec.rank_hosts())
    assert bool(offered(model, n_bytes)) == is_chosen
    winner = choose("alltoall", model, n_bytes, 0, grid_only=True).winner
    assert (winner.name == "relayed") == is_chosen
    if is_chosen:
        limit_s = alltoall_limit_s(wires_from_spec(spec, spec.rank_hosts()), n_bytes)
        assert winner.predicted_s is not None
        assert winner.predicted_s < 1.3 * limit_s


def test_parts_over_thin_links_leave_early() -> None:
    """Six blocks queue at the thin link; c is farther away, but all of its blocks fit at once."""
    spec = parse_gridfile(THIN)
    model = declared_model(spec, spec.rank_hosts())
    n_bytes = 8 << 10
    parts = parts_of(model, direct_shares(model), n_bytes, 1)
    ordered = longest_way_first(model, n_bytes, False, parts)
    assert sorted(p[:6] for p in ordered) == sorted((*p[:5], p.passed) for p in parts)
    assert not any(part.due_s for part in ordered)
    first = [part.target // 3 for part in ordered if part.source == 0]
    assert first[0] == 1  # 9 blocks take 29 ms and 3, those to c 7
    assert first[-2:] == [0, 0]  # those inside have the shortest way
    # Whatever the order, blocks of one link go round its senders.
    to_b = [part.source for part in ordered if part.source < 3 and part.target // 3 == 1]
    assert all(len(set(to_b[k : k + 3])) == 3 for k in (0, 3, 6))


def test_parts_that_would_overflow_a_queue_leave_by_the_clock() -> None:
    """And no faster than the link carries them, but for a few percent; long ones do not."""
    spec = parse_gridfile(THIN.replace("20 Mbit/s", "4 Mbit/s").replace("= 3, nic", "= 5, nic"))
    model = declared_model(spec, spec.rank_hosts())
    cluster_of = model.grid.cluster_of
    shares = direct_shares(model)
    short, long = 1 << 10, 15 << 9
    assert not may_overflow(model, parts_of(model, shares, short, 1), short)
    assert may_overflow(model, parts_of(model, shares, long, 1), long)
    (at_once,) = at_once_candidates("relayed", "x", model, shares, short)
    assert at_once.build is not None
    sends = [op for p in at_once.build(short).programs for op in p if isinstance(op, Send)]
    assert not any(op.due_us for op in sends)
    ordered = longest_way_first(model, long, True, parts_of(model, shares, long, 1))
    ends = [(cluster_of[part.source], cluster_of[part.target]) for part in ordered]
    due_s = [part.due_s for part, end in zip(ordered, ends, strict=True) if end == (0, 1)]
    apart_s = long / float(model.link_bytes_per_s[0, 1])
    assert np.diff(due_s) == pytest.approx(LINK_PACE * apart_s)
    (paced,) = at_once_candidates("relayed", "x", model, shares, long)
    assert paced.build is not None
    check_plan(paced.build(long))
    walked_s = price_plan(paced.build(long), model).makespan_s
    assert paced.predicted_s == pytest.approx(walked_s, rel=0.05)
    assert not at_once_candidates("relayed", "x", model, shares, 1 << 14)


def test_what_is_relayed_over_a_thin_link_counts_as_its_load() -> None:
    """Nothing overflows on the direct way; two sites' detours over one link do."""
    spec = parse_gridfile(THIN)
    model = declared_model(spec, spec.rank_hosts())
    n_bytes = 8 << 10
    direct = [Part(0, 6, 0, 1, -1, 0.0)] * 20
    assert not may_overflow(model, direct, n_bytes)
    assert may_overflow(model, [Part(0, 6, 0, 1, 3, 0.0)] * 20, n_bytes)


@pytest.mark.parametrize("n_bytes", [1 << 10, 1 << 14])
def test_among_many_ranks_one_order_is_priced(n_bytes: int) -> None:
    """Each takes a tenth of a second there: short blocks at once, long ones by the clock."""
    spec = parse_gridfile(THIN.replace("hosts = 3", "hosts = 23"))
    (candidate,) = offered(declared_model(spec, spec.rank_hosts()), n_bytes)
    assert ("the longest way first" in candidate.label) == (n_bytes < 1 << 13)
