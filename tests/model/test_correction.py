from __future__ import annotations

import pytest

from gridcoll.errors import UsageError
from gridcoll.model import Correction


def test_factors_are_linear_in_the_logarithm_of_size_and_constant_beyond() -> None:
    found = Correction((8, 1 << 13), (2.0, 1.0))
    assert [found.at(n) for n in (0, 8, 1 << 8, 1 << 13, 1 << 30)] == [2.0, 2.0, 1.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("sizes", "factors"),
    [((), ()), ((8, 8), (1, 1)), ((16, 8), (1, 1)), ((0,), (1,)), ((8,), (0,)), ((8,), (1, 1))],
)
def test_what_is_no_correction_is_refused(
    sizes: tuple[int, ...], factors: tuple[float, ...]
) -> None:
    with pytest.raises(UsageError, match="correction"):
        Correction(sizes, factors)
