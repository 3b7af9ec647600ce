"""Random grids of unlike interfaces and links, as `benchmarks/unlike_grids.py` has them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from types import ModuleType

import pytest

Script = Callable[[str], ModuleType]


@pytest.mark.long
@pytest.mark.parametrize("collective", ["bcast", "reduce", "allreduce", "alltoall"])
def test_what_is_chosen_comes_near_the_limit_and_not_below(collective: str, script: Script) -> None:
    grids = script("unlike_grids")
    found = [grids.ratio(collective, grids.random_grid(k, 6), 16 << 20)[0] for k in range(12)]
    assert min(found) >= 1
    assert statistics.median(found) <= 1.06
    if collective == "alltoall":
        assert max(found) <= 1.1


def test_it_prints_a_row_per_collective(script: Script, capsys: pytest.CaptureFixture[str]) -> None:
    script("unlike_grids").main(["--grids", "2", "--clusters", "3", "--bytes", "1M"])
    rows = capsys.readouterr().out.splitlines()
    names = ["bcast", "reduce", "allreduce", "alltoall"]
    assert [row.split(" | ")[0] for row in rows[2:]] == [f"| {name}" for name in names]


def test_named_grids_have_a_line_per_collective(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    script("unlike_grids").main(
        ["--named", "patchwork", "--bytes", "64K", "--collectives", "bcast,scatter"]
    )
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0].strip(), row[1].strip()) for row in rows] == [
        ("patchwork", "bcast"),
        ("patchwork", "scatter"),
    ]
    assert all(1.0 <= float(row[2]) < 1.5 for row in rows)
