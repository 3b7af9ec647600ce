"""Show gridcoll in two minutes: measure a grid, then run an unmodified application on it.

It runs on an emulated grid of three sites, which needs root and Linux network namespaces. Without
these it runs on local ranks with a declared grid. There gridcoll cannot be faster, but all steps
can be seen to work.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gridcoll.errors import TestbedError
from gridcoll.model.bounds import limit_s
from gridcoll.model.wires import wires_from_spec
from gridcoll.topology import read_gridfile

ROOT = Path(__file__).resolve().parent.parent
GRID = ROOT / "hostfiles" / "three-sites.toml"
APPLICATION = ROOT / "benchmarks" / "apps" / "broadcasts.py"
SIZES = (1 << 20, 4 << 20)
BIN = Path(sys.executable).parent

LOCAL_GRID = """\
version = 1
name = "local"
description = "Four local ranks, declared to be two sites of two"
[[clusters]]
name = "here"
ranks = 2
[[clusters]]
name = "there"
ranks = 2
[[links]]
between = ["here", "there"]
latency = "5 ms"
rate = "1 Gbit/s"
"""

console = Console(highlight=False, width=min(110, Console().width))


def heading(text: str) -> None:
    console.rule(f"[bold]{text}", align="left")


def run(command: Sequence[str], settings: dict[str, str] | None = None) -> str:
    """Run and show ``command``; show and return its output. If it fails, exit with its code."""
    shown = [f"{key}={value}" for key, value in (settings or {}).items()]
    words = [str(word).removeprefix(f"{BIN}/").removeprefix(f"{ROOT}/") for word in command]
    console.print(f"[dim]$ {' '.join(shown + words)}")
    process = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(settings or {})}, stdout=subprocess.PIPE, text=True
    )
    console.print(process.stdout.rstrip(), markup=False, soft_wrap=True)
    if process.returncode:
        sys.exit(process.returncode)
    return process.stdout


def times_ms(output: str) -> dict[int, float]:
    """Return the milliseconds that the application prints, by message size in bytes."""
    return {
        int(size): float(ms)
        for size, ms in re.findall(r"broadcast of (\d+) bytes: ([\d.]+) ms", output)
    }


def missing_for_testbed() -> str:
    """Return what this machine lacks for an emulated grid; empty if nothing."""
    try:
        from gridcoll.testbed.linux import check_privileges

        check_privileges()
    except (TestbedError, ImportError) as error:
        return str(error)
    return ""


def launcher(missing: str) -> list[str]:
    if not missing:
        return [str(BIN / "gridcoll"), "testbed", "run", str(GRID), "--"]
    mpiexec = [str(BIN / "mpiexec"), "-n", "4"]
    openmpi = subprocess.run([mpiexec[0], "--version"], capture_output=True, text=True).stdout
    return [mpiexec[0], "--oversubscribe", *mpiexec[1:]] if "Open MPI" in openmpi else mpiexec


def main() -> None:
    argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]).parse_args()
    missing = missing_for_testbed()
    python = str(BIN / "python")
    launch = launcher(missing)
    with tempfile.TemporaryDirectory(prefix="gridcoll-demo-") as folder:
        model = Path(folder, "model.json")
        if missing:
            console.print(f"[yellow]No emulated grid here: {missing}")
            console.print("[yellow]Running the same on four local ranks with a declared grid.\n")
            model = Path(folder, "local.toml")
            model.write_text(LOCAL_GRID)
        else:
            heading("1. Measure the grid")
            run([*launch, python, "-m", "gridcoll", "discover", "-o", str(model)])
        heading("2. The grid")
        run([python, "-m", "gridcoll", "show", str(model)])
        heading("3. An unmodified application under the MPI library alone")
        sizes = [str(size) for size in SIZES]
        native = times_ms(run([*launch, python, str(APPLICATION), *sizes]))
        heading("4. The same application through gridcoll")
        settings = {"GRIDCOLL_GRID": str(model)}
        ours = times_ms(
            run([*launch, python, "-m", "gridcoll", "run", str(APPLICATION), *sizes], settings)
        )
        heading("5. What was chosen, and why")
        run(
            [python, "-m", "gridcoll", "explain", "bcast", "--grid", str(model), "--sizes", "1M"],
        )
    print_result(native, ours, with_limit=not missing)


def print_result(native: dict[int, float], ours: dict[int, float], with_limit: bool) -> None:
    table = Table("bytes", "native", "gridcoll", "ratio", "physical limit", title="Broadcast")
    spec = read_gridfile(GRID)
    wires = wires_from_spec(spec, spec.rank_hosts())
    for size in SIZES:
        limit = f"{limit_s('bcast', wires, size) * 1e3:.1f} ms" if with_limit else "-"
        table.add_row(
            str(size),
            f"{native[size]:.1f} ms",
            f"{ours[size]:.1f} ms",
            f"{native[size] / ours[size]:.2f} x",
            limit,
        )
    console.print(table)


if __name__ == "__main__":
    main()
