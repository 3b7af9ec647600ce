"""What others' programs print must be the same both ways, up to the rounding of sums."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("r2norm 1.2345e+02 ok", "r2norm 1.2345e+02 ok", True),
        ("r2norm 1.234567e+02", "r2norm 1.234568e+02", True),
        ("r2norm 1.234e+02", "r2norm 1.334e+02", False),
        ("Distr == Local True", "Distr == Local False", False),
        ("one line", "one line more", False),
    ],
)
def test_same_results(script: Script, left: str, right: str, same: bool) -> None:
    assert script("theirs").same_results(left, right) is same
