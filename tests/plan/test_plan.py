"""Programs of a plan."""

from __future__ import annotations

import pytest

from gridcoll.plan import Op, Send
from gridcoll.plan.plan import Programs
from tests.plan.handmade import out


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
