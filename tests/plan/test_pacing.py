"""Sends over links that are thinner than interfaces: no faster than these carry."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import replace

from gridcoll.constants import LINK_PACE
from gridcoll.plan import Plan, Send, choose
from gridcoll.plan.allreduce.costs import costs_of, price_pieces, unit_bytes_of
from gridcoll.plan.allreduce.lanes import cut_columns
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.pacing import paced_by_links, thin_links
from gridcoll.plan.trees import RankTree
from tests.plan.grids import model_of, thin_grid

RATE, LATENCY_S = 1e6, 5e-3
"""Of the links of `thin_grid`."""

SEGMENT = 10_000
STEP_US = LINK_PACE * SEGMENT / RATE * 1e6


def dues_us(plan: Plan) -> Mapping[tuple[int, int], list[int]]:
    found: dict[tuple[int, int], list[int]] = {}
    for rank, program in enumerate(plan.programs):
        for op in program:
            if isinstance(op, Send):
                found.setdefault((rank, op.peer), []).append(op.due_us)
    return found


def star(n_segments: int) -> Plan:
    """Rank 0 sends to 1 of its cluster, 2 and 4 of two others, which send to 3 and 5."""
    tree = RankTree(0, ((2, 4, 1), (), (3,), (), (5,), ()))
    return plan_bcast([tree], n_segments * SEGMENT, SEGMENT)


def head_start(step_us: float, n: int) -> list[float]:
    return [max(k * step_us - 1e6 * LATENCY_S, 0.0) for k in range(n)]


def test_every_link_is_given_what_it_carries() -> None:
    """A latency early: as much fits on the link. Inside clusters nothing waits."""
    found = dues_us(paced_by_links(star(6), thin_grid([0, 0, 1, 1, 2, 2])))
    assert found.keys() == {(0, 1), (0, 2), (0, 4), (2, 3), (4, 5)}
    for peer in (2, 4):
        assert found[0, peer] == pytest.approx(head_start(STEP_US, 6), abs=1)
    assert found[0, 2][-1] > 0
    assert not any(due for ends in ((0, 1), (2, 3), (4, 5)) for due in found[ends])


def test_members_who_all_send_have_a_part_of_it_each() -> None:
    found = dues_us(paced_by_links(star(6), thin_grid([0, 0, 1, 1, 2, 2]), all_send=True))
    assert found[0, 2] == pytest.approx(head_start(2 * STEP_US, 6), abs=1)


def test_units_are_of_many_bytes() -> None:
    found = dues_us(paced_by_links(star(6), thin_grid([0, 0, 1, 1, 2, 2]), 8.0))
    assert found[0, 2] == pytest.approx(head_start(8 * STEP_US, 6), abs=1)


def test_what_is_sent_on_counts_as_sent() -> None:
    """A chain over three clusters: each link has its own times, and inside there are none."""
    tree = RankTree(0, ((1,), (2,), (3,), (4,), (5,), ()))
    plan = plan_bcast([tree], 6 * SEGMENT, SEGMENT)
    found = dues_us(paced_by_links(plan, thin_grid([0, 0, 1, 1, 2, 2])))
    assert found[1, 2] == found[3, 4] == pytest.approx(head_start(STEP_US, 6), abs=1)
    assert not any(found[0, 1] + found[2, 3] + found[4, 5])


def test_where_no_link_is_thin_nothing_changes() -> None:
    plan = star(6)
    wide = thin_grid([0, 0, 1, 1, 2, 2], bytes_per_s=12.5e6)
    assert paced_by_links(plan, wide) is plan
    assert paced_by_links(plan, model_of([0] * 6)) is plan


def test_thin_is_what_carries_less_than_an_interface() -> None:
    """Of the sender, whether one flow does or several together."""
    labels = [0, 0, 1, 1, 2, 2]
    outside = ~np.eye(3, dtype=bool)
    assert (thin_links(thin_grid(labels)) == outside).all()
    assert not thin_links(thin_grid(labels, 11e6)).any()
    several = replace(thin_grid(labels), aggregate_bytes_per_s=((12e6,) * 3,) * 3)
    assert not thin_links(several).any()


@pytest.mark.parametrize(("n_bytes", "n_units", "found"), [(80, 10, 8), (90, 10, 8), (10, 10, 1)])
def test_the_size_of_an_element_is_never_overestimated(
    n_bytes: int, n_units: int, found: float
) -> None:
    """A class of sizes has up to a quarter more bytes than a call of it."""
    assert unit_bytes_of(n_units, n_bytes) == found


@pytest.mark.parametrize(
    ("collective", "algorithm", "part"),
    [
        ("bcast", "chain", 1),
        ("bcast", "split", 1),
        ("allreduce", "shares", 4),
        ("allreduce", "lanes", 4),
        ("allreduce", "rank-order", 4),
        ("allreduce", "leaders", 1),
    ],
)
def test_plans_over_thin_links_send_as_they_carry(
    collective: str, algorithm: str, part: int
) -> None:
    """Every cluster gives a link no more than it carries, but for what it may hold."""
    model = thin_grid([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2])
    n_bytes, unit = 1 << 20, 8 if collective == "allreduce" else 1
    candidates = choose(collective, model, n_bytes, 0, forced=algorithm).candidates
    build = next(each.build for each in candidates if each.name == algorithm)
    assert build is not None
    plan = build(n_bytes // unit)
    for rank, program in enumerate(plan.programs):
        sent = dict.fromkeys(range(3), 0)
        for op in program:
            there = model.grid.cluster_of[op.peer] if isinstance(op, Send) else -1
            if isinstance(op, Send) and there != model.grid.cluster_of[rank]:
                carried = (op.due_us * 1e-6 + LATENCY_S) * RATE / LINK_PACE / part
                assert sent[there] <= carried + 8
                assert sent[there] >= carried - 8 or not op.due_us
                sent[there] += op.chunk.size * unit


@pytest.mark.parametrize(("bytes_per_s", "waits"), [(1e6, 0.04), (4e6, 0.16)])
def test_thin_links_do_not_wait_for_what_members_send_first(
    bytes_per_s: float, waits: float
) -> None:
    """That keeps an interface, of which they need a small part."""
    n_bytes = 12 << 17
    model = thin_grid([0] * 4 + [1] * 4 + [2] * 4, bytes_per_s)
    costs, cut = costs_of(model, n_bytes, 1 << 12), cut_columns(model.grid, n_bytes, True)
    found = float(price_pieces(costs, model.grid, cut, [1] * 3, "flat").min())
    crosses_s, members_s = 2 / 3 * n_bytes / bytes_per_s, 3 / 4 * n_bytes / 12.5e6
    assert found == pytest.approx(crosses_s + waits * members_s, rel=0.05)
