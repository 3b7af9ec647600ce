"""An exchange with ways round thin links."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridcoll.cli.models import load_model
from gridcoll.constants import PACE
from gridcoll.model import GridModel
from gridcoll.model.bounds import alltoall_limit_s
from gridcoll.model.wires import wires_from_model
from gridcoll.plan import REGISTRIES, Candidate, Recv, Send, check_plan, choose
from gridcoll.plan.alltoall.messages import tally
from gridcoll.plan.alltoall.relayed import (
    cut_and_route,
    n_parts_of,
    plan_relayed,
    relayed_messages,
    with_room,
)
from gridcoll.topology import Grid


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


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_every_block_arrives_whatever_the_shares(data: st.DataObject) -> None:
    labels = data.draw(st.lists(st.integers(0, 3), min_size=3, max_size=9))
    grid = Grid.from_labels(labels)
    shares = data.draw(shares_of(len(grid.clusters)))
    n_units, n_parts = data.draw(st.integers(0, 12)), data.draw(st.integers(1, 4))
    check_plan(plan_relayed(grid, shares, n_units, n_parts))
    for room in (1, 2):  # in as many send buffers: most places are taken again and again
        plan = plan_relayed(grid, shares, n_units, n_parts, max_kept=room)
        check_plan(plan)
        assert max(plan.scratch_units, default=0) <= room * grid.n_ranks * n_units


def test_parts_meet_the_shares() -> None:
    clusters = ((0, 1, 2), (3, 4, 5, 6), (7, 8))
    shares = np.zeros((3, 3, 3))
    shares[0, 1] = (0.0, 0.25, 0.75)
    shares[0, 2, 2] = shares[1, 0, 0] = shares[1, 2, 2] = shares[2, 0, 0] = shares[2, 1, 1] = 1.0
    parts = cut_and_route(clusters, tuple(tuple(map(tuple, r)) for r in shares.tolist()), 2)
    between = [p for p in parts if p.source in clusters[0] and p.target in clusters[1]]
    assert len(between) == 24
    relays = Counter(part.relay for part in between)
    assert relays == {-1: 6, 7: 9, 8: 9}, "a quarter goes straight, the rest by both in turn"
    by_source = Counter(part.source for part in between if part.relay >= 0)
    assert max(by_source.values()) - min(by_source.values()) <= 1


def test_messages_are_those_of_the_plan() -> None:
    model = load_model("patchwork")
    shares = model.exchange_routes.shares
    plan = plan_relayed(model.grid, shares, 1, 1)
    of_plan, given_ = tally(plan), relayed_messages(model.grid, shares, 1)

    def ends(messages: object) -> Counter[tuple[int, int]]:
        return Counter(zip(messages.source.tolist(), messages.target.tolist(), strict=True))  # type: ignore[attr-defined]

    assert ends(of_plan) == ends(given_)
    assert len(of_plan.needs) == len(given_.needs)
    assert given_.n_blocks.sum() == of_plan.n_blocks.sum()


def test_a_patchwork_is_relayed_and_close_to_its_limit() -> None:
    model = load_model("patchwork")
    wires = wires_from_model(model)
    for n_bytes in (1 << 14, 1 << 16, 1 << 20):
        choice = choose("alltoall", model, n_bytes, 0)
        assert choice.winner.name == "relayed"
        (direct,) = (c for c in choice.candidates if c.name == "direct" and not c.segment_bytes)
        assert (direct.predicted_s or 0) > 1.8 * (choice.winner.predicted_s or 0)
        limit_s = alltoall_limit_s(wires, n_bytes)
        assert limit_s < (choice.winner.predicted_s or 0) < 1.3 * limit_s


def test_short_blocks_pay_no_second_latency() -> None:
    assert choose("alltoall", load_model("patchwork"), 8, 0).winner.name != "relayed"


@pytest.mark.parametrize("grid", ["three-sites", "thin-wan", "two-sites-thin", "one-cluster"])
def test_where_nothing_is_gained_nothing_is_offered(grid: str) -> None:
    assert not offered(load_model(grid), 1 << 16)


def test_long_blocks_are_cut_so_that_relays_forward_early() -> None:
    grid = load_model("patchwork").grid
    assert n_parts_of(grid, 1 << 20) == 16
    assert n_parts_of(grid, 4 << 10) == 1
    assert n_parts_of(grid, 16 << 10) == 4


def test_sends_to_thin_links_are_paced() -> None:
    (candidate,) = offered(load_model("patchwork"), 1 << 16)
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


def test_relays_take_in_more_as_what_they_hold_leaves() -> None:
    """Two clusters of four exchange all by way of a third one, of one rank."""
    grid = Grid.from_labels([0] * 4 + [1] * 4 + [2])
    shares = np.zeros((3, 3, 3))
    shares[0, 1, 2] = shares[1, 0, 2] = 1.0
    shares[0, 2, 2] = shares[1, 2, 2] = shares[2, 0, 0] = shares[2, 1, 1] = 1.0
    plan = plan_relayed(grid, shares, 5, 3)
    check_plan(plan)
    passed_on = sum(
        op.chunk.size
        for op in plan.programs[8]
        if isinstance(op, Recv) and op.chunk.buffer == "scratch"
    )
    assert passed_on == 32 * 5
    assert max(plan.scratch_units) <= 2 * 9 * 5 < passed_on


def test_what_is_passed_on_does_not_queue_behind_ones_own() -> None:
    """What is its own, a relay spreads over the time that all it sends takes."""
    model = load_model("patchwork")
    plan = with_room(plan_relayed(model.grid, model.exchange_routes.shares, 1 << 16, 2), model)
    check_plan(plan)
    latest = []
    for rank, program in enumerate(plan.programs):
        sends = [op for op in program if isinstance(op, Send)]
        rate = model.flow_bytes_per_s[(model.grid.cluster_of[rank],) * 2]
        own = sum(op.chunk.size for op in sends if op.chunk.buffer == "input")
        passed = sum(op.chunk.size for op in sends if op.chunk.buffer == "scratch")
        assert all(op.due_us == 0 for op in sends if op.chunk.buffer == "scratch")
        latest.append(max(op.due_us for op in sends) * 1e-6 * rate / (own + passed))
    assert max(latest) < PACE
    assert min(latest) > 0.7 * PACE
