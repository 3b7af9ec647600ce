"""Measure the overhead of a `GridComm` over native on one machine, where nothing can be gained.

``mpiexec -n N python benchmarks/overhead.py [BYTES …]``: rank 0 prints median microseconds per
call, by default of eight bytes, and the time for building a `GridComm` from a stored model of one
cluster and of three. Then it prints the time of our plans, when the arguments of a call must be
read because their form differs from the last call's, and when the call is known.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI

from gridcoll import GridComm
from gridcoll.measure.find_model import load_model
from gridcoll.model import GridModel, linear_plogp, write_model
from gridcoll.topology import Grid
from gridcoll.topology.units import format_size

N_CALLS = 200
MAX_BYTES_PER_ROUND = 1 << 22
"""Limit for the bytes of all calls in a round: there are fewer calls with long messages."""
N_ROUNDS = 41
N_CONSTRUCTIONS = 9


def model_of(labels: list[int], hosts: list[str]) -> GridModel:
    """Return a model with the clusters of ``labels``, with arbitrary link parameters."""
    grid = Grid.from_labels(labels, hosts)
    links = tuple(
        tuple(
            linear_plogp(5e-3, 1e8)
            if one is not other
            else linear_plogp(5e-6, 1e9)
            if len(one) > 1
            else None
            for other in grid.clusters
        )
        for one in grid.clusters
    )
    return GridModel(grid, links)


def grid_comm_from_file(world: MPI.Intracomm, labels: list[int]) -> tuple[GridComm, float]:
    """Return a `GridComm` made from a file, and the median seconds that this takes.

    Collective over ``world``.
    """
    hosts = world.allgather(MPI.Get_processor_name())
    path = world.bcast(str(Path(tempfile.gettempdir(), f"overhead-{time.time_ns()}.json")))
    if world.Get_rank() == 0:
        write_model(model_of(labels, hosts), path)
    took: list[float] = []
    for _ in range(N_CONSTRUCTIONS):
        world.Barrier()
        since = time.perf_counter()
        comm = GridComm(world, model=load_model(world, path))
        took.append(time.perf_counter() - since)
    if world.Get_rank() == 0:
        Path(path).unlink()
    return comm, statistics.median(took)


def per_call_s(step: Callable[[], object], comm: MPI.Intracomm, n_calls: int) -> float:
    """Return the seconds per call of ``n_calls``, which all ranks of ``comm`` begin together."""
    comm.Barrier()
    since = time.perf_counter()
    for _ in range(n_calls):
        step()
    return (time.perf_counter() - since) / n_calls


def beside_native(world: MPI.Intracomm, comm: GridComm, name: str, *arguments: object) -> str:
    """Time a call natively and by ours, and return a line of output.

    They take turns, so that other load on the machine affects both.
    """
    n_bytes = max((each.nbytes for each in arguments if isinstance(each, np.ndarray)), default=0)
    n_calls = min(N_CALLS, max(MAX_BYTES_PER_ROUND // max(n_bytes, 1), 2))
    methods = [partial(getattr(each, name), *arguments) for each in (world, comm)]
    pairs = [[per_call_s(method, world, n_calls) for method in methods] for _ in range(N_ROUNDS)]
    native, ours = (1e6 * statistics.median(column) for column in zip(*pairs, strict=True))
    more = 1e6 * statistics.median(b - a for a, b in pairs)
    what = f"{name} {format_size(n_bytes)}" if n_bytes else name
    return f"{what:18} native {native:9.2f} us  gridcoll {ours:9.2f} us  more {more:7.2f} us\n"


def planned(world: MPI.Intracomm, comm: GridComm, n_bytes: int) -> str:
    """Time an allreduce by a plan between all ranks, in turns with native; return a line."""
    value, total = np.zeros(n_bytes // 8), np.zeros(n_bytes // 8)
    forced = comm.forced("allreduce", "leaders")
    steps = (
        partial(world.Allreduce, value, total),
        partial(forced.Allreduce, [value, MPI.DOUBLE], [total, MPI.DOUBLE]),
        partial(forced.Allreduce, value, total),
    )
    rounds = [[per_call_s(step, world, N_CALLS) for step in steps] for _ in range(N_ROUNDS)]
    native, read, known = (1e6 * statistics.median(column) for column in zip(*rounds, strict=True))
    what = f"Allreduce {format_size(n_bytes)}"
    return (
        f"{what:18} native {native:9.2f} us  planned, read {read:7.2f} us, known {known:7.2f} us\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "sizes", nargs="*", type=int, default=[8], metavar="BYTES", help="message sizes; default: 8"
    )
    sizes: list[int] = parser.parse_args().sizes
    world = MPI.COMM_WORLD.Dup()
    size = world.Get_size()
    lines, comms = [], []
    for n_clusters in (min(3, size), 1):
        comm, took_s = grid_comm_from_file(
            world, [rank * n_clusters // size for rank in range(size)]
        )
        lines.append(f"{size} ranks, clusters {n_clusters}: construction {1e3 * took_s:.1f} ms\n")
        comms.append(comm)
    several, comm = comms
    for n_bytes in sizes:
        value, total = np.zeros(n_bytes // 8), np.zeros(n_bytes // 8)
        lines.append(beside_native(world, comm, "Bcast", value))
        lines.append(beside_native(world, comm, "Allreduce", value, total))
    lines.append(beside_native(world, comm, "Barrier"))
    lines += [planned(world, several, n_bytes) for n_bytes in sizes if size > 1]
    if world.Get_rank() == 0:
        sys.stdout.writelines(lines)


if __name__ == "__main__":
    main()
