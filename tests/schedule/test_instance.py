from __future__ import annotations

import numpy as np
import pytest

from gridcoll.errors import UsageError
from gridcoll.schedule import HEURISTICS, Accounting, Batch, Instance, best


def square(n: int, value: float = 1.0) -> np.ndarray:
    return np.full((n, n), value)


@pytest.mark.parametrize(
    ("latency", "gap", "internal", "root", "field"),
    [
        (square(2), square(3), np.ones(3), 0, "latency_s"),
        (square(3), np.ones((3, 2)), np.ones(3), 0, "gap_s"),
        (square(3), square(3), np.ones((3, 1)), 0, "internal_s"),
        (square(0), square(0), np.ones(0), 0, "internal_s"),
        (square(3), square(3), np.ones(3), 3, "root"),
        (square(3), square(3), np.ones(3), -1, "root"),
        (square(3, -1), square(3), np.ones(3), 0, "latency_s[0, 1]"),
        (square(3), square(3, np.nan), np.ones(3), 0, "gap_s[0, 1]"),
        (square(3), square(3, np.inf), np.ones(3), 0, "gap_s[0, 1]"),
        (square(3), square(3), np.array([1, 1, -1.0]), 0, "internal_s[2]"),
    ],
)
def test_errors_name_the_field(latency, gap, internal, root, field) -> None:
    for call in (HEURISTICS["ecef"], best):
        with pytest.raises(UsageError) as caught:
            call(latency, gap, internal, root)
        assert str(caught.value).startswith(field)


def test_diagonals_are_ignored() -> None:
    latency = square(3)
    np.fill_diagonal(latency, np.nan)
    assert Instance(latency, latency, np.ones(3)).cost_s[1, 1] == 0


def test_an_instance_keeps_its_own_copies() -> None:
    gap = square(2)
    instance = Instance(square(2), gap, np.ones(2))
    gap[0, 1] = 7
    assert instance.gap_s[0, 1] == 1


@pytest.mark.parametrize("options", [("wait", "from-arrival"), ("gap", "never")])
def test_unknown_accounting(options) -> None:
    with pytest.raises(UsageError, match="accounting"):
        Accounting(*options)


@pytest.mark.parametrize(
    ("latency", "internal", "root"),
    [((2, 3, 2), (2, 3), 0), ((2, 3, 3), (3,), 0), ((2, 3, 3), (2, 3), 5)],
)
def test_batches_must_fit(latency, internal, root) -> None:
    with pytest.raises(UsageError):
        Batch(np.ones(latency), np.ones((2, 3, 3)), np.ones(internal), root)
