"""Compare the engine in C with the one in Python: the same plans, in turns, in one job.

    python benchmarks/engines.py [--grid three-sites] [--mpis mpich,openmpi,impi] [--repeats 9]

Starts itself on the emulated grid under every MPI, with the declared model. Each line is one plan,
which is forced. Needs root and one virtual environment per MPI, as `make venv-all` makes them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from on_grids import MPIS, ROOT

from gridcoll.topology.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from gridcoll import GridComm

CASES = (
    ("bcast", "ecef", 8),
    ("bcast", "chain", 8),
    ("bcast", "chain", 1 << 16),
    ("bcast", "chain", 1 << 20),
    ("allreduce", "ring", 1 << 20),
    ("alltoall", "direct", 8),
    ("alltoall", "direct", 1 << 16),
)
ENGINES = ("python", "compiled")


def start(grid: str, mpi: str, repeats: int) -> None:
    gridcoll = str(Path(sys.executable).parent / "gridcoll")
    declared = str(ROOT / "hostfiles" / f"{grid}.toml")
    command = [gridcoll, "testbed", "run", declared, "--mpi", mpi, "--"]
    command += ["python", __file__, "--here", "--grid", grid, "--repeats", str(repeats)]
    print(f"{grid}, {mpi}: median ms", flush=True)
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "GRIDCOLL_GRID": declared})


def call_of(comm: GridComm, collective: str, n_bytes: int) -> Callable[[], object]:
    import numpy as np

    if collective == "bcast":
        buffer = np.zeros(n_bytes, np.uint8)
        return lambda: comm.Bcast(buffer)
    if collective == "allreduce":
        mine, result = np.zeros(n_bytes // 8), np.zeros(n_bytes // 8)
        return lambda: comm.Allreduce(mine, result)
    out, into = (np.zeros((comm.Get_size(), n_bytes), np.uint8) for _ in range(2))
    return lambda: comm.Alltoall(out, into)


def compare(repeats: int) -> None:
    """Time all cases with both engines and print them on rank 0. Runs on every rank of the job."""
    from mpi4py import MPI

    from gridcoll import GridComm
    from gridcoll.engine import runner
    from gridcoll.measure.clock import find_clock, run_together

    world = MPI.COMM_WORLD
    clock, comm = find_clock(world), GridComm(world)
    engines = {"python": lambda *_: None, "compiled": runner.begin_compiled}
    for collective, algorithm, n_bytes in CASES:
        step = call_of(comm.forced(collective, algorithm), collective, n_bytes)
        took: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for turn in range(repeats + 1):
            for engine in ENGINES if turn % 2 else ENGINES[::-1]:
                runner.begin_compiled = engines[engine]
                took[engine].append(run_together(clock, step))
        if world.Get_rank() == 0:
            python, compiled = (took[engine][1:] for engine in ENGINES)
            medians = statistics.median(python) * 1e3, statistics.median(compiled) * 1e3
            q1, _, q3 = (1e3 * value for value in statistics.quantiles(compiled, n=4))
            print(
                f"{collective:10} {algorithm:8} {format_size(n_bytes):>8} "
                f"python {medians[0]:7.1f}  compiled {medians[1]:7.1f} ({q1:.1f}–{q3:.1f})  "
                f"{medians[0] / medians[1]:.2f} x",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--grid", default="three-sites")
    parser.add_argument("--mpis", default=",".join(MPIS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--here", action="store_true", help="run in the job itself")
    options = parser.parse_args()
    if options.here:
        compare(options.repeats)
        return
    for mpi in options.mpis.split(","):
        start(options.grid, mpi, options.repeats)


if __name__ == "__main__":
    main()
