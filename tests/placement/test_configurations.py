from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridcoll.errors import FileError, UsageError
from gridcoll.placement import IterationCost, Phase, Problem
from gridcoll.placement.configurations import configurations, draw_configurations


@pytest.fixture
def cost(resources_of) -> IterationCost:  # type: ignore[no-untyped-def]
    resources = resources_of(np.full((4, 4), 1e-3), n_hosts=np.array([10, 40, 20, 30]))
    return IterationCost(
        Problem(n_elements=1000, phases=[Phase(name="p", alpha_s=1e-5)]), resources
    )


def test_slowest_leave_first_and_fastest_come_first(cost: IterationCost) -> None:
    assert configurations(cost, (0, 2)) == ((2,), (0, 2), (0, 1, 2), (0, 1, 2, 3))


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plots(cost: IterationCost, tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot.{ending}"
    draw_configurations([(cost, (0, 2)), (cost, (1,))], path)
    assert path.stat().st_size > 1000


def test_plots_nowhere(cost: IterationCost, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(FileError, match=r"x/y\.png"):
        draw_configurations([(cost, (0,))], tmp_path / "x" / "y.png")
    with pytest.raises(UsageError, match="must be png or svg, got 'pdf'"):
        draw_configurations([(cost, (0,))], tmp_path / "plot.pdf")
