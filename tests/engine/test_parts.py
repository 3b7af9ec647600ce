from __future__ import annotations

import pytest

from gridcoll.engine.parts import PartedMemory
from gridcoll.errors import PlanError
from gridcoll.plan.ops import Chunk


def memory() -> tuple[PartedMemory, list[bytearray]]:
    parts = [bytearray(b"ab"), bytearray(), bytearray(), bytearray(b"cdef")]
    views = [memoryview(part) for part in parts]
    return PartedMemory(views, [memoryview(b"xyz")]), parts


def test_parts_are_numbered_one_after_another() -> None:
    parted, parts = memory()
    assert bytes(parted.view(Chunk("output", 0, 2))) == b"ab"
    assert bytes(parted.view(Chunk("output", 3, 5))) == b"de"
    parted.copy(Chunk("input", 1, 3), Chunk("output", 4, 6))
    assert parts[3] == b"cdyz"


def test_nothing_is_nowhere() -> None:
    parted, _ = memory()
    for at in (0, 2, 6):
        assert len(parted.view(Chunk("output", at, at))) == 0


@pytest.mark.parametrize(
    "chunk", [Chunk("output", 1, 3), Chunk("output", 5, 7), Chunk("output", 6, 7)]
)
def test_no_chunk_reaches_across_parts(chunk: Chunk) -> None:
    with pytest.raises(PlanError, match="not within one part"):
        memory()[0].view(chunk)


def test_no_scratch_and_no_operation() -> None:
    with pytest.raises(PlanError, match="scratch"):
        memory()[0].view(Chunk("scratch", 0, 1))
    with pytest.raises(PlanError, match="no operation"):
        memory()[0].reduce(Chunk("input", 0, 1), Chunk("output", 0, 1), True)
