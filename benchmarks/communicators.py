"""Time making communicators from a `GridComm`, beside the MPI library's own.

    gridcoll testbed run GRID --mpi MPI -- python benchmarks/communicators.py --grid FILE
    mpiexec -n 4 python benchmarks/communicators.py     # two declared clusters on this machine

There is one line per method: medians of native and of ours, taken in turns, with the fastest and
the slowest, and the ratio of the medians. All ranks begin together, and the time is that of the
slowest one. The last lines are a child that is made and used once, and children of which hundreds
exist at the same time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI
from short_calls import two_clusters

from gridcoll import GridComm
from gridcoll.bench.runs import mpi_name
from gridcoll.model import declared_model
from gridcoll.topology import read_gridfile

Make = Callable[[MPI.Intracomm], MPI.Intracomm]


def by_group(comm: MPI.Intracomm, name: str) -> MPI.Intracomm:
    """Make a communicator of every second rank by the method ``name``."""
    whole = comm.Get_group()
    part = whole.Incl(range(comm.Get_rank() % 2, comm.Get_size(), 2))
    made: MPI.Intracomm = getattr(comm, name)(part)
    part.Free()
    whole.Free()
    return made


def idup(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Duplicate without blocking, and wait."""
    new, request = comm.Idup()
    request.Wait()
    return new


def used(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Make a communicator of half of the ranks, and call a collective on it."""
    half = comm.Split(comm.Get_rank() % 2)
    half.Allreduce(np.zeros(1), np.zeros(1))
    return half


def mesh_of(comm: MPI.Intracomm) -> MPI.Cartcomm:
    """Make a Cartesian communicator of two dimensions."""
    return comm.Create_cart(MPI.Compute_dims(comm.Get_size(), 2))


MAKERS: dict[str, Make] = {
    "Dup": lambda comm: comm.Dup(),
    "Idup": idup,
    "Split": lambda comm: comm.Split(comm.Get_rank() % 2),
    "Split_type": lambda comm: comm.Split_type(MPI.COMM_TYPE_SHARED),
    "Create": lambda comm: by_group(comm, "Create"),
    "Create_group": lambda comm: by_group(comm, "Create_group"),
    "Create_cart": mesh_of,
    "Sub": lambda mesh: mesh.Sub([True, False]),  # type: ignore[attr-defined]
    "Split + Allreduce": used,
}


def took_s(make: Make, comm: MPI.Intracomm, world: MPI.Intracomm, alive: list[Any] | None) -> float:
    """Return the seconds of the slowest rank. The child is freed afterwards, or kept in ``alive``.

    Collective over ``world``.
    """
    world.Barrier()
    world.Barrier()  # ranks may leave the first one at different times
    since = time.perf_counter()
    child = make(comm)
    seconds: float = world.allreduce(time.perf_counter() - since, MPI.MAX)
    if alive is None:
        child.Free()
    else:
        alive.append(child)
    return seconds


def row_of(
    name: str, make: Make, comms: list[MPI.Intracomm], repeats: int, *, keep: bool = False
) -> dict[str, Any]:
    """Time native and ours in turns, and return a row. ``comms`` are the parents, native first."""
    world = comms[0]
    times: list[list[float]] = [[], []]
    kept: list[Any] = []
    for comm in comms:
        took_s(make, comm, world, None)  # the first one opens connections
    for turn in range(repeats):
        for which in (0, 1) if turn % 2 else (1, 0):
            times[which].append(took_s(make, comms[which], world, kept if keep else None))
    for child in kept:
        child.Free()
    row: dict[str, Any] = {"what": name, "mpi": mpi_name(), "ranks": world.Get_size()}
    for way, seconds in zip(("native", "gridcoll"), times, strict=True):
        row |= {f"{way}_s": statistics.median(seconds), f"{way}_all_s": seconds}
    row["ratio"] = row["gridcoll_s"] / row["native_s"]
    return row


def line_of(row: dict[str, Any]) -> str:
    """Format a row as the OSU benchmarks do: a name, then numbers in columns."""
    cells = [f"{row['what']:<22}"]
    for way in ("native", "gridcoll"):
        least, most = min(row[f"{way}_all_s"]), max(row[f"{way}_all_s"])
        cells.append(
            f"{1e3 * row[f'{way}_s']:10.3f} ({1e3 * least:.3f} - {1e3 * most:.3f})".ljust(36)
        )
    return "".join([*cells, f"{row['ratio']:6.3f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--grid", type=Path, help="the declared grid that the job runs on")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--alive", type=int, default=200, help="number of simultaneous children")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    options = parser.parse_args()
    world = MPI.COMM_WORLD.Dup()
    if options.grid:
        hosts = world.allgather(MPI.Get_processor_name())
        model = declared_model(read_gridfile(options.grid), hosts)
    else:
        model = two_clusters(world.Get_size(), 5e-3)
    comm = GridComm(world, model=model)
    meshes: list[MPI.Intracomm] = [mesh_of(world), mesh_of(comm)]
    is_root = world.Get_rank() == 0
    if is_root:
        print(f"# {mpi_name()}, {world.Get_size()} ranks, {model.n_clusters} clusters")
        print(f"{'# Made':<22}{'native, ms':>10}{'gridcoll, ms':>38}{'ratio':>30}", flush=True)
    rows = []

    def add(name: str, make: Make, comms: list[MPI.Intracomm], n: int, *, keep: bool) -> None:
        rows.append(row_of(name, make, comms, n, keep=keep))
        if is_root:
            print(line_of(rows[-1]), flush=True)

    for name, make in MAKERS.items():
        add(name, make, meshes if name == "Sub" else [world, comm], options.repeats, keep=False)
    if options.alive:
        name = f"Split, {options.alive} alive"
        add(name, MAKERS["Split"], [world, comm], options.alive, keep=True)
    if is_root and options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
