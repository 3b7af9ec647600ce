r"""Measure the time that gridcoll adds to the start of a job, on emulated grids.

    python benchmarks/startup.py [--grids three-sites,thin-wan] [--mpis mpich,openmpi] [--json FILE]
    python benchmarks/startup.py --grids grid5000-88 --dilation 16 --mpis mpich --states unknown \
        --runs 1    # 88 hosts: seven minutes on two cores

There are four states of the cache: ``unknown`` (it is empty), ``same`` (the same job ran before),
``other`` (measured under another MPI library, with another order and count of ranks) and
``new-host`` (one host of each site is not in it). Seconds are medians of ``--runs`` jobs.
``added`` is the time of making a ``GridComm`` after a barrier, on the slowest rank. ``import`` is
the time of the imports before it, which is shown but not included. On a grid in slow motion
(``--dilation``), ``added`` is network time: wall time divided by the dilation.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from on_grids import MPIS, ROOT, Row, slowed

from gridcoll.files import write_atomically
from gridcoll.topology import read_gridfile

GRIDS = ("three-sites", "thin-wan", "two-sites-uneven", "scrambled", "one-cluster")
STATES = ("unknown", "same", "other", "new-host")
BARS_S = {
    "three-sites": {"unknown": 5.0, "same": 0.7, "other": 1.0, "new-host": 2.0},
    "grid5000-88": {"unknown": 15.0},
}
"""The longest accepted seconds by grid, of 12 and of 88 hosts, and state."""

TIMEOUT_S = 240
"""A job may take that long, in network time."""

JOB = """
import sys, time
began = time.monotonic()
from mpi4py import MPI
import gridcoll, gridcoll.comm.communicator
imported = time.monotonic() - began
world = MPI.COMM_WORLD
comm = MPI.Intracomm(world.Split(0 if {member} else MPI.UNDEFINED, {key}))
if comm != MPI.COMM_NULL:
    comm.Barrier()
    began = time.monotonic()
    grid = gridcoll.GridComm(comm)
    took = comm.allreduce(time.monotonic() - began, MPI.MAX)
    slowest = comm.allreduce(imported, MPI.MAX)
    if comm.Get_rank() == 0:
        print("STARTED", took, slowest, len(grid.grid.clusters), flush=True)
"""


def job(state: str) -> str:
    """Return the program of a job in ``state``.

    In ``other``, the ranks are in reverse order and one in five is left out.
    """
    if state != "other":
        return JOB.format(member="True", key="world.Get_rank()")
    member = "world.Get_rank() % 5 != 4 or world.Get_size() < 5"
    return JOB.format(member=member, key="-world.Get_rank()")


def run_job(grid: Path, mpi: str, cache: Path, state: str) -> tuple[float, float, int] | None:
    """Run a job; return the seconds added, the seconds of imports and the number of clusters.

    Returns None if the job failed.
    """
    gridcoll = [sys.executable, "-m", "gridcoll"]
    on_grid = [*gridcoll, "testbed", "run", str(grid), "--mpi", mpi, "--"]
    environment = {**os.environ, "GRIDCOLL_CACHE": str(cache), "GRIDCOLL_QUIET": "1"}
    environment["PYTHONPATH"] = f"{ROOT}:{environment.get('PYTHONPATH', '')}"
    limit_s = TIMEOUT_S * read_gridfile(grid).dilation
    try:
        done = subprocess.run(
            [*on_grid, "python", "-c", job(state)],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    for line in done.stdout.splitlines():
        if line.startswith("STARTED"):
            took, imported, clusters = line.split()[1:]
            return float(took), float(imported), int(clusters)
    print(done.stderr[-500:], file=sys.stderr)
    return None


def forget_hosts(cache: Path, grid: Path) -> None:
    """Remove the last host of each cluster from the cache, if it is not the only one."""
    for hosts in read_gridfile(grid).hosts:
        if len(hosts) > 1:
            for path in cache.glob(f"v*/hosts/{hosts[-1]}.json"):
                path.unlink()


@contextmanager
def filled_cache(grid: Path, mpi: str) -> Iterator[Path]:
    """Yield a cache that a job under ``mpi`` on ``grid`` has filled."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "cache")
        run_job(grid, mpi, cache, "unknown")
        yield cache


def measure(grid: Path, mpi: str, states: Sequence[str], n_runs: int, scale: float) -> list[Row]:
    """Measure and return a row for each state, with the added times divided by ``scale``."""
    rows = []
    other = MPIS[(MPIS.index(mpi) + 1) % len(MPIS)]
    for state in states:
        found = []
        if state == "unknown":
            for _ in range(n_runs):
                with tempfile.TemporaryDirectory() as folder:
                    found.append(run_job(grid, mpi, Path(folder, "cache"), state))
        else:
            with filled_cache(grid, other if state == "other" else mpi) as cache:
                for _ in range(n_runs):
                    if state == "new-host":
                        forget_hosts(cache, grid)
                    found.append(run_job(grid, mpi, cache, state))
        good = [run for run in found if run is not None]
        row: Row = {
            "grid": grid.stem,
            "mpi": mpi,
            "state": state,
            "added_s": statistics.median(run[0] for run in good) / scale if good else None,
            "added_each_s": [run[0] / scale for run in good],
            "import_s": statistics.median(run[1] for run in good) if good else None,
            "clusters": sorted({run[2] for run in good}),
            "failed": len(found) - len(good),
        }
        print(line_of(row), flush=True)
        rows.append(row)
    return rows


HEAD = (
    f"{'# grid':20}{'MPI':10}{'state':10}{'added s':>10}{'min':>8}{'max':>8}"
    f"{'import s':>10}{'clusters':>10}  bar"
)


def line_of(row: Row) -> str:
    if row["added_s"] is None:
        return f"{row['grid']:20}{row['mpi']:10}{row['state']:10}{'failed':>10}"
    each, clusters = row["added_each_s"], ",".join(map(str, row["clusters"]))
    bar = BARS_S.get(row["grid"].partition("-x")[0], {}).get(row["state"])
    kept = "" if bar is None else f"  {bar:g} {'kept' if row['added_s'] <= bar else 'MISSED'}"
    return (
        f"{row['grid']:20}{row['mpi']:10}{row['state']:10}{row['added_s']:10.2f}{min(each):8.2f}"
        f"{max(each):8.2f}{row['import_s']:10.2f}{clusters:>10}{kept}"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--grids", default=",".join(GRIDS))
    parser.add_argument("--mpis", default=",".join(MPIS))
    parser.add_argument("--states", default=",".join(STATES))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dilation", type=float, default=1.0, metavar="K", help="slow down by K")
    parser.add_argument("--json", default="", metavar="FILE", help="write the rows to this file")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    print(HEAD)
    for name in options.grids.split(","):
        plain = Path(name if name.endswith(".toml") else ROOT / "hostfiles" / f"{name}.toml")
        with slowed(plain, options.dilation) as grid:
            for mpi in options.mpis.split(","):
                scale = read_gridfile(grid).dilation
                rows += measure(grid, mpi, options.states.split(","), options.runs, scale)
    if options.json:
        write_atomically(options.json, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
