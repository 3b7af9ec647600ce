"""Time the start and the calls of a job that knows nothing of its grid.

    gridcoll testbed run GRID --mpi MPI -- python benchmarks/from_nothing.py hostfiles/GRID.toml
        [--calls 'bcast:8,64K,1M allreduce:8,64K']

No cache is read or written, and nothing is learned during the run. Prints Markdown: the time of the
start, and calls beside native and the limit.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.bench.runs import NATIVES, Row, run_benchmark
from gridcoll.model.wires import wires_from_spec
from gridcoll.topology.gridfile import read_gridfile
from gridcoll.topology.units import format_size, parse_size_bytes

CALLS = (
    "bcast:8,64K,1M,4M reduce:8,64K,1M allreduce:8,64K,1M,4M alltoall:8,1K,16K,64K "
    "scatter:8,64K gather:8,64K allgather:8,64K"
)


def line_of(rows: list[Row]) -> str:
    """Return a Markdown line with the best native beside ours."""
    native_s = min(row.median_s for row in rows if row.variant in NATIVES)
    (ours,) = (row for row in rows if row.variant == "gridcoll")
    return (
        f"| {ours.collective} | {format_size(ours.bytes)} | {native_s * 1e3:.1f} ms "
        f"| {ours.median_s * 1e3:.1f} ms ({ours.q1_s * 1e3:.1f} – {ours.q3_s * 1e3:.1f}) "
        f"| {native_s / ours.median_s:.2f} x | {ours.limit_s * 1e3:.1f} ms "
        f"| {ours.median_s / ours.limit_s:.2f} x | {ours.algorithm.partition(':')[0]} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("grid", type=Path, help="the declared grid that the job runs on")
    parser.add_argument("--calls", default=CALLS)
    parser.add_argument("--repeats", type=int, default=6)
    options = parser.parse_args()
    os.environ |= {"GRIDCOLL_CACHE": "off", "GRIDCOLL_LEARN": "off"}
    world = MPI.COMM_WORLD
    world.Barrier()
    began_s = time.perf_counter()
    comm = GridComm(world)
    took_s = world.allreduce(time.perf_counter() - began_s, MPI.MAX)
    wires = wires_from_spec(read_gridfile(options.grid), world.allgather(MPI.Get_processor_name()))
    is_root = world.Get_rank() == 0
    if is_root:
        sizes = ", ".join(str(len(cluster)) for cluster in comm.grid.clusters)
        print(f"Start {took_s:.1f} s; clusters of {sizes} ranks.\n")
        print("| call | message | best native | gridcoll | faster | limit | of limit | chosen |")
        print("|---|--:|--:|--:|--:|--:|--:|---|", flush=True)
    for call in options.calls.split():
        collective, _, sizes = call.partition(":")
        for size in sizes.split(","):
            rows = run_benchmark(
                comm, collective, [parse_size_bytes(size)], wires, repeats=options.repeats
            )
            if is_root:
                print(line_of(rows), flush=True)


if __name__ == "__main__":
    main()
