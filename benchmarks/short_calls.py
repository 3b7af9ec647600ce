"""Measure the cost of plans for many short collectives and communicators, on nearby ranks.

    mpiexec -n 3 python benchmarks/short_calls.py [--rounds 200] [--json FILE]

The calls are those of an array library on ranks of one machine. Each round makes a few
communicators, and makes a few dozen short calls on each of them and on the first one, with arrays
and with buffers with counts and types. Two clusters are declared and plans are forced, so that the
ratio to native is the loss. Prints median times per round, native and ours in turns, and their
ratio, for the whole and for each part.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.bench.runs import mpi_name
from gridcoll.model import GridModel, linear_plogp
from gridcoll.topology import Grid

Part = Callable[[MPI.Intracomm], None]

N_CALLS = 25
"""Number of short calls of each kind for each communicator, as in Heat's tests."""


def two_clusters(n_ranks: int, latency_s: float) -> GridModel:
    """Return a model of two clusters that are ``latency_s`` apart, with arbitrary rates."""
    grid = Grid.from_labels([2 * rank // n_ranks for rank in range(n_ranks)])
    near, far = linear_plogp(5e-6, 1e9), linear_plogp(latency_s, 1e8)
    places = range(len(grid.clusters))
    return GridModel(grid, tuple(tuple(near if a == b else far for b in places) for a in places))


def arrays(comm: MPI.Intracomm) -> None:
    """Make calls on arrays."""
    value, total = np.ones(4), np.zeros(4)
    gathered = np.zeros((comm.Get_size(), 4))
    for _ in range(N_CALLS):
        comm.Allreduce(value, total)
        comm.Allreduce(MPI.IN_PLACE, total, MPI.MAX)
        comm.Bcast(total, 0)
        comm.Allgather(value, gathered)


def typed(comm: MPI.Intracomm) -> None:
    """Make the same calls on memory with counts and types, in new objects for each call."""
    value, total = np.ones(4), np.zeros(4)
    gathered = np.zeros((comm.Get_size(), 4))

    def spec(array: np.ndarray, count: int) -> list[object]:
        return [MPI.memory.fromaddress(array.ctypes.data, 0), count, MPI.DOUBLE]

    for _ in range(N_CALLS):
        comm.Allreduce(spec(value, 4), spec(total, 4))
        comm.Allreduce(MPI.IN_PLACE, spec(total, 4), MPI.MAX)
        comm.Bcast(spec(total, 4), 0)
        comm.Allgather(spec(value, 4), spec(gathered, 4))


def objects(comm: MPI.Intracomm) -> None:
    """Make calls on objects."""
    for _ in range(N_CALLS):
        comm.allreduce(1)
        comm.bcast((1, 2), 0)


def splits(comm: MPI.Intracomm) -> None:
    """Make communicators that are not used."""
    for k in range(4):
        comm.Split(0, comm.Get_rank() * (-1) ** k).Free()


def children(comm: MPI.Intracomm) -> None:
    """Make communicators that are used."""
    for part in (comm.Split(0), comm.Split(int(comm.Get_rank() > 0)), comm.Dup()):
        arrays(part)
        part.Free()


PARTS: dict[str, Part] = {
    "arrays": arrays,
    "types": typed,
    "objects": objects,
    "splits": splits,
    "children": children,
}


def took_s(part: Part, comm: MPI.Intracomm, world: MPI.Intracomm) -> float:
    """Return the seconds of the slowest rank. Collective over ``world``."""
    world.Barrier()
    since = time.perf_counter()
    part(comm)
    seconds: float = world.allreduce(time.perf_counter() - since, MPI.MAX)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    os.environ["GRIDCOLL_FORCE"] = "grid"
    world = MPI.COMM_WORLD.Dup()
    comms = (world, GridComm(world, model=two_clusters(world.Get_size(), 1e-3)))
    took: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in PARTS}
    for turn in range(options.rounds + 1):
        for name, part in PARTS.items():
            for side in (0, 1) if turn % 2 else (1, 0):
                seconds = took_s(part, comms[side], world)
                if turn:  # the first turn makes decisions; it counts as part of the start
                    took[name][side].append(seconds)
    if world.Get_rank():
        return
    rows = []
    took["all"] = tuple(  # type: ignore[assignment]
        [sum(each) for each in zip(*(took[name][side] for name in PARTS), strict=True)]
        for side in (0, 1)
    )
    print(f"# {mpi_name()}, {world.Get_size()} ranks, {options.rounds} rounds")
    print(f"{'# Part':<12}{'native, ms':>12}{'gridcoll, ms':>14}{'ratio':>8}")
    for name, (native, ours) in took.items():
        a, b = statistics.median(native), statistics.median(ours)
        rows.append({"part": name, "native_s": a, "gridcoll_s": b, "ratio": b / a})
        print(f"{name:<12}{1e3 * a:12.3f}{1e3 * b:14.3f}{b / a:8.2f}")
    if options.json:
        options.json.write_text(json.dumps({"mpi": mpi_name(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
