"""What the benchmarks of several grids have in common: one run there, and the rows it leaves."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
GRIDS = (
    *("three-sites", "two-sites-uneven", "grid5000", "scrambled", "thin-wan", "long-fat"),
    "one-cluster",
)
MPIS = ("mpich", "openmpi", "impi")

Row = dict[str, Any]


def bench_on(
    grid: str, mpi: str, collective: str, rows: Path, *options: str, models: str = ""
) -> None:
    """Run ``gridcoll bench`` on the emulated ``grid`` under ``mpi``; its JSON goes to ``rows``.

    ``grid`` is the name of a file in ``hostfiles``, or a path ending in ``.toml``. The measured
    model is kept in the folder ``models`` and reused from there, if one is given.
    """
    rows.parent.mkdir(exist_ok=True)
    if models:
        Path(models).mkdir(parents=True, exist_ok=True)
        kept = Path(models).absolute() / f"{Path(grid).stem}-{mpi}.json"
        options = (*options, "--model-file", str(kept))
    gridcoll = str(Path(sys.executable).parent / "gridcoll")
    declared = grid if grid.endswith(".toml") else str(ROOT / "hostfiles" / f"{grid}.toml")
    command = [gridcoll, "testbed", "run", declared, "--mpi", mpi, "--"]
    command += ["gridcoll", "bench", collective, "--grid", declared, "--json", str(rows), *options]
    subprocess.run(command, cwd=ROOT, check=True)


@contextmanager
def slowed(grid: str, dilation: float) -> Iterator[str]:
    """The named ``grid`` in slow motion, as a file while this lasts; ``grid`` itself for 1."""
    if dilation == 1:
        yield grid
        return
    text = (ROOT / "hostfiles" / f"{grid}.toml").read_text()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{grid}-x{dilation:g}.toml")  # models are kept by this name
        path.write_text(f"dilation = {dilation:g}\n{text}")
        yield str(path)


def results_folder(dilation: float) -> Path:
    """Rows of grids in slow motion are kept apart: their times are not the grid's own."""
    return RESULTS if dilation == 1 else RESULTS / f"dilation-{dilation:g}"


def add_dilation_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dilation",
        type=float,
        default=1.0,
        metavar="K",
        help="grids in slow motion: latencies times K, rates divided by K; rows in a folder of it",
    )


def add_models_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", default="", metavar="DIR", help="keep measured models there, and reuse them"
    )


def read_rows(prefix: str, folder: Path = RESULTS) -> list[Row]:
    """All rows in files ``PREFIX-GRID-MPI.json``; the file's name says which grid and MPI."""
    rows: list[Row] = []
    for path in sorted(folder.glob(f"{prefix}-*.json")):
        grid, mpi = path.stem.removeprefix(f"{prefix}-").rsplit("-", 1)
        rows += [{**row, "grid": grid, "mpi": mpi} for row in json.loads(path.read_text())]
    return rows


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"
