"""The applications in `apps`, each with the MPI library alone and through gridcoll.

    python benchmarks/applications.py [--grid three-sites] [--mpi mpich] [--json FILE] [NAME …]
    python benchmarks/applications.py --local 4     # without a grid: only that they work
    python benchmarks/applications.py gradients     # 100 MB of gradients; unless named, left out

An emulated grid needs root and one virtual environment per MPI, as `make venv-all` makes them.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from on_grids import MPIS, ROOT, milliseconds
from rich.console import Console
from rich.table import Table

from gridcoll.model.limits import limit_s, wires_from_spec
from gridcoll.topology.gridfile import read_gridfile

APPS = ("adam", "jacobi", "samplesort", "fourier", "overlap")
ALSO = {"gradients": ("allreduce", 100_000_000)}
"""Those that take minutes, with the collective that they are made of and its bytes."""

BIN = Path(sys.executable).parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time applications native and through gridcoll.")
    parser.add_argument(
        "apps", nargs="*", default=APPS, metavar="NAME", help=", ".join((*APPS, *ALSO))
    )
    parser.add_argument("--grid", default="three-sites", help="the name of a file in hostfiles")
    parser.add_argument("--mpi", default="mpich", choices=MPIS)
    parser.add_argument("--local", type=int, metavar="RANKS", help="on this machine, no grid")
    parser.add_argument("--json", type=Path, help="write a row per time to this file")
    return parser.parse_args()


def launcher(options: argparse.Namespace) -> list[str]:
    if options.local:
        return [str(BIN / "mpiexec"), "-n", str(options.local)]
    return [str(BIN / "gridcoll"), "testbed", "run", options.grid, "--mpi", options.mpi, "--"]


def times_s(command: Sequence[str]) -> dict[str, float]:
    """What an application prints as ``WHAT: TIME s``, by what; if nothing, it is shown instead."""
    process = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{process.stdout}")
    found = re.findall(r"^(.+): ([\d.]+) s$", process.stdout, re.MULTILINE)
    if not found:
        sys.stdout.write(process.stdout)
    return {what: float(seconds) for what, seconds in found}


def least_s(app: str, grid: str) -> float | None:
    """What the wires of ``grid`` allow ``app`` at the very least; None where nobody can tell."""
    if app not in ALSO:
        return None
    spec = read_gridfile(ROOT / "hostfiles" / f"{grid}.toml")
    collective, n_bytes = ALSO[app]
    return limit_s(collective, wires_from_spec(spec, spec.rank_hosts()), n_bytes)


def main() -> None:
    options = parse_arguments()
    table = Table("application", "native, ms", "gridcoll, ms", "ratio", "limit, ms")
    rows = []
    settings = []
    if not options.local:
        settings = ["env", f"GRIDCOLL_GRID={ROOT / 'hostfiles' / options.grid}.toml"]
    for app in options.apps:
        script = f"benchmarks/apps/{app}.py"
        python = [*settings, "python" if settings else sys.executable]
        native = times_s([*launcher(options), *python, script])
        if not native:
            continue
        ours = times_s([*launcher(options), *python, "-m", "gridcoll", "run", script])
        bound_s = None if options.local else least_s(app, options.grid)
        for what, native_s in native.items():
            ratio = native_s / ours[what]
            times = [milliseconds(seconds) for seconds in (native_s, ours[what])]
            table.add_row(what, *times, f"{ratio:.2f} x", milliseconds(bound_s))
            rows.append(
                {"grid": options.grid, "mpi": options.mpi, "local_ranks": options.local}
                | {"what": what, "native_s": native_s, "gridcoll_s": ours[what], "limit_s": bound_s}
            )
    Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
