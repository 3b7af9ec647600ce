"""Overlap of computation and collectives: Ibcast and Iallreduce beside matrix products.

An ordinary mpi4py application. With full overlap, both together take as long as the longer of the
two; without overlap, they take as long as the sum.

    mpiexec -n 12 python overlap.py
    mpiexec -n 12 python -m gridcoll run overlap.py
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

ORDER = 96


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Overlap collectives with computation.")
    parser.add_argument("--numbers", type=int, default=131_072, help="float64 numbers per call")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--computing", type=float, default=0.1, help="seconds per call")
    return parser.parse_args()


def compute(seconds: float) -> None:
    matrix = np.full((ORDER, ORDER), 1 / ORDER)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        matrix = matrix @ matrix


def median_s(
    comm: MPI.Intracomm, repeats: int, step: Callable[[float], None], computing_s: float
) -> float:
    """Return the median of the slowest rank's seconds for ``step``. Collective over ``comm``."""
    taken = []
    for _ in range(repeats + 1):  # the first is not counted
        comm.Barrier()
        start = time.perf_counter()
        step(computing_s)
        taken.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
    return float(np.median(taken[1:]))


def main() -> None:
    options = parse_arguments()
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    data, total = np.arange(float(options.numbers)), np.zeros(options.numbers)

    def broadcast(computing_s: float) -> None:
        total[:] = data if rank == 0 else 0
        request = comm.Ibcast(total, 0)
        compute(computing_s)
        request.Wait()
        if not (total == data).all():
            raise SystemExit(f"rank {rank}: wrong data after Ibcast")

    def reduction(computing_s: float) -> None:
        request = comm.Iallreduce(data, total)
        compute(computing_s)
        request.Wait()
        if not (total == size * data).all():
            raise SystemExit(f"rank {rank}: wrong data after Iallreduce")

    for name, call in (("Ibcast", broadcast), ("Iallreduce", reduction)):
        alone_s = median_s(comm, options.repeats, call, 0.0)
        beside_s = median_s(comm, options.repeats, call, options.computing)
        if rank == 0:
            print(f"{name} alone: {alone_s:.6f} s")
            print(f"{name} beside {options.computing} s of computing: {beside_s:.6f} s", flush=True)


if __name__ == "__main__":
    main()
