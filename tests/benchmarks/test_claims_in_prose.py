"""Figures in the documentation's sentences are those of kept rows, as its tables are."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.examples import ROOT

RESULTS = ROOT / "benchmarks/results"

FASTER = [
    ("benchmarks.md", "dilation-4/bcast-scrambled", "64K", "7.2 times as fast as MPICH's", "mpich"),
    ("benchmarks.md", "dilation-4/bcast-scrambled", "64K", "(Intel MPI 7.4, Open", "impi"),
    ("benchmarks.md", "dilation-4/bcast-scrambled", "64K", "7.4, Open MPI 4.4)", "openmpi"),
    ("benchmarks.md", "dilation-4/bcast-long-fat", "4M", "of 4 MiB is 10.3 times as", "mpich"),
    ("benchmarks.md", "dilation-4/bcast-long-fat", "4M", "(Intel MPI 7.5, Open", "impi"),
    ("benchmarks.md", "dilation-4/bcast-long-fat", "4M", "7.5, Open MPI 9.0)", "openmpi"),
    ("limits.md", "bcast-one-cluster", "8", "is 0.81 times as fast as the best", "mpich"),
    ("limits.md", "allreduce-one-cluster", "8", "allreduce of 8 B 0.79 times", "mpich"),
    ("limits.md", "alltoall-one-cluster", "1K", "of 1 KiB 0.77 times", "mpich"),
]
"""Document, rows, size, what is said, MPI."""

SIZES = {"8": 8, "1K": 1 << 10, "64K": 64 << 10, "4M": 4 << 20}


def said(document: str) -> str:
    """The text of ``document`` on one line."""
    return " ".join((ROOT / "docs" / document).read_text(encoding="utf-8").split())


def faster(script: Callable[[str], ModuleType], rows: str, size: str, mpi: str) -> float:
    collectives = script("collectives")
    kept = json.loads((RESULTS / f"{rows}-{mpi}.json").read_text(encoding="utf-8"))
    (variants,) = [
        variants
        for (_, _, n_bytes), variants in collectives.by_case(kept).items()
        if n_bytes == SIZES[size]
    ]
    return float(collectives.best_native_s(variants) / variants["gridcoll"]["median_s"])


@pytest.mark.parametrize(("document", "rows", "size", "words", "mpi"), FASTER)
def test_how_much_faster(
    script: Callable[[str], ModuleType], document: str, rows: str, size: str, words: str, mpi: str
) -> None:
    assert words in said(document)
    ratio = faster(script, rows, size, mpi)
    assert f"{ratio:.2f}" in words or f" {ratio:.1f}" in f" {words}"


def test_exchanges_of_88_hosts(script: Callable[[str], ModuleType]) -> None:
    longer = [
        1 / faster(script, "alltoall-grid5000-88", size, "openmpi") - 1 for size in ("8", "1K")
    ]
    assert [f"{each:.0%}" for each in longer] == ["14%", "12%"]
    text = said("benchmarks.md")
    assert "take 14 % longer than the best native at 8 B and 12 % longer at 1 KiB" in text


def test_no_setting_helps_open_mpis_allreduce() -> None:
    path = RESULTS / "tuned-allreduce-three-sites-openmpi.json"
    rows = json.loads(path.read_text(encoding="utf-8"))
    assert [row["bytes"] for row in rows] == [1 << 16, 1 << 20]
    for row in rows:
        words = f"None of the {row['n_tried']} settings tried (of {row['n_settings']}) shortens"
        assert words in said("benchmarks.md")
        assert row["tuned_s"] > 0.98 * row["native_s"]


def test_broadcasts_tuned_by_hand() -> None:
    parts = []
    for mpi in ("mpich", "openmpi"):
        rows = json.loads((RESULTS / f"tuned-bcast-three-sites-{mpi}.json").read_text("utf-8"))
        parts += [row["tuned_s"] / row["gridcoll_s"] for row in rows]
    words = f"takes {min(parts):.1f} to {max(parts):.1f} of gridcoll's time"
    assert words in said("../README.md")
    assert f"up to {1 - min(parts):.0%} faster".replace("%", " %") in said("limits.md")
