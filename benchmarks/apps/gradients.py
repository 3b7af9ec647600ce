"""Distributed training without the network: gradients averaged over all ranks, step by step.

An ordinary mpi4py application with NumPy only. Parameters are cut into buckets, as data-parallel
training does, and each bucket's gradients are summed by one Allreduce. Every step is verified.

    mpiexec -n 12 python gradients.py
    mpiexec -n 12 python -m gridcoll run gradients.py
"""

import argparse
import time

import numpy as np
from mpi4py import MPI

PERIOD = 1021
"""Gradients repeat after so many parameters: small whole numbers, whose sums float32 holds."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Average gradients over all ranks.")
    parser.add_argument("--parameters", type=int, default=25_000_000, help="float32 numbers")
    parser.add_argument("--bucket", type=int, default=6_250_000, help="parameters per Allreduce")
    parser.add_argument("--steps", type=int, default=3)
    return parser.parse_args()


def fill_gradients(gradients: np.ndarray, rank: int, step: int) -> None:
    """Stands in for a backward pass."""
    gradients[:] = np.resize(np.arange(PERIOD) % 97 + rank + step, len(gradients))


def check_sums(sums: np.ndarray, n_ranks: int, step: int) -> bool:
    """Whether ``sums`` is what all ranks' gradients add up to."""
    of_ranks = n_ranks * (n_ranks - 1) // 2
    wanted = n_ranks * (np.arange(PERIOD) % 97 + step) + of_ranks
    return bool((sums == np.resize(wanted, len(sums)).astype(np.float32)).all())


def main() -> None:
    options = parse_arguments()
    comm = MPI.COMM_WORLD
    rank, n_ranks = comm.Get_rank(), comm.Get_size()
    gradients = np.empty(options.parameters, np.float32)
    sums = np.empty_like(gradients)
    parameters = np.zeros_like(gradients)
    taken = []
    for step in range(options.steps + 1):  # the first is not counted
        fill_gradients(gradients, rank, step)
        comm.Barrier()
        start = time.perf_counter()
        for first in range(0, options.parameters, options.bucket):
            bucket = slice(first, first + options.bucket)
            comm.Allreduce(gradients[bucket], sums[bucket])
        taken.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
        if not check_sums(sums, n_ranks, step):
            raise SystemExit(f"rank {rank}: wrong sums in step {step}")
        sums /= n_ranks
        parameters -= 0.01 * sums
    if rank == 0:
        n_buckets = -(-options.parameters // options.bucket)
        print(
            f"{options.parameters} parameters in {n_buckets} buckets over {n_ranks} ranks: "
            f"{np.median(taken[1:]):.3f} s per step",
            flush=True,
        )


if __name__ == "__main__":
    main()
