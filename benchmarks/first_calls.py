"""Compare first calls after a quick start with those after a full discovery, on a grid.

    gridcoll testbed run GRID --mpi MPI -- python benchmarks/first_calls.py MODEL.json [--json FILE]

MODEL.json is the result of `gridcoll discover` on the grid. If both models choose the same plan,
the ratio is 1. Otherwise both plans run in turns, and the ratio is that of their medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path

from mpi4py import MPI

from gridcoll.engine.natives import native_call
from gridcoll.measure.clock import CommonClock, Series, find_clock
from gridcoll.measure.find_model import load_model
from gridcoll.measure.natives import CALLS
from gridcoll.measure.quick import quick_model
from gridcoll.measure.trials import RUNS, Step
from gridcoll.model import write_model
from gridcoll.plan import choose
from gridcoll.plan.registry import Candidate
from gridcoll.topology.units import format_size

SIZES = (8, 1 << 16, 1 << 20, 1 << 22)
MAX_ALLTOALL_BYTES = 1 << 20  # with 4 MiB per pair, a dozen hosts would exchange half a gigabyte


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", help="model of the full discovery")
    parser.add_argument("--quick", default="", help="keep the quick model in this file")
    parser.add_argument("--json", default="")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    comm = MPI.COMM_WORLD.Dup()
    full = load_model(comm, options.model)
    comm.Barrier()
    begin = time.perf_counter()
    quick = quick_model(comm)
    took_s = time.perf_counter() - begin
    is_root = comm.Get_rank() == 0
    if is_root and options.quick:
        write_model(quick, options.quick)
    if is_root:
        print(f"quick model of {quick.n_clusters} clusters in {took_s:.2f} s", flush=True)
    rows = []
    clock = find_clock(comm, full.grid)
    for collective in RUNS:
        for n_bytes in SIZES:
            if collective == "alltoall" and n_bytes > MAX_ALLTOALL_BYTES:
                continue
            winners = [choose(collective, model, n_bytes, 0).winner for model in (quick, full)]
            a, b = winners
            same = (a.name, a.label.split(",")[0]) == (b.name, b.label.split(",")[0])
            medians = [1.0, 1.0]
            if not same:
                medians = in_turns(comm, clock, collective, n_bytes, winners, options.repeats)
            row = {
                "collective": collective,
                "bytes": n_bytes,
                "quick": f"{a.name}: {a.label}",
                "full": f"{b.name}: {b.label}",
                "quick_s": None if same else medians[0],
                "full_s": None if same else medians[1],
                "ratio": medians[0] / medians[1],
            }
            rows.append(row)
            if is_root:
                print(
                    f"{collective:10} {format_size(n_bytes):>8} {row['ratio']:6.2f}  "
                    f"{medians[0] * 1e3:8.1f} {medians[1] * 1e3:8.1f} ms  "
                    f"{row['quick']} | {row['full']}",
                    flush=True,
                )
    if is_root:
        ratios = [float(str(row["ratio"])) for row in rows]
        print(f"median {statistics.median(ratios):.2f}, worst {max(ratios):.2f}", flush=True)
        if options.json:
            text = json.dumps({"quick_model_s": took_s, "rows": rows}, indent=1)
            Path(options.json).write_text(text + "\n")


def in_turns(
    comm: MPI.Intracomm,
    clock: CommonClock,
    collective: str,
    n_bytes: int,
    winners: list[Candidate],
    repeats: int,
) -> list[float]:
    """Return the median seconds of each winner.

    They run alternately, each after a run of its own that does not count. Collective over ``comm``.
    """
    steps = [_step(comm, collective, n_bytes, winner) for winner in winners]
    series = Series(clock)
    took: list[list[float]] = [[] for _ in steps]
    for turn in range(repeats + 1):
        for k in (0, 1) if turn % 2 else (1, 0):
            seconds = [series.run(steps[k]) for _ in range(2)]
            if turn:  # the first run of a turn is affected by what the other plan left behind
                took[k].append(seconds[1])
    return [statistics.median(each) for each in took]


def _step(comm: MPI.Intracomm, collective: str, n_bytes: int, winner: Candidate) -> Step:
    if winner.build is not None:
        return RUNS[collective](comm, winner.build, n_bytes)
    method, arguments = CALLS[collective](comm.Get_size(), n_bytes)
    return partial(native_call(winner.name, method), comm, *arguments)


if __name__ == "__main__":
    main()
