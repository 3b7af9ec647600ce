"""The outside judge: what it says of rows, and that it says so where SimGrid is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from gridcoll.errors import UsageError


def row(simulated: ModuleType, predicted_s: float, replayed_s: float | None) -> object:
    return simulated.Row(
        *(88, "bcast", 8, "fef", 0.9, predicted_s, predicted_s, replayed_s, 87),
        *({"ompi": 3.0, "mpich": 2.0, "impi": None}, 1.0),
    )


def test_without_simgrid_it_says_what_is_missing(
    script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="libsimgrid-dev"):
        script("simulated").main(["--smpirun", str(tmp_path / "smpirun")])


@pytest.mark.parametrize(
    ("replayed", "told"),
    [
        ([1.0, 1.1, 1.3], "median 10% off (bar 15%), worst 30% (bar 40%): held"),
        ([1.0, 1.2, 1.3], "median 20% off (bar 15%), worst 30% (bar 40%): NOT held"),
        ([1.0, 1.0, 1.5], "median 0% off (bar 15%), worst 50% (bar 40%): NOT held"),
        ([None], "nothing was replayed"),
    ],
)
def test_the_verdict_is_by_median_and_worst(
    script: Callable[[str], ModuleType], replayed: list[float | None], told: str
) -> None:
    simulated = script("simulated")
    assert simulated.verdict([row(simulated, 1.0, s) for s in replayed]).endswith(told)


def test_kept_rows_are_shown_and_drawn(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated = script("simulated")
    kept = tmp_path / "rows.jsonl"
    kept.write_text(json.dumps(simulated.asdict(row(simulated, 1.0, 1.25))) + "\n")
    simulated.main(["--rows", str(kept), "--plot", str(tmp_path / "x.svg")])
    said = capsys.readouterr().out
    assert "+25%" in said
    assert "1.6" in said  # the best selector, over the replay
    assert (tmp_path / "x.svg").stat().st_size > 0
