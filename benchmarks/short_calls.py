"""Short collectives by the thousand and many communicators, on near ranks: what plans cost there.

    mpiexec -n 3 python benchmarks/short_calls.py [--rounds 200] [--json FILE]

As an array library works on ranks of one machine: in each round a few communicators are made, and
on each of them and on the first one a few dozen short calls, of arrays and of buffers with counts
and types. Two clusters are declared and plans forced, so that natives are what there is to lose.
Prints medians of the seconds per round, native and ours in turns, and their ratio, of the whole and
of each part.
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
"""Short calls of each kind for each communicator that is made, as in Heat's tests."""


def two_clusters(n_ranks: int) -> GridModel:
    """Any model of them."""
    grid = Grid.from_labels([2 * rank // n_ranks for rank in range(n_ranks)])
    near, far = linear_plogp(5e-6, 1e9), linear_plogp(1e-3, 1e8)
    places = range(len(grid.clusters))
    return GridModel(grid, tuple(tuple(near if a == b else far for b in places) for a in places))


def arrays(comm: MPI.Intracomm) -> None:
    """Calls on arrays."""
    value, total = np.ones(4), np.zeros(4)
    everybodys = np.zeros((comm.Get_size(), 4))
    for _ in range(N_CALLS):
        comm.Allreduce(value, total)
        comm.Allreduce(MPI.IN_PLACE, total, MPI.MAX)
        comm.Bcast(total, 0)
        comm.Allgather(value, everybodys)


def typed(comm: MPI.Intracomm) -> None:
    """The same on memory with counts and types, in new objects for each call."""
    value, total = np.ones(4), np.zeros(4)
    everybodys = np.zeros((comm.Get_size(), 4))

    def spec(array: np.ndarray, count: int) -> list[object]:
        return [MPI.memory.fromaddress(array.ctypes.data, 0), count, MPI.DOUBLE]

    for _ in range(N_CALLS):
        comm.Allreduce(spec(value, 4), spec(total, 4))
        comm.Allreduce(MPI.IN_PLACE, spec(total, 4), MPI.MAX)
        comm.Bcast(spec(total, 4), 0)
        comm.Allgather(spec(value, 4), spec(everybodys, 4))


def objects(comm: MPI.Intracomm) -> None:
    """Calls on objects."""
    for _ in range(N_CALLS):
        comm.allreduce(1)
        comm.bcast((1, 2), 0)


def splits(comm: MPI.Intracomm) -> None:
    """Communicators that are made and not used."""
    for k in range(4):
        comm.Split(0, comm.Get_rank() * (-1) ** k).Free()


def children(comm: MPI.Intracomm) -> None:
    """Communicators that are made and used."""
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
    """Of the slowest rank."""
    world.Barrier()
    since = time.perf_counter()
    part(comm)
    seconds: float = world.allreduce(time.perf_counter() - since, MPI.MAX)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write a row per line to this file")
    options = parser.parse_args()
    os.environ["GRIDCOLL_FORCE"] = "grid"
    world = MPI.COMM_WORLD.Dup()
    comms = (world, GridComm(world, model=two_clusters(world.Get_size())))
    took: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in PARTS}
    for turn in range(options.rounds + 1):
        for name, part in PARTS.items():
            for which in (0, 1) if turn % 2 else (1, 0):
                seconds = took_s(part, comms[which], world)
                if turn:  # what is decided for the first time counts as start
                    took[name][which].append(seconds)
    if world.Get_rank():
        return
    rows = []
    took["all"] = tuple(  # type: ignore[assignment]
        [sum(each) for each in zip(*(took[name][which] for name in PARTS), strict=True)]
        for which in (0, 1)
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
