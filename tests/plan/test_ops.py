from __future__ import annotations

import pytest

from gridcoll.errors import PlanError
from gridcoll.plan.ops import Chunk, Copy, Op, Recv, Reduce, Send, reads, writes

OUT = Chunk("output", 0, 4)
SCRATCH = Chunk("scratch", 2, 6)
IN = Chunk("input", 0, 4)


def test_a_chunk_knows_its_size_and_says_where_it_is() -> None:
    assert SCRATCH.size == 4
    assert str(SCRATCH) == "scratch[2:6]"


@pytest.mark.parametrize(
    "chunk", [Chunk("elsewhere", 0, 1), Chunk("output", -1, 1), Chunk("output", 2, 1)]
)
def test_every_op_refuses_what_is_no_chunk(chunk: Chunk) -> None:
    good = Chunk("scratch", 0, chunk.size)
    for make in (
        lambda: Send(1, chunk, 0),
        lambda: Send(1, good, 0, chunk),
        lambda: Recv(1, chunk, 0),
        lambda: Copy(chunk, good),
        lambda: Copy(good, chunk),
        lambda: Reduce(chunk, good),
        lambda: Reduce(good, chunk),
    ):
        with pytest.raises(PlanError, match="is not a chunk of one of the buffers"):
            make()


def test_nothing_is_due_before_its_program_begins() -> None:
    assert Send(1, IN, 0).due_us == 0
    with pytest.raises(PlanError, match="is due before its program begins"):
        Send(1, IN, 0, due_us=-1)


def test_the_input_is_only_read() -> None:
    Send(1, IN, 0)
    Copy(IN, OUT)
    Reduce(IN, OUT)
    for make in (lambda: Recv(1, IN, 0), lambda: Copy(OUT, IN), lambda: Reduce(OUT, IN)):
        with pytest.raises(PlanError, match="the input buffer is only read"):
            make()


@pytest.mark.parametrize("kind", [Copy, Reduce])
def test_local_ops_join_equal_sizes_that_do_not_overlap(kind: type[Copy] | type[Reduce]) -> None:
    with pytest.raises(PlanError, match="sizes 4 and 3 differ"):
        kind(OUT, Chunk("scratch", 0, 3))
    for start in (0, 3):
        with pytest.raises(PlanError, match="source and destination overlap"):
            kind(OUT, Chunk("output", start, start + 4))
    kind(OUT, Chunk("output", 4, 8))
    kind(OUT, Chunk("scratch", 0, 4))


@pytest.mark.parametrize(
    ("op", "read", "written", "text"),
    [
        (Send(3, OUT, 7), (OUT,), (), "send output[0:4] to 3 tag 7"),
        (Send(3, IN, 7, OUT), (IN, OUT), (), "send input[0:4] to 3 tag 7 after output[0:4]"),
        (Recv(3, OUT, 7), (), (OUT,), "recv output[0:4] from 3 tag 7"),
        (Copy(IN, OUT), (IN,), (OUT,), "copy input[0:4] to output[0:4]"),
        (Reduce(IN, OUT), (IN, OUT), (OUT,), "reduce input[0:4] before output[0:4]"),
        (Reduce(IN, OUT, False), (IN, OUT), (OUT,), "reduce input[0:4] after output[0:4]"),
    ],
)
def test_what_ops_read_and_write(
    op: Op, read: tuple[Chunk, ...], written: tuple[Chunk, ...], text: str
) -> None:
    assert reads(op) == read
    assert writes(op) == written
    assert str(op) == text
