"""Sample sort of numbers that are distributed over all ranks, with Alltoall and Alltoallv.

An ordinary mpi4py application; every rank's share is compared with a sort on one rank.

    mpiexec -n 12 python samplesort.py
    mpiexec -n 12 python -m gridcoll run samplesort.py
"""

import argparse
import time

import numpy as np
from mpi4py import MPI

N_SAMPLES = 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Sort numbers spread over all ranks.")
    parser.add_argument("--numbers", type=int, default=200_000, help="numbers per rank")
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def numbers_of(rank: int, n: int, repeat: int) -> np.ndarray:
    return np.random.default_rng([rank, repeat]).standard_normal(n)


def sample_sort(comm: MPI.Intracomm, numbers: np.ndarray) -> np.ndarray:
    """Return this rank's share of all numbers, sorted. Shares ascend with the rank. Collective."""
    size = comm.Get_size()
    numbers = np.sort(numbers)
    samples = np.empty((size, N_SAMPLES))
    comm.Allgather(np.quantile(numbers, np.linspace(0, 1, N_SAMPLES)), samples)
    splitters = np.quantile(samples, np.arange(1, size) / size)
    cuts = np.concatenate([[0], np.searchsorted(numbers, splitters), [len(numbers)]])
    sent = np.diff(cuts)
    coming = np.empty_like(sent)
    comm.Alltoall(sent, coming)
    share = np.empty(coming.sum())
    comm.Alltoallv([numbers, sent], [share, coming])
    return np.sort(share)


def main() -> None:
    options = parse_arguments()
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    taken = []
    for repeat in range(options.repeats + 1):  # the first is not counted
        numbers = numbers_of(rank, options.numbers, repeat)
        comm.Barrier()
        start = time.perf_counter()
        share = sample_sort(comm, numbers)
        taken.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
        first = comm.scan(len(share)) - len(share)
        everything = [numbers_of(each, options.numbers, repeat) for each in range(size)]
        wanted = np.sort(np.concatenate(everything))[first : first + len(share)]
        if not np.array_equal(share, wanted) or comm.allreduce(len(share)) != size * len(numbers):
            raise SystemExit(f"rank {rank}: wrong numbers")
    if rank == 0:
        print(f"sample sort: {np.median(taken[1:]):.6f} s", flush=True)


if __name__ == "__main__":
    main()
