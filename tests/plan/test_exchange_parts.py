"""Direct exchanges of what lies in parts."""

from __future__ import annotations

from gridcoll.plan.blocks import LARGEST_MESSAGE, exchange_parts
from gridcoll.plan.ops import Chunk, Recv, Send


def test_a_message_for_every_part_and_none_for_nothing() -> None:
    assert exchange_parts({}, {}) == ()
    assert exchange_parts({3: [0]}, {1: [], 2: [0, 0]}) == ()
    assert exchange_parts({2: [4, 0, 6], 0: [1]}, {5: [7, 8]}) == (
        Recv(5, Chunk("output", 0, 7), 0),
        Recv(5, Chunk("output", 7, 15), 1),
        Send(2, Chunk("input", 0, 4), 0),
        Send(2, Chunk("input", 4, 10), 1),
        Send(0, Chunk("input", 10, 11), 0),
    )


def test_what_is_too_long_for_one_message_is_several() -> None:
    long = LARGEST_MESSAGE + 1
    program = exchange_parts({1: [long, 2]}, {})
    assert [op.tag for op in program if isinstance(op, Send)] == [0, 1, 2]
    assert program[-1] == Send(1, Chunk("input", long, long + 2), 2)
