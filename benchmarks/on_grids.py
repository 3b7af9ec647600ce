"""Common parts of benchmarks on emulated grids: running there, and keeping rows."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gridcoll.files import write_atomically

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
GRIDS = (
    *("three-sites", "two-sites-uneven", "grid5000", "scrambled", "thin-wan", "long-fat"),
    "one-cluster",
)
MPIS = ("mpich", "openmpi", "impi")

Row = dict[str, Any]


def path_of_grid(grid: str) -> Path:
    """Return the path of a grid file: a name in ``hostfiles``, or a path that ends in ``.toml``."""
    return Path(grid if grid.endswith(".toml") else ROOT / "hostfiles" / f"{grid}.toml").absolute()


def bench_on(
    grid: str,
    mpi: str,
    calls: str,
    rows: Path,
    *options: str,
    models: str = "",
    dilation: float = 1.0,
) -> None:
    """Run ``gridcoll bench`` on the emulated ``grid`` under ``mpi``; its JSON goes to ``rows``.

    ``calls`` is a collective, or several with sizes, as ``bcast:8,64K allreduce:8``. ``grid`` is as
    in `path_of_grid`. If ``models`` is given, the measured model is kept in this folder and reused.
    A job of its own measures it: packets lost in discovery leave connections with small congestion
    windows, which would slow down the first collective. With a ``dilation``, the grid is emulated
    in slow motion.
    """
    rows.parent.mkdir(exist_ok=True)
    with slowed(path_of_grid(grid), dilation) as declared:
        if models:
            options = (*options, "--model", str(model_on(declared, mpi, models)))
        bench = ["bench", *calls.split(), "--grid", str(declared), "--output", str(rows), *options]
        subprocess.run([*_on(declared, mpi), *bench], cwd=ROOT, check=True)


def _on(grid: Path, mpi: str) -> list[str]:
    """Return the start of a command line that runs ``gridcoll`` on ``grid`` under ``mpi``."""
    gridcoll = str(Path(sys.executable).parent / "gridcoll")
    return [gridcoll, "testbed", "run", str(grid), "--mpi", mpi, "--", "gridcoll"]


def model_on(grid: Path, mpi: str, models: str | Path) -> Path:
    """Return the path of the measured model of ``grid`` in the folder ``models``.

    If it does not exist, the grid is measured first.
    """
    kept = Path(models).absolute() / f"{grid.stem}-{mpi}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        discover = ["discover", "--name", grid.stem, "--output", str(kept)]
        subprocess.run([*_on(grid, mpi), *discover], cwd=ROOT, check=True)
    return kept


@contextmanager
def slowed(grid: Path, dilation: float) -> Iterator[Path]:
    """Yield a temporary copy of the grid file ``grid`` in slow motion, or ``grid`` itself for 1.

    ``dilation`` replaces the one in the file.
    """
    if dilation == 1:
        yield grid
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{grid.stem}-x{dilation:g}.toml")
        plain = re.sub(r"(?m)^dilation = .*\n", "", grid.read_text())
        path.write_text(f"dilation = {dilation:g}\n{plain}")
        yield path


def results_folder(dilation: float) -> Path:
    """Return the folder of rows. Grids in slow motion have their own, as their times differ."""
    return RESULTS if dilation == 1 else RESULTS / f"dilation-{dilation:g}"


def add_dilation_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dilation",
        type=float,
        default=1.0,
        metavar="K",
        help="slow motion: latencies times K, rates divided by K; rows go to a folder of their own",
    )


def add_models_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--models", default="", metavar="DIR", help="keep and reuse measured models in this folder"
    )


def keep_rows(path: Path, new: list[Row], key: str = "bytes") -> None:
    """Add ``new`` to the rows kept at ``path``, replacing those with the same ``key``."""
    keys = {row[key] for row in new}
    old: list[Row] = json.loads(path.read_text()) if path.exists() else []
    rows = [row for row in old if row[key] not in keys] + new
    rows.sort(key=lambda row: row[key])
    write_atomically(path, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def read_rows(prefix: str, folder: Path = RESULTS) -> list[Row]:
    """Return all rows in files ``PREFIX-GRID-MPI.json``, with the grid and MPI from the name."""
    rows: list[Row] = []
    for path in sorted(folder.glob(f"{prefix}-*.json")):
        grid, mpi = path.stem.removeprefix(f"{prefix}-").rsplit("-", 1)
        rows += [{**row, "grid": grid, "mpi": mpi} for row in json.loads(path.read_text())]
    return rows


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"
