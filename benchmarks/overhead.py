"""What a `GridComm` costs where it has nothing to gain: one cluster, eight bytes, against native.

``mpiexec -n N python benchmarks/overhead.py``: rank 0 prints medians per call in microseconds, and
how long building a `GridComm` from a stored model takes.
"""

from __future__ import annotations

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
from gridcoll.comm.discovery import load_model
from gridcoll.model import GridModel, linear_plogp, write_model
from gridcoll.topology import Grid

N_CALLS = 200
N_ROUNDS = 41


def one_cluster(n_ranks: int, hosts: list[str]) -> GridModel:
    grid = Grid.from_labels([0] * n_ranks, hosts)
    return GridModel(grid, ((linear_plogp(5e-6, 1e9) if n_ranks > 1 else None,),))


def per_call_s(step: Callable[[], object], comm: MPI.Intracomm) -> float:
    """Of `N_CALLS` calls, begun together."""
    comm.Barrier()
    since = time.perf_counter()
    for _ in range(N_CALLS):
        step()
    return (time.perf_counter() - since) / N_CALLS


def main() -> None:
    world = MPI.COMM_WORLD.Dup()
    hosts = world.allgather(MPI.Get_processor_name())
    path = world.bcast(str(Path(tempfile.gettempdir(), f"overhead-{time.time_ns()}.json")))
    if world.Get_rank() == 0:
        write_model(one_cluster(world.Get_size(), hosts), path)
    world.Barrier()
    took: list[float] = []
    for _ in range(5):
        world.Barrier()
        since = time.perf_counter()
        comm = GridComm(world, model=load_model(world, path))
        took.append(time.perf_counter() - since)
    value, total = np.zeros(1), np.zeros(1)
    lines = [f"{world.Get_size()} ranks; construction {1e3 * statistics.median(took):.1f} ms\n"]
    for name, arguments in (("Bcast", (value,)), ("Allreduce", (value, total)), ("Barrier", ())):
        # In turn, so that what else the machine does hits both.
        methods = [partial(getattr(each, name), *arguments) for each in (world, comm)]
        pairs = [[per_call_s(method, world) for method in methods] for _ in range(N_ROUNDS)]
        native, ours = (1e6 * statistics.median(column) for column in zip(*pairs, strict=True))
        more = 1e6 * statistics.median(b - a for a, b in pairs)
        lines.append(
            f"{name:10} native {native:7.2f} us  gridcoll {ours:7.2f} us  more {more:5.2f} us\n"
        )
    if world.Get_rank() == 0:
        sys.stdout.writelines(lines)
        Path(path).unlink()


if __name__ == "__main__":
    main()
