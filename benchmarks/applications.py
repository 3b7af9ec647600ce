"""Time the applications in `apps` with the MPI library alone and through gridcoll.

    python benchmarks/applications.py [--grid three-sites] [--mpi mpich] [--output FILE] [NAME …]
    python benchmarks/applications.py --local 4     # without a grid, only to see that they work
    python benchmarks/applications.py gradients     # 100 MB of gradients; runs only if named
    python benchmarks/applications.py --theirs DIR  # unmodified third-party programs
    python benchmarks/applications.py --markdown    # their table, from the rows kept

docs/benchmarks.md describes DIR. For third-party programs, whole runs are timed, from the
launcher's start to its end, and both ways must print the same, apart from times. See `theirs.py`.

Both ways take turns, `--runs` times. The table has medians, and the fastest and slowest runs. With
`--dilation 4`, the grid is in slow motion.

An emulated grid needs root and one virtual environment per MPI, as `make venv-all` makes them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from on_grids import MPIS, ROOT, Row, add_dilation_option, milliseconds, slowed
from rich.console import Console
from rich.table import Table
from theirs import PROGRAMS, WAYS, keep_in, print_markdown, time_them

from gridcoll.model.bounds import limit_s
from gridcoll.model.wires import wires_from_spec
from gridcoll.topology.gridfile import read_gridfile

DEFAULT_APPS = ("adam", "jacobi", "samplesort", "fourier", "overlap")
SLOW_APPS = {"gradients": ("allreduce", 100_000_000)}
"""Applications that take minutes, with the collective that takes their time and its bytes."""

BIN = Path(sys.executable).parent


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time applications native and through gridcoll.")
    parser.add_argument(
        "apps",
        nargs="*",
        default=DEFAULT_APPS,
        metavar="NAME",
        help=", ".join((*DEFAULT_APPS, *SLOW_APPS, *PROGRAMS)),
    )
    parser.add_argument("--grid", default="three-sites", help="the name of a file in hostfiles")
    parser.add_argument("--mpi", default="mpich", choices=MPIS)
    parser.add_argument("--local", type=int, metavar="RANKS", help="on this machine, no grid")
    parser.add_argument("--runs", type=int, default=1, help="runs of each, native and ours in turn")
    parser.add_argument(
        "--theirs", type=Path, metavar="DIR", help="run the programs in this folder"
    )
    parser.add_argument(
        "--limit", type=float, default=300, metavar="S", help="end such a run after S seconds"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the table of such programs, from kept rows"
    )
    add_dilation_option(parser)
    parser.add_argument("--output", type=Path, help="write a row per time to this file")
    return parser.parse_args(arguments)


def launcher(options: argparse.Namespace, grid: Path) -> list[str]:
    if options.local:
        return [str(BIN / "mpiexec"), "-n", str(options.local)]
    return [str(BIN / "gridcoll"), "testbed", "run", str(grid), "--mpi", options.mpi, "--"]


def times_s(command: Sequence[str]) -> dict[str, float]:
    """Return the times that an application prints as ``WHAT: TIME s``, by what.

    If there are none, its output is printed instead.
    """
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{process.stdout}")
    found = re.findall(r"^(.+): ([\d.]+) s$", process.stdout, re.MULTILINE)
    if not found:
        sys.stdout.write(process.stdout)
    return {what: float(seconds) for what, seconds in found}


def lower_bound_s(app: str, grid: Path) -> float | None:
    """Return the time that ``app`` takes at least on ``grid``; None if it is not known."""
    if app not in SLOW_APPS:
        return None
    spec = read_gridfile(grid)
    collective, n_bytes = SLOW_APPS[app]
    return limit_s(collective, wires_from_spec(spec, spec.rank_hosts()), n_bytes)


def both_ways(app: str, options: argparse.Namespace, grid: Path) -> list[Row]:
    """Return a row for each time that ``app`` prints; none if it prints no time here."""
    script = f"benchmarks/apps/{app}.py"
    settings = [] if options.local else ["env", f"GRIDCOLL_GRID={grid}"]
    python = [*launcher(options, grid), *settings, "python" if settings else sys.executable]
    scripts = {"native": [script], "gridcoll": ["-m", "gridcoll", "run", script]}
    took_s: dict[str, dict[str, list[float]]] = {way: defaultdict(list) for way in WAYS}
    for _ in range(options.runs):
        for way in WAYS:
            for what, seconds in times_s([*python, *scripts[way]]).items():
                took_s[way][what].append(seconds)
            if not took_s["native"]:
                return []
    bound_s = None if options.local else lower_bound_s(app, grid)
    return [
        {"grid": grid.stem, "mpi": options.mpi, "local_ranks": options.local, "what": what}
        | {f"{way}_s": statistics.median(took_s[way][what]) for way in WAYS}
        | {f"{way}_range_s": [min(took_s[way][what]), max(took_s[way][what])] for way in WAYS}
        | {"limit_s": bound_s}
        for what in took_s["native"]
    ]


def print_table(rows: Sequence[Row]) -> None:
    table = Table("application", "native, ms", "gridcoll, ms", "ratio", "limit, ms")
    for row in rows:
        ratio = f"{row['native_s'] / row['gridcoll_s']:.2f} x"
        times = [_with_range(row[f"{way}_s"], *row[f"{way}_range_s"]) for way in WAYS]
        table.add_row(row["what"], *times, ratio, milliseconds(row["limit_s"]))
    Console().print(table)


def _with_range(median_s: float, fastest_s: float, slowest_s: float) -> str:
    return f"{milliseconds(median_s)} ({milliseconds(fastest_s)} – {milliseconds(slowest_s)})"


def run_theirs(options: argparse.Namespace, grid: Path) -> None:
    """Run third-party programs, all or those named. Each row is written when it is complete."""
    time_them(
        [name for name in PROGRAMS if options.apps is DEFAULT_APPS or name in options.apps],
        options.theirs,
        grid=grid,
        mpi=options.mpi,
        local_ranks=options.local,
        n_runs=options.runs,
        limit_s=options.limit,
        keep=keep_in(options.output) if options.output else print,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    if options.markdown:
        print_markdown()
        return
    with slowed(ROOT / "hostfiles" / f"{options.grid}.toml", options.dilation) as grid:
        if options.theirs:
            run_theirs(options, grid)
            return
        rows = [row for app in options.apps for row in both_ways(app, options, grid)]
    print_table(rows)
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
