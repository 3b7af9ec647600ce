"""Measure the gain of learning from an application's own calls, in the first calls and later.

    python benchmarks/learning.py [--grid three-sites] [--mpi mpich] [--known MODEL.json]
        [--start FILE] [--calls 400] [--ways WAY…] [--app mix|late] [--output FOLDER]

The same calls (`apps/calls.py`) run in each of the ways. ``native`` uses the MPI library's own
collectives. ``discovered`` uses the model of a full discovery (``--known``, measured if the file
does not exist). ``frozen`` uses a model for which no plan and no native was timed (``--start``, by
default the grid file). ``learning`` starts with the same and learns. ``first`` and ``second`` are
two jobs that learn and share a cache, which is empty at first.

The table has the total time of each half. The plot has the cumulative time lost against the same
calls with the full discovery.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from on_grids import MPIS, RESULTS, ROOT, path_of_grid

BIN = Path(sys.executable).parent
RUN = ("python", "-m", "gridcoll", "run")
DISCOVER = ("python", "-m", "gridcoll", "discover", "--output")
WAYS = ("native", "discovered", "frozen", "learning")
JOBS = ("first", "second")


def environment(way: str, known: Path, start: Path, cache: str) -> dict[str, str]:
    """Return the environment variables of ``way``."""
    if way in JOBS:
        return {"GRIDCOLL_CACHE": cache, "GRIDCOLL_LOG": "decisions"}
    return {
        "native": {"GRIDCOLL_FORCE": "native", "GRIDCOLL_GRID": str(start)},
        "discovered": {"GRIDCOLL_GRID": str(known), "GRIDCOLL_LEARN": "off"},
        "frozen": {"GRIDCOLL_GRID": str(start), "GRIDCOLL_LEARN": "off"},
        "learning": {"GRIDCOLL_GRID": str(start), "GRIDCOLL_LOG": "decisions"},
    }[way]


def on_grid(grid: Path, mpi: str, *command: str, settings: dict[str, str] | None = None) -> None:
    """Run ``command`` with one rank per host of ``grid``."""
    start = [sys.executable, "-m", "gridcoll", "testbed", "run", str(grid), "--mpi", mpi, "--"]
    path = {"PYTHONPATH": str(ROOT)}
    given = {**path, **(settings or {})}
    assignments = [f"{name}={value}" for name, value in given.items()]
    subprocess.run(
        [*start, "env", *assignments, *command], cwd=ROOT, check=True, env={**os.environ, **path}
    )


def times(rows: list[dict[str, Any]]) -> list[float]:
    """Return the seconds of each call, from its last entry to its last exit."""
    return [row["exit_s"] - row["entry_s"] for row in rows]


def total_s(rows: list[dict[str, Any]]) -> float:
    """Return the seconds from the entry of the first call to the exit of the last."""
    return float(rows[-1]["exit_s"] - rows[0]["entry_s"])


def draw(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Plot the cumulative time lost against calls with a full discovery, into ``path``."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    best = times(results["discovered"])
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for way in ("frozen", "learning"):
        lost, total = [], 0.0
        for took_s, best_s in zip(times(results[way]), best, strict=True):
            total += took_s - best_s
            lost.append(total)
        axes.plot(lost, label=f"{way}, over discovered")
    axes.axhline(0, color="grey", linewidth=0.5)
    axes.set_xlabel("call")
    axes.set_ylabel("seconds lost so far")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grid", default="three-sites", help="a file in hostfiles, or a path")
    parser.add_argument("--mpi", default="mpich", choices=MPIS)
    parser.add_argument("--app", default="mix", choices=("mix", "late"))
    parser.add_argument("--known", type=Path, help="the model of a full discovery")
    parser.add_argument("--start", type=Path, help="a model or grid file to start with")
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=(*WAYS, *JOBS))
    parser.add_argument("--output", type=Path, default=RESULTS / "learning")
    options = parser.parse_args()
    grid = path_of_grid(options.grid)
    name = f"{grid.stem}-{options.mpi}"
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    known = (options.known or folder / f"known-{name}.json").absolute()
    if "discovered" in options.ways and not known.exists():
        on_grid(grid, options.mpi, *DISCOVER, str(known))
    results = {}
    app = str(ROOT / "benchmarks" / "apps" / "calls.py")
    with tempfile.TemporaryDirectory() as cache:
        for way in options.ways:
            rows = folder / f"{name}-{options.app}-{way}.json"
            command = [*RUN, app, options.app, str(rows), str(options.calls)]
            settings = environment(way, known, (options.start or grid).absolute(), cache)
            on_grid(grid, options.mpi, *command, settings=settings)
            results[way] = json.loads(rows.read_text())
    half = options.calls // 2
    print(f"{name}, {options.app}: seconds of calls 1-{half} and {half + 1}-{2 * half}")
    best = results.get("discovered")
    for way, found in results.items():
        halves = [total_s(found[:half]), total_s(found[half:])]
        over = ""
        if best:
            parts = (total_s(best[:half]), total_s(best[half:]))
            ratios = (a / b for a, b in zip(halves, parts, strict=True))
            over = "  (over discovered: {:.3f} {:.3f})".format(*ratios)
        print(f"{way:>12}  {halves[0]:8.2f}  {halves[1]:8.2f}{over}")
    if {"discovered", "frozen", "learning"} <= set(results):
        draw(results, folder / f"regret-{name}-{options.app}.svg")


if __name__ == "__main__":
    main()
