"""The applications in `apps`, each with the MPI library alone and through gridcoll.

    python benchmarks/applications.py [--grid three-sites] [--mpi mpich] [--output FILE] [NAME …]
    python benchmarks/applications.py --local 4     # without a grid: only that they work
    python benchmarks/applications.py gradients     # 100 MB of gradients; unless named, left out
    python benchmarks/applications.py --theirs DIR  # others' programs, unmodified; --markdown: kept

For the last, docs/benchmarks.md says what DIR has. Whole runs are timed, from the launcher's start
to its end, and what both ways print must be the same, times aside. See `theirs.py`.

Both ways take turns, `--runs` times; the table has medians, and the fastest and slowest runs. With
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

APPS = ("adam", "jacobi", "samplesort", "fourier", "overlap")
ALSO = {"gradients": ("allreduce", 100_000_000)}
"""Those that take minutes, with the collective that they are made of and its bytes."""

BIN = Path(sys.executable).parent


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time applications native and through gridcoll.")
    parser.add_argument(
        "apps", nargs="*", default=APPS, metavar="NAME", help=", ".join((*APPS, *ALSO, *PROGRAMS))
    )
    parser.add_argument("--grid", default="three-sites", help="the name of a file in hostfiles")
    parser.add_argument("--mpi", default="mpich", choices=MPIS)
    parser.add_argument("--local", type=int, metavar="RANKS", help="on this machine, no grid")
    parser.add_argument("--runs", type=int, default=1, help="of each, native and ours in turn")
    parser.add_argument("--theirs", type=Path, metavar="DIR", help="others' programs, from there")
    parser.add_argument(
        "--limit", type=float, default=300, metavar="S", help="end a run of theirs after S seconds"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="the table of others' programs, from kept rows"
    )
    add_dilation_option(parser)
    parser.add_argument("--output", type=Path, help="write a row per time to this file")
    return parser.parse_args(arguments)


def launcher(options: argparse.Namespace, grid: Path) -> list[str]:
    if options.local:
        return [str(BIN / "mpiexec"), "-n", str(options.local)]
    return [str(BIN / "gridcoll"), "testbed", "run", str(grid), "--mpi", options.mpi, "--"]


def times_s(command: Sequence[str]) -> dict[str, float]:
    """What an application prints as ``WHAT: TIME s``, by what; if nothing, it is shown instead."""
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{process.stdout}")
    found = re.findall(r"^(.+): ([\d.]+) s$", process.stdout, re.MULTILINE)
    if not found:
        sys.stdout.write(process.stdout)
    return {what: float(seconds) for what, seconds in found}


def least_s(app: str, grid: Path) -> float | None:
    """What the wires of ``grid`` allow ``app`` at the very least; None where nobody can tell."""
    if app not in ALSO:
        return None
    spec = read_gridfile(grid)
    collective, n_bytes = ALSO[app]
    return limit_s(collective, wires_from_spec(spec, spec.rank_hosts()), n_bytes)


def both_ways(app: str, options: argparse.Namespace, grid: Path) -> list[Row]:
    """A row for everything that ``app`` times; none if it times nothing here."""
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
    bound_s = None if options.local else least_s(app, grid)
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
    """Their programs: all, or those named. Rows go to the output as they come."""
    time_them(
        [name for name in PROGRAMS if options.apps is APPS or name in options.apps],
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
