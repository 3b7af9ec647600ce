"""Time all-to-alls that take minutes, each variant once. Each row is kept when it is complete.

    gridcoll testbed run GRID --mpi mpich -- python benchmarks/exchange_once.py GRID 64K ROWS.json

`gridcoll bench` takes turns, so there is no result until the slowest variant has run twice. Here a
run that is stopped leaves the rows of the variants that had ended. LG runs first.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mpi4py import MPI
from msgspec.structs import asdict

from gridcoll.bench.runs import Row, mpi_name, trials_of
from gridcoll.cli.models import load_model
from gridcoll.comm.communicator import GridComm
from gridcoll.files import write_atomically
from gridcoll.measure.clock import find_clock, run_together
from gridcoll.model.bounds import limit_s
from gridcoll.model.wires import wires_from_spec
from gridcoll.topology.gridfile import read_gridfile
from gridcoll.topology.units import parse_size_bytes

VARIANTS = ("gridcoll:lg", "native", "gridcoll:direct")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("grid", help="grid file")
    parser.add_argument("size", help="size of a block, as 64K")
    parser.add_argument("rows", type=Path, metavar="ROWS.json", help="write the rows to this file")
    options = parser.parse_args()
    grid, path = options.grid, options.rows
    world, n_bytes = MPI.COMM_WORLD, parse_size_bytes(options.size)
    comm = GridComm(world, model=load_model(grid))
    hosts = world.allgather(MPI.Get_processor_name())
    bound_s = limit_s("alltoall", wires_from_spec(read_gridfile(Path(grid)), hosts), n_bytes, 0)
    clock = find_clock(world.Dup(), comm.grid, n_samples=3)
    # A short exchange opens the connections.
    for n, variants in ((8, VARIANTS[-1:]), (n_bytes, VARIANTS)):
        trials = {t.variant: t for t in trials_of(comm, "alltoall", n, 0, ["lg", "direct"])}
        for variant in variants:
            trial = trials[variant]
            trial.reset(0)
            took_s = run_together(clock, trial.step)
            wrong = world.allreduce(not trial.verify(0), MPI.SUM)
            if world.Get_rank():
                continue
            print(f"{variant} {n} B: {took_s:.2f} s{', WRONG' if wrong else ''}", flush=True)
            if n == n_bytes:
                predicted_s = None if trial.predicted_s is None else float(trial.predicted_s)
                row = Row(
                    *("alltoall", comm.grid.name, mpi_name(), n, variant),
                    *(took_s, took_s, took_s, predicted_s, bound_s, 1, trial.algorithm),
                    n_ranks=world.Get_size(),
                )
                kept = json.loads(path.read_text()) if path.exists() else []
                kept = [r for r in kept if (r["bytes"], r["variant"]) != (n, variant)]
                rows = sorted([*kept, asdict(row)], key=lambda r: r["bytes"])
                write_atomically(path, json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
