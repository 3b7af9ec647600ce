from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gridcoll.errors import PlanError
from gridcoll.plan.dataflow import dataflow
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send, reads, writes


def touch(a: Chunk, b: Chunk) -> bool:
    return a.buffer == b.buffer and max(a.start, b.start) < min(a.stop, b.stop)


def conflict(earlier: Op, later: Op) -> bool:
    """Whether swapping them could change what is read or left."""
    return any(
        touch(a, b)
        for ours, theirs in (
            (writes(earlier), reads(later)),
            (reads(earlier), writes(later)),
            (writes(earlier), writes(later)),
        )
        for a in ours
        for b in theirs
    )


chunks = st.builds(
    lambda buffer, start, size: Chunk(buffer, start, start + size),
    st.sampled_from(["output", "scratch"]),
    st.integers(0, 10),
    st.integers(0, 5),
)


@st.composite
def ops(draw: st.DrawFn) -> Op:
    kind = draw(st.sampled_from(["send", "recv", "copy", "reduce"]))
    chunk = draw(chunks)
    if kind == "send":
        return Send(1, chunk, 0)
    if kind == "recv":
        return Recv(1, chunk, 0)
    other = draw(st.integers(0, 10))
    into = Chunk("output", other, other + chunk.size)
    try:
        return Copy(chunk, into) if kind == "copy" else Reduce(chunk, into)
    except PlanError:  # they overlap
        return Send(1, chunk, 0)


def reachable(releases: tuple[tuple[int, ...], ...]) -> list[set[int]]:
    after: list[set[int]] = [set() for _ in releases]
    for index in reversed(range(len(releases))):
        for later in releases[index]:
            after[index] |= {later} | after[later]
    return after


@given(st.lists(ops(), max_size=14))
def test_ops_in_conflict_keep_their_order_and_no_others_wait(program: list[Op]) -> None:
    flow = dataflow(tuple(program))
    after = reachable(flow.releases)
    for i in range(len(program)):
        for j in range(i + 1, len(program)):
            assert not conflict(program[i], program[j]) or j in after[i], (i, j)
    for i, released in enumerate(flow.releases):
        for j in released:
            assert i < j, "an op waits for a later one"
            assert conflict(program[i], program[j]), (i, j)


@given(st.lists(ops(), max_size=14))
def test_waits_are_counted(program: list[Op]) -> None:
    flow = dataflow(tuple(program))
    for j in range(len(program)):
        assert flow.n_waits[j] == sum(j in released for released in flow.releases)
        assert all(len(set(released)) == len(released) for released in flow.releases)


def test_a_segment_goes_on_while_the_next_comes_in() -> None:
    """Law 3: an op waits for its data, never for its place in the program."""
    a, b = Chunk("output", 0, 4), Chunk("output", 4, 8)
    flow = dataflow((Recv(0, a, 0), Send(2, a, 0), Recv(0, b, 1), Send(2, b, 1)))
    assert flow.n_waits == (0, 1, 0, 1)
    assert flow.releases == ((1,), (), (3,), ())


def test_two_readers_do_not_wait_for_each_other() -> None:
    a = Chunk("output", 0, 4)
    flow = dataflow((Recv(0, a, 0), Send(1, a, 0), Send(2, a, 0), Recv(0, a, 1)))
    assert flow.n_waits == (0, 1, 1, 3)
