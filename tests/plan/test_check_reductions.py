"""Every contribution once, in order where that is asked for: good plans with one thing changed."""

from __future__ import annotations

import pytest

from gridcoll.plan import Chunk, Copy, Recv, Reduce, check_plan
from tests.plan.handmade import SUM, exchange, out, plan, refused, summed

pytestmark = pytest.mark.usefixtures("sum_everywhere")


def test_a_good_plan_passes() -> None:
    """Else every refusal below would prove nothing."""
    check_plan(summed(exchange()), rank_order=True)


def test_missing_contribution() -> None:
    programs = exchange()
    del programs[0][3]
    refused(
        summed(programs),
        "rank 0, output[0:8]",
        "must leave unit 0 of rank 0 + unit 0 of rank 1 there, but it holds unit 0 of rank 0",
    )


def test_duplicate_contribution() -> None:
    programs = exchange()
    programs[0].append(Reduce(Chunk("scratch", 0, 8), out(0, 8), source_first=False))
    refused(
        summed(programs),
        "rank 0, output[0:8]",
        "holds unit 0 of rank 0 + unit 0 of rank 1 + unit 0 of rank 1",
    )


def test_duplicate_contribution_in_part() -> None:
    programs = exchange()
    programs[1].append(Reduce(Chunk("scratch", 2, 4), out(2, 4)))
    refused(summed(programs), "rank 1, output[2:4]", "holds unit 2 of rank 0 + unit 2 of rank 0 +")


def test_contribution_of_other_units() -> None:
    programs = exchange()
    programs[0][3] = Reduce(Chunk("scratch", 0, 4), out(0, 4), source_first=False)
    programs[0].append(Reduce(Chunk("scratch", 0, 4), out(4, 8), source_first=False))
    refused(summed(programs), "rank 0, output[4:8]", "unit 4 of rank 0 + unit 0 of rank 1")


def test_pieces_may_be_cut_anywhere() -> None:
    """Runs that begin and end elsewhere on both sides of a reduction are the same units."""
    programs = exchange()
    programs[0][0:1] = [
        Copy(Chunk("input", 0, 3), out(0, 3)),
        Copy(Chunk("input", 3, 8), out(3, 8)),
    ]
    programs[1][2:3] = [
        Recv(0, Chunk("scratch", 0, 8), 0),
        Copy(Chunk("scratch", 5, 8), Chunk("scratch", 8, 11)),
        Copy(Chunk("scratch", 8, 11), Chunk("scratch", 5, 8)),
    ]
    check_plan(plan(programs, SUM, root=-1, scratch_units=(8, 11)), rank_order=True)


def test_order_counts_only_where_asked_for() -> None:
    programs = exchange()
    programs[0][3] = Reduce(Chunk("scratch", 0, 8), out(0, 8), source_first=True)
    check_plan(summed(programs))
    refused(
        summed(programs),
        "rank 0, output[0:8]",
        "holds unit 0 of rank 1 + unit 0 of rank 0",
        rank_order=True,
    )
