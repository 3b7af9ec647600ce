"""What is read is there, and what is left was stated: good plans with one thing changed."""

from __future__ import annotations

import pytest

from gridcoll.errors import PlanError
from gridcoll.plan import Chunk, Copy, Recv, Send, check_plan
from gridcoll.plan.statements import find_statement
from tests.plan.handmade import SUM, chain, exchange, out, plan, refused


def test_a_good_plan_passes() -> None:
    """Else every refusal below would prove nothing."""
    check_plan(plan(chain()))
    check_plan(plan([[], [], []], n_units=0))
    check_plan(plan([[]]))


def test_a_segment_that_nobody_sends_or_expects() -> None:
    """All messages match; the end is not what a broadcast must leave."""
    programs = chain()
    del programs[1][3], programs[2][1]
    refused(
        plan(programs),
        "rank 2, output[4:8]: bcast (made by hand) must leave unit 4 of rank 0 there",
        "but it holds nothing",
    )


def test_wrong_chunk_sent() -> None:
    programs = chain()
    programs[1][3] = Send(2, out(0, 4), 1)
    refused(
        plan(programs),
        "rank 2, output[4:8]",
        "must leave unit 4 of rank 0 there, but it holds unit 0 of rank 0",
    )


def test_wrong_chunk_filled() -> None:
    programs = chain()
    programs[2][1] = Recv(1, out(3, 7), 1)
    refused(plan(programs), "rank 2, output[3:7]", "unit 3 of rank 0 there, but it holds unit 4")


def test_a_result_overwritten_later() -> None:
    programs = chain()
    programs[2].append(Copy(out(0, 2), out(6, 8)))
    refused(plan(programs), "rank 2, output[6:8]", "holds unit 0 of rank 0")


def test_read_before_write() -> None:
    programs = chain()
    programs[1][0], programs[1][1] = programs[1][1], programs[1][0]
    refused(
        plan(programs),
        "rank 1, op 0 (send output[0:4] to 2 tag 0)",
        "output[0:4] is read before anything is in it",
    )


def test_read_of_what_is_only_partly_there() -> None:
    programs = chain()
    programs[1][1:3] = [Send(2, out(0, 6), 0), programs[1][2]]
    programs[2][0] = Recv(1, out(0, 6), 0)
    refused(plan(programs), "rank 1, op 1", "read before anything is in it")


@pytest.mark.usefixtures("sum_everywhere")
def test_scratch_overflow_when_read() -> None:
    programs = exchange()
    refused(
        plan(programs, SUM, root=-1, scratch_units=(8, 7)),
        "rank 1, op",
        "the rank has 7 units of scratch",
    )


def test_scratch_overflow_when_only_written() -> None:
    programs = chain()
    programs[1].append(Copy(out(0, 4), Chunk("scratch", 0, 4)))
    refused(plan(programs), "rank 1, op 4", "the rank has 0 units of scratch")


def test_a_collective_that_nobody_stated() -> None:
    refused(plan([[]], "gossip"), "collective 'gossip': no before/after statement; stated are")
    with pytest.raises(PlanError, match="bcast"):
        find_statement("gossip")
