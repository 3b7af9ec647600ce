"""One broken plan per rule; each is a good one with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gridcoll.errors import PlanError
from gridcoll.plan import Chunk, Copy, Op, Plan, Recv, Reduce, Send, check_plan
from gridcoll.plan.collectives.bcast import RankTree, plan_bcast
from gridcoll.plan.plan import Programs
from gridcoll.plan.statements import STATEMENTS, Contribution, Statement, find_statement

SUM = "sum everywhere, for tests"


@pytest.fixture(autouse=True)
def reduction() -> Iterator[None]:
    """A collective with contributions: every rank's input, summed in every rank's output."""
    STATEMENTS[SUM] = Statement(
        SUM,
        before=lambda plan, rank: {"input": [(plan.n_units, (Contribution(rank, 0),))]},
        after=lambda plan, _: {
            "output": [(plan.n_units, tuple(Contribution(r, 0) for r in range(plan.n_ranks)))]
        },
    )
    yield
    del STATEMENTS[SUM]


def out(start: int, stop: int) -> Chunk:
    return Chunk("output", start, stop)


def plan(programs: list[list[Op]], collective: str = "bcast", **fields: object) -> Plan:
    values: dict[str, object] = {"label": "made by hand", "n_units": 8, "root": 0, **fields}
    return Plan(collective, programs=[tuple(ops) for ops in programs], **values)  # type: ignore[arg-type]


def chain() -> list[list[Op]]:
    """Eight units down 0 → 1 → 2 in two segments."""
    a, b = out(0, 4), out(4, 8)
    return [
        [Send(1, a, 0), Send(1, b, 1)],
        [Recv(0, a, 0), Send(2, a, 0), Recv(0, b, 1), Send(2, b, 1)],
        [Recv(1, a, 0), Recv(1, b, 1)],
    ]


def exchange() -> list[list[Op]]:
    """Two ranks sum eight units: each sends its input and adds the other's to its own, in order."""
    mine, all_of_it, theirs = Chunk("input", 0, 8), out(0, 8), Chunk("scratch", 0, 8)
    return [
        [
            Copy(mine, all_of_it),
            Send(1, mine, 0),
            Recv(1, theirs, 0),
            Reduce(theirs, all_of_it, source_first=False),
        ],
        [
            Copy(mine, all_of_it),
            Send(0, mine, 0),
            Recv(0, theirs, 0),
            Reduce(theirs, all_of_it, source_first=True),
        ],
    ]


def summed(programs: list[list[Op]]) -> Plan:
    return plan(programs, SUM, root=-1, scratch_units=(8, 8))


def refused(broken: Plan, *parts: str, ordered: bool = False) -> None:
    with pytest.raises(PlanError) as caught:
        check_plan(broken, ordered=ordered)
    for part in parts:
        assert part in str(caught.value)


def test_the_good_plans_pass() -> None:
    """Else every refusal below would prove nothing."""
    check_plan(plan(chain()))
    check_plan(summed(exchange()), ordered=True)
    check_plan(plan([[], [], []], n_units=0))
    check_plan(plan([[]]))


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


def test_a_segment_that_nobody_sends_or_expects() -> None:
    """All messages match; the end is not what a broadcast must leave."""
    programs = chain()
    del programs[1][3], programs[2][1]
    refused(
        plan(programs),
        "rank 2, output[4:8]: bcast (made by hand) must leave unit 4 of rank 0 there",
        "but it holds nothing",
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


def test_read_of_what_is_only_partly_there() -> None:
    programs = chain()
    programs[1][1:3] = [Send(2, out(0, 6), 0), programs[1][2]]
    programs[2][0] = Recv(1, out(0, 6), 0)
    refused(plan(programs), "rank 1, op 1", "read before anything is in it")


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
    check_plan(plan(programs, SUM, root=-1, scratch_units=(8, 11)), ordered=True)


def test_order_counts_only_where_asked_for() -> None:
    programs = exchange()
    programs[0][3] = Reduce(Chunk("scratch", 0, 8), out(0, 8), source_first=True)
    check_plan(summed(programs))
    refused(
        summed(programs),
        "rank 0, output[0:8]",
        "holds unit 0 of rank 1 + unit 0 of rank 0",
        ordered=True,
    )


def test_a_collective_that_nobody_stated() -> None:
    refused(plan([[]], "gossip"), "collective 'gossip': no before/after statement; stated are")
    with pytest.raises(PlanError, match="bcast"):
        find_statement("gossip")


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


class TestRankTree:
    def test_reaches_everybody_once(self) -> None:
        assert RankTree(1, ((), (2, 0), (3,), ())).parent == (1, -1, 1, 2)
        with pytest.raises(PlanError, match="rank 2 is reached twice"):
            _ = RankTree(0, ((1, 2), (2,), ())).parent
        with pytest.raises(PlanError, match="rank 0 is reached twice"):
            _ = RankTree(0, ((1,), (0,))).parent
        with pytest.raises(PlanError, match="rank 2 is not reached from root 0"):
            _ = RankTree(0, ((1,), (), ())).parent

    def test_trees_of_one_plan_share_a_root(self) -> None:
        trees = [RankTree(0, ((1,), ())), RankTree(1, ((), (0,)))]
        with pytest.raises(PlanError, match=r"must share one root, got \[0, 1\]"):
            plan_bcast(trees, 8, 4)

    def test_segments_take_turns(self) -> None:
        trees = [RankTree(0, ((1,), (2,), ())), RankTree(0, ((2,), (), (1,)))]
        made = plan_bcast(trees, 10, 4)
        assert made.programs[0] == (
            Send(1, out(0, 4), 0),
            Send(2, out(4, 8), 1),
            Send(1, out(8, 10), 2),
        )
        check_plan(made)


class TestPrograms:
    def test_are_written_when_asked_for_and_once(self) -> None:
        asked: list[int] = []

        def program_of(rank: int) -> tuple[Op, ...]:
            asked.append(rank)
            return (Send(rank + 1, out(0, 1), 0),)

        programs = Programs(1000, program_of)
        assert len(programs) == 1000
        assert programs[7] is programs[7]
        assert asked == [7]
        with pytest.raises(IndexError):
            programs[1000]
        with pytest.raises(IndexError):
            programs[-1]
        assert programs[2:4] == [programs[2], programs[3]]

    def test_equal_what_lists_equal(self) -> None:
        one = Programs(2, lambda rank: (Send(1 - rank, out(0, 1), 0),))
        assert one == [one[0], one[1]]
        assert one != [one[0]]
        assert one != [one[0], one[0]]
