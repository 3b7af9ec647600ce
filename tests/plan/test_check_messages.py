"""Every message has a sender, a receiver and an end: good plans with one thing changed."""

from __future__ import annotations

import pytest

from gridcoll.plan import Chunk, Copy, Op, Recv, Send, check_plan
from gridcoll.plan.statements import STATEMENTS, Contribution, Statement
from tests.plan.handmade import SUM, chain, out, plan, refused


def test_a_good_plan_passes() -> None:
    """Else every refusal below would prove nothing."""
    check_plan(plan(chain()))


def test_missing_message() -> None:
    programs = chain()
    del programs[1][3]
    refused(
        plan(programs), "rank 2, op 1 (recv output[4:8] from 1 tag 1)", "rank 1 has no matching"
    )


def test_unmatched_send() -> None:
    programs = chain()
    del programs[2][1]
    refused(
        plan(programs),
        "rank 1, op 3 (send output[4:8] to 2 tag 1)",
        "rank 2 has no matching receive",
    )


def test_size_mismatch() -> None:
    programs = chain()
    programs[2][1] = Recv(1, out(4, 7), 1)
    refused(
        plan(programs),
        "rank 2, op 1 (recv output[4:7] from 1 tag 1): 3 units expected",
        "rank 1, op 3 (send output[4:8] to 2 tag 1) has 4",
    )


def test_a_tag_used_twice() -> None:
    programs = chain()
    programs[1][3] = Send(2, out(4, 8), 0)
    refused(plan(programs), "rank 1, op 3", "tag used twice towards that peer")


@pytest.mark.parametrize("peer", [3, -1, 1])
def test_a_peer_that_is_none(peer: int) -> None:
    programs = chain()
    programs[1][1] = Send(peer, out(0, 4), 0)
    refused(plan(programs), "rank 1, op 1", "peer must be another rank below 3")


def test_leave_to_send_that_nobody_gives() -> None:
    programs = chain()
    programs[0][1] = Send(1, out(4, 8), 1, after=Chunk("scratch", 0, 1))
    refused(
        plan(programs, scratch_units=(1, 0, 0)),
        "rank 0, op 1 (send output[4:8] to 1 tag 1 after scratch[0:1])",
        "scratch[0:1] is read before anything is in it",
    )


def test_leave_to_send_beyond_the_scratch() -> None:
    programs = chain()
    programs[0][1] = Send(1, out(4, 8), 1, after=Chunk("scratch", 0, 2))
    refused(plan(programs, scratch_units=(1, 0, 0)), "rank 0, op 1", "has 1 units of scratch")


def test_deadlock_of_sends_that_wait_for_each_other() -> None:
    """Each sends only what it gets from the other, whose data it overwrites before."""
    a = Chunk("scratch", 0, 8)
    programs: list[list[Op]] = [
        [Recv(1, a, 0), Send(1, a, 0)],
        [Recv(0, a, 0), Send(0, a, 0)],
    ]
    refused(
        plan(programs, scratch_units=(8, 8)),
        "deadlock: rank 0, op 0 (recv scratch[0:8] from 1 tag 0) waits for a send that never",
    )


def test_deadlock_of_receives_in_another_order_than_sends() -> None:
    """The second message cannot be received before the first, whose buffer it must empty."""
    s, t = Chunk("scratch", 0, 4), Chunk("scratch", 4, 8)
    programs: list[list[Op]] = [
        [Send(1, out(0, 4), 0), Recv(1, s, 9), Send(1, s, 1)],
        [Recv(0, s, 1), Recv(0, t, 0), Send(0, t, 9)],
    ]
    refused(plan(programs, scratch_units=(8, 8)), "deadlock: rank 0, op 1", "never starts")


@pytest.mark.usefixtures("sum_everywhere")
def test_a_send_may_not_end_before_it_is_received() -> None:
    """Two ranks that send first and receive into what they sent need buffering MPI never promised.

    Rank 0 can only overwrite ``output`` when its own send is received, and so for rank 1.
    """
    scratch = Chunk("scratch", 0, 8)
    programs: list[list[Op]] = [
        [Copy(out(0, 8), scratch), Send(1, scratch, 0), Recv(1, scratch, 0)],
        [
            Copy(Chunk("input", 0, 8), scratch),
            Send(0, scratch, 0),
            Recv(0, scratch, 0),
        ],
    ]
    STATEMENTS[SUM] = Statement(
        SUM,
        before=lambda plan, rank: {
            "input": [(8, (Contribution(rank, 0),))],
            "output": [(8, (Contribution(rank, 0),))],
        },
        after=lambda plan, rank: {},
    )
    refused(plan(programs, SUM, scratch_units=(8, 8)), "deadlock: rank 0", "never")


def test_a_send_does_not_end_before_those_that_were_started_before_it() -> None:
    """Of one lane the engine looks at the oldest only: an end behind it is not seen."""
    s = Chunk("scratch", 0, 4)
    programs: list[list[Op]] = [
        [Send(1, out(0, 4), 0), Send(1, out(4, 8), 1), Recv(1, out(4, 8), 0)],
        [Recv(0, s, 1), Send(0, s, 0), Recv(0, s, 0)],
    ]
    refused(
        plan(programs, scratch_units=(0, 4)),
        "deadlock: rank 0, op 0 (send output[0:4] to 1 tag 0) (tag 0) is never received",
    )
