"""The counts of a quick start on a reference network."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


def test_counts_hardly_grow(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scale = script("startup_scale")
    kept, figure = tmp_path / "rows.json", tmp_path / "figure.svg"
    scale.main(["--hosts", "20,200", "--clusters", "", "--json", str(kept), "--plot", str(figure)])
    few, many = json.loads(kept.read_text())
    assert few["right"]
    assert many["right"]
    assert many["grouping_rounds"] <= 3 * few["grouping_rounds"]
    assert many["grouping_rounds"] < 50
    assert max(many["bytes_per_link"], few["bytes_per_link"]) <= 8 << 20
    assert figure.read_text().startswith("<?xml")
    assert "NO" not in capsys.readouterr().out
