from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridcoll.errors import PlanError
from gridcoll.plan import REGISTRIES
from gridcoll.plan.dataflow import dataflow
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send, reads, writes
from tests.plan.grids import model_of


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

blocks = st.builds(
    lambda buffer, number, size: Chunk(buffer, 4 * number, 4 * number + size),
    st.sampled_from(["output", "scratch"]),
    st.integers(0, 3),
    st.sampled_from([4, 0]),
)
"""Any two are the same or have no unit in common."""


@st.composite
def ops(draw: st.DrawFn, chunks: st.SearchStrategy[Chunk] = chunks) -> Op:
    kind = draw(st.sampled_from(["send", "recv", "copy", "reduce"]))
    chunk = draw(chunks)
    if kind == "send":
        return Send(1, chunk, 0)
    if kind == "recv":
        return Recv(1, chunk, 0)
    other = draw(chunks).start
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


programs = st.lists(ops(), max_size=14) | st.lists(ops(blocks), max_size=14)


@given(programs)
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


@given(programs)
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


def test_messages_of_a_peer_are_numbered_without_gaps() -> None:
    a = Chunk("output", 0, 1)
    program = (
        Send(1, a, 700),
        Send(2, a, 9),
        Recv(1, a, 5),
        Send(1, a, 30),
        Copy(a, Chunk("scratch", 0, 1)),
    )
    assert dataflow(program).tags == (1, 0, 0, 0, 0)


@pytest.mark.parametrize("collective", REGISTRIES)
def test_both_ends_number_a_message_alike(collective: str) -> None:
    """Whatever tags plans give them: MPI's are few, and one that stands for two loses data."""
    model = model_of([0, 0, 0, 1, 1, 2], together=1e9)
    for algorithm in REGISTRIES[collective].values():
        for candidate in algorithm.candidates(model, 1 << 16, 2):
            if candidate.build is None:
                continue
            plan = candidate.build(1 << 13)
            flows = [dataflow(program) for program in plan.programs]
            ends: dict[type, dict[tuple[int, int, int], int]] = {Send: {}, Recv: {}}
            for rank, flow in enumerate(flows):
                for op, tag in zip(flow.program, flow.tags, strict=True):
                    if isinstance(op, Send):
                        ends[Send][rank, op.peer, op.tag] = tag
                    elif isinstance(op, Recv):
                        ends[Recv][op.peer, rank, op.tag] = tag
            assert ends[Send] == ends[Recv], candidate.label
            on_wire = {(*pair, tag) for (*pair, _), tag in ends[Send].items()}
            assert len(on_wire) == len(ends[Send]), candidate.label
