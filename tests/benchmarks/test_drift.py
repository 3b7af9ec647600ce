"""What a loop of calls took, by call and by round."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest


def test_a_round_takes_what_its_calls_take_together(script: Callable[[str], ModuleType]) -> None:
    """Also where a late rank makes one call longer and the next one shorter."""
    drift = script("drift")
    medians, a_round = drift.medians, drift.ROUND
    rows = []
    for k in range(6):
        late_s = 0.1 * (k % 2)
        rows.append({"call": "Bcast 8", "entry_s": k * 1.0, "exit_s": k + 0.3 + late_s})
        rows.append({"call": "Alltoall 8", "entry_s": k + 0.3 + late_s, "exit_s": k + 0.9})
    found = medians(rows, 0.0, 10.0)
    assert list(found) == ["Bcast 8 B", "Alltoall 8 B", a_round]
    assert found[a_round] == pytest.approx(1.0)
    assert found["Bcast 8 B"] == pytest.approx(0.35)
    assert list(medians(rows, 5.0, 10.0)) == ["Bcast 8 B", "Alltoall 8 B"]
