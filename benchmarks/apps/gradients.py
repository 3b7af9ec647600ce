"""Distributed training without a neural network: all ranks average gradients in each step.

An ordinary mpi4py application with NumPy only. Parameters are split into buckets, as data-parallel
training does, and each bucket's gradients are summed by one Allreduce. Every step is verified.

    mpiexec -n 12 python gradients.py
    mpiexec -n 12 python -m gridcoll run gradients.py
"""

import argparse
import time

import numpy as np
from mpi4py import MPI

PERIOD = 1021
"""Gradients repeat after this number of parameters. They are small whole numbers, whose sums are
exact in float32."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Average gradients over all ranks.")
    parser.add_argument("--parameters", type=int, default=25_000_000, help="float32 numbers")
    parser.add_argument("--bucket", type=int, default=6_250_000, help="parameters per Allreduce")
    parser.add_argument("--steps", type=int, default=2)
    return parser.parse_args()


def _period(offset: int, factor: int = 1) -> np.ndarray:
    return (factor * (np.arange(PERIOD) % 97) + offset).astype(np.float32)


def fill_gradients(gradients: np.ndarray, rank: int, step: int) -> None:
    """Fill in gradients in place of a backward pass."""
    gradients[:] = np.resize(_period(rank + step), len(gradients))


def check_sums(sums: np.ndarray, n_ranks: int, step: int) -> bool:
    """Whether ``sums`` is the sum of the gradients of all ranks."""
    wanted = _period(n_ranks * step + n_ranks * (n_ranks - 1) // 2, n_ranks)
    return bool((sums == np.resize(wanted, len(sums))).all())


def main() -> None:
    options = parse_arguments()
    comm = MPI.COMM_WORLD
    rank, n_ranks = comm.Get_rank(), comm.Get_size()
    gradients = np.zeros(options.parameters, np.float32)
    sums = np.empty_like(gradients)
    parameters = np.zeros_like(gradients)
    taken_s = []
    comm.Allreduce(
        gradients[: options.bucket], sums[: options.bucket]
    )  # opens connections and makes the plan
    for step in range(options.steps):
        fill_gradients(gradients, rank, step)
        comm.Barrier()
        start = time.perf_counter()
        for first in range(0, options.parameters, options.bucket):
            bucket = slice(first, first + options.bucket)
            comm.Allreduce(gradients[bucket], sums[bucket])
        taken_s.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
        if not check_sums(sums, n_ranks, step):
            raise SystemExit(f"rank {rank}: wrong sums in step {step}")
        sums /= n_ranks
        parameters -= np.float32(0.01) * sums
    if rank == 0:
        n_buckets = -(-options.parameters // options.bucket)
        what = f"gradients, a step of {options.parameters} parameters in {n_buckets} buckets"
        print(f"{what}: {np.median(taken_s):.6f} s", flush=True)


if __name__ == "__main__":
    main()
