"""The table of candidates: which was chosen, and how far behind the best."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture
def candidates(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("candidates")


def row(variant: str, algorithm: str, median_s: float, predicted_s: float | None) -> dict[str, Any]:
    return {
        "grid": "g", "mpi": "m", "bytes": 8, "variant": variant, "algorithm": algorithm,
        "median_s": median_s, "q1_s": median_s, "q3_s": median_s, "predicted_s": predicted_s,
    }  # fmt: skip


ROWS = [
    row("native", "", 4.0, 5.0),
    row("native-nonblocking", "", 1.0, None),
    row("gridcoll:flat", "0→1; flat inside", 2.0, 3.0),
    row("gridcoll:chain", "0→1; chain inside", 3.0, 1.5),
]


def test_the_chosen_is_found_by_what_it_does(candidates: ModuleType) -> None:
    (call,) = candidates.by_call([*ROWS, row("gridcoll", "best: 0→1; chain inside", 3.1, 1.5)])
    assert [one.candidate for one in call] == ["flat", "chain", "native"]
    assert [one.chosen for one in call] == [False, True, False]
    assert [one.off for one in call] == pytest.approx([0.5, -0.5, 0.25])
    assert candidates.behind_best(call) == pytest.approx(0.5)


def test_native_may_be_the_chosen(candidates: ModuleType) -> None:
    chosen = row("gridcoll", "native: the MPI library's own", 4.0, 5.0)
    (call,) = candidates.by_call([*ROWS, chosen])
    assert [one.chosen for one in call] == [False, False, True]
    assert candidates.behind_best(call) == pytest.approx(1.0)


def test_a_variant_of_native_may_be_the_chosen(candidates: ModuleType) -> None:
    """One that was not measured at discovery was no candidate."""
    name = "native-nonblocking"
    rows = [ROWS[0], row(name, "", 1.0, 1.25), *ROWS[2:], row("gridcoll", f"{name}: …", 1.0, 1.25)]
    (call,) = candidates.by_call(rows)
    assert [one.candidate for one in call] == [name, "flat", "chain", "native"]
    assert [one.chosen for one in call] == [True, False, False, False]


def test_a_choice_that_was_not_timed_is_said_so(candidates: ModuleType) -> None:
    (call,) = candidates.by_call([*ROWS, row("gridcoll", "lanes: 4 trees", 3.0, 1.0)])
    assert candidates.behind_best(call) is None


def test_kept_rows_may_use_names_of_before(candidates: ModuleType) -> None:
    rows = [
        row("native", "", 4.0, 5.0),
        row("gridcoll:in-turn", "in-turn: 16 KiB at a time", 2.0, 3.0),
        row("gridcoll", "in-turn: 16 KiB at a time", 2.1, 3.0),
    ]
    (call,) = candidates.by_call(rows, "alltoall")
    assert [one.candidate for one in call] == ["rate-paced", "native"]
    assert [one.label for one in call] == ["16 KiB at a time", ""]
    assert [one.chosen for one in call] == [True, False]
