"""The applications in `apps`, each with the MPI library alone and through gridcoll.

    python benchmarks/applications.py [--grid three-sites] [--mpi mpich] [--output FILE] [NAME …]
    python benchmarks/applications.py --local 4     # without a grid: only that they work
    python benchmarks/applications.py gradients     # 100 MB of gradients; unless named, left out
    python benchmarks/applications.py --theirs DIR  # others' programs, unmodified

For the last, DIR has what ``pip install --target DIR pylops-mpi`` puts there, without the mpi4py
and NumPy in it: those of each MPI's environment are used. Whole runs are timed, from the
launcher's start to its end, and what both ways print must be the same, times aside.

Both ways take turns, `--runs` times; the table has medians, and the fastest and slowest runs. With
`--dilation 4`, the grid is in slow motion.

An emulated grid needs root and one virtual environment per MPI, as `make venv-all` makes them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from on_grids import MPIS, ROOT, Row, add_dilation_option, milliseconds, slowed
from rich.console import Console
from rich.table import Table

from gridcoll.model.bounds import limit_s
from gridcoll.model.wires import wires_from_spec
from gridcoll.topology.gridfile import read_gridfile

APPS = ("adam", "jacobi", "samplesort", "fourier", "overlap")
ALSO = {"gradients": ("allreduce", 100_000_000)}
"""Those that take minutes, with the collective that they are made of and its bytes."""

THEIRS = {
    "post-stack inversion": "tutorials/poststack.py",
    "multi-dimensional deconvolution": "tutorials/mdd.py",
    "least squares": "examples/plot_cgls.py",
}
"""Programs of PyLops-MPI, by what they do: where they lie in the folder of its package. Its matrix
products are not among them: natively, too, they wait for ever unless there is a square of ranks.
"""

WAYS = ("native", "gridcoll")

BIN = Path(sys.executable).parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time applications native and through gridcoll.")
    parser.add_argument(
        "apps", nargs="*", default=APPS, metavar="NAME", help=", ".join((*APPS, *ALSO))
    )
    parser.add_argument("--grid", default="three-sites", help="the name of a file in hostfiles")
    parser.add_argument("--mpi", default="mpich", choices=MPIS)
    parser.add_argument("--local", type=int, metavar="RANKS", help="on this machine, no grid")
    parser.add_argument("--runs", type=int, default=1, help="of each, native and ours in turn")
    parser.add_argument("--theirs", type=Path, metavar="DIR", help="others' programs, from there")
    add_dilation_option(parser)
    parser.add_argument("--output", type=Path, help="write a row per time to this file")
    return parser.parse_args()


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


def whole_run(command: Sequence[str], folder: Path, cwd: Path) -> tuple[float, str]:
    """How long ``command`` took, and what it printed, without lines that tell times."""
    paths = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    own = {"PYTHONPATH": paths, "MPLBACKEND": "Agg", "GRIDCOLL_QUIET": "1"}
    start = time.monotonic()
    process = subprocess.run(
        command, cwd=cwd, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True
    )
    took_s = time.monotonic() - start
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{process.stdout}")
    lines = process.stdout.splitlines()
    return took_s, "\n".join(sorted(line for line in lines if not re.search(r"(?i)time", line)))


def theirs(options: argparse.Namespace, grid: Path) -> list[Row]:
    """A row for each of others' programs. Ends with an error where results differ."""
    folder = options.theirs.resolve()
    settings = [] if options.local else ["env", f"GRIDCOLL_GRID={grid}"]
    python = [*launcher(options, grid), *settings, "python" if settings else sys.executable]
    names = [name for name in THEIRS if set(options.apps) in ({*APPS}, {name})]
    rows: list[Row] = []
    for name in names:
        script = folder / THEIRS[name]
        scripts = {"native": [str(script)], "gridcoll": ["-m", "gridcoll", "run", str(script)]}
        took_s: dict[str, list[float]] = defaultdict(list)
        printed = {}
        for _ in range(options.runs):
            for way in WAYS:
                seconds, printed[way] = whole_run([*python, *scripts[way]], folder, script.parent)
                took_s[way].append(seconds)
                print(f"{name}, {way}: {seconds:.1f} s", flush=True)
        if not same_results(printed["native"], printed["gridcoll"]):
            sys.exit(f"{name}: results differ\n{printed['native']}\n---\n{printed['gridcoll']}")
        rows.append(
            {"grid": grid.stem, "mpi": options.mpi, "local_ranks": options.local, "what": name}
            | {f"{way}_s": statistics.median(took_s[way]) for way in WAYS}
            | {f"{way}_range_s": [min(took_s[way]), max(took_s[way])] for way in WAYS}
            | {"limit_s": None}
        )
    return rows


def same_results(left: str, right: str) -> bool:
    """Whether both print the same, numbers up to the rounding of sums in another order."""
    words = [text.split() for text in (left, right)]
    return len(words[0]) == len(words[1]) and all(map(_alike, *words))


def _alike(left: str, right: str) -> bool:
    try:
        return math.isclose(float(left), float(right), rel_tol=1e-3, abs_tol=1e-9)
    except ValueError:
        return left == right


def print_table(rows: Sequence[Row]) -> None:
    table = Table("application", "native, ms", "gridcoll, ms", "ratio", "limit, ms")
    for row in rows:
        ratio = f"{row['native_s'] / row['gridcoll_s']:.2f} x"
        times = [_with_range(row[f"{way}_s"], *row[f"{way}_range_s"]) for way in WAYS]
        table.add_row(row["what"], *times, ratio, milliseconds(row["limit_s"]))
    Console().print(table)


def _with_range(median_s: float, fastest_s: float, slowest_s: float) -> str:
    return f"{milliseconds(median_s)} ({milliseconds(fastest_s)} – {milliseconds(slowest_s)})"


def main() -> None:
    options = parse_arguments()
    with slowed(ROOT / "hostfiles" / f"{options.grid}.toml", options.dilation) as grid:
        if options.theirs:
            rows = theirs(options, grid)
        else:
            rows = [row for app in options.apps for row in both_ways(app, options, grid)]
    print_table(rows)
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
