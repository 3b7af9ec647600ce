"""What the benchmarks of several grids have in common: one run there, and the rows it leaves."""

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
    """Of a file in ``hostfiles`` by its name, or of the path ``grid`` that ends in ``.toml``."""
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
    of `path_of_grid`. The measured model is kept in the folder ``models`` and reused from there, if
    one is given. It is measured by a job of its
    own: what discovery has lost leaves connections with small windows, in which the first
    collective would go. With a ``dilation``, the grid is emulated in slow motion.
    """
    rows.parent.mkdir(exist_ok=True)
    with slowed(path_of_grid(grid), dilation) as declared:
        if models:
            options = (*options, "--model", str(model_on(declared, mpi, models)))
        bench = ["bench", *calls.split(), "--grid", str(declared), "--output", str(rows), *options]
        subprocess.run([*_on(declared, mpi), *bench], cwd=ROOT, check=True)


def _on(grid: Path, mpi: str) -> list[str]:
    """What stands before the arguments of a ``gridcoll`` that runs on ``grid`` under ``mpi``."""
    gridcoll = str(Path(sys.executable).parent / "gridcoll")
    return [gridcoll, "testbed", "run", str(grid), "--mpi", mpi, "--", "gridcoll"]


def model_on(grid: Path, mpi: str, models: str | Path) -> Path:
    """Where in the folder ``models`` the measured model of ``grid`` is; measured if it is not."""
    kept = Path(models).absolute() / f"{grid.stem}-{mpi}.json"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        discover = ["discover", "--name", grid.stem, "--output", str(kept)]
        subprocess.run([*_on(grid, mpi), *discover], cwd=ROOT, check=True)
    return kept


@contextmanager
def slowed(grid: Path, dilation: float) -> Iterator[Path]:
    """The grid file ``grid`` in slow motion, while this lasts; itself for 1.

    ``dilation`` counts in the place of the file's own.
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


def keep_rows(path: Path, new: list[Row], key: str = "bytes") -> None:
    """Enter ``new`` among the rows kept at ``path``, in place of those of the same ``key``."""
    keys = {row[key] for row in new}
    old: list[Row] = json.loads(path.read_text()) if path.exists() else []
    rows = [row for row in old if row[key] not in keys] + new
    rows.sort(key=lambda row: row[key])
    write_atomically(path, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def read_rows(prefix: str, folder: Path = RESULTS) -> list[Row]:
    """All rows in files ``PREFIX-GRID-MPI.json``; the file's name says which grid and MPI."""
    rows: list[Row] = []
    for path in sorted(folder.glob(f"{prefix}-*.json")):
        grid, mpi = path.stem.removeprefix(f"{prefix}-").rsplit("-", 1)
        rows += [{**row, "grid": grid, "mpi": mpi} for row in json.loads(path.read_text())]
    return rows


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"
