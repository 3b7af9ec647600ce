from __future__ import annotations

import pytest

from gridcoll.engine.memory import PartedMemory, Pieces, Typed
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


def test_a_chunk_across_parts_is_in_pieces() -> None:
    parted, parts = memory()
    view = parted.view(Chunk("output", 1, 5))
    assert isinstance(view, Pieces)
    assert [bytes(piece) for piece in view.views] == [b"b", b"cde"]
    assert view.nbytes == 4
    view.views[1][0] = ord("X")
    assert parts[3] == b"Xdef"


def test_copies_go_across_parts() -> None:
    places = [bytearray(2), bytearray(), bytearray(1), bytearray(4)]
    parted = PartedMemory(
        [memoryview(place) for place in places],
        [memoryview(b"abc"), memoryview(b""), memoryview(b"defg")],
    )
    parted.copy(Chunk("input", 1, 7), Chunk("output", 1, 7))
    assert places == [b"\0b", b"", b"c", b"defg"]


@pytest.mark.parametrize("chunk", [Chunk("output", 5, 7), Chunk("output", 6, 7)])
def test_nothing_is_behind_the_last_part(chunk: Chunk) -> None:
    with pytest.raises(PlanError, match="output buffer is 6 bytes"):
        memory()[0].view(chunk)


def test_no_scratch_and_no_operation() -> None:
    with pytest.raises(PlanError, match="scratch"):
        memory()[0].view(Chunk("scratch", 0, 1))
    with pytest.raises(PlanError, match="no operation"):
        memory()[0].reduce(Chunk("input", 0, 1), Chunk("output", 0, 1), True)


def typed() -> tuple[PartedMemory, Typed]:
    part = Typed(("memory", 2, "columns"), 6)
    return PartedMemory([memoryview(bytearray(4)), part], [part, memoryview(b"xyz")]), part


def test_what_a_type_describes_is_one_message() -> None:
    parted, part = typed()
    assert parted.view(Chunk("output", 4, 10)) is part
    assert parted.view(Chunk("input", 0, 6)) is part
    assert part.nbytes == len(part) == 6


@pytest.mark.parametrize(("start", "stop"), [(4, 9), (5, 10)])
def test_and_no_part_of_one(start: int, stop: int) -> None:
    parted, _ = typed()
    with pytest.raises(PlanError, match="columns"):
        parted.view(Chunk("output", start, stop))


def test_nor_with_what_is_beside_it() -> None:
    parted, _ = typed()
    with pytest.raises(PlanError, match="cannot be used as bytes"):
        parted.view(Chunk("output", 2, 10))


def test_and_has_no_bytes_to_copy() -> None:
    parted, _ = typed()
    for source, into in (
        (Chunk("input", 0, 6), Chunk("output", 4, 10)),
        (Chunk("input", 6, 9), Chunk("output", 4, 7)),
    ):
        with pytest.raises(PlanError, match=r"columns|cannot be used as bytes"):
            parted.copy(source, into)
