"""Data-parallel training of a small network with Adam, using NumPy only.

Every step averages the gradients of all ranks by one Allreduce. Rank 0 broadcasts the initial
parameters. An ordinary mpi4py application; the result is compared with training on one rank.

    mpiexec -n 12 python adam.py
    mpiexec -n 12 python -m gridcoll run adam.py
"""

import argparse
import time

import numpy as np
from mpi4py import MPI

N_INPUTS = 128
PER_RANK = 16
RATE, DECAY_1, DECAY_2, EPSILON = 1e-3, 0.9, 0.999, 1e-8


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a network with Adam on all ranks.")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    return parser.parse_args()


def batch(rank: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs, (PER_RANK, N_INPUTS), and whether the sum of each is positive, (PER_RANK,)."""
    inputs = np.random.default_rng([rank, step]).standard_normal((PER_RANK, N_INPUTS))
    return inputs, (inputs.sum(axis=1) > 0).astype(float)


def gradient(parameters: np.ndarray, rank: int, step: int, hidden: int) -> np.ndarray:
    """Return the gradient of the mean logistic loss over the rank's part of the batch."""
    inputs, wanted = batch(rank, step)
    first, last = parameters[:-hidden].reshape(N_INPUTS, hidden), parameters[-hidden:]
    middle = np.tanh(inputs @ first)
    error = (1 / (1 + np.exp(-(middle @ last))) - wanted) / PER_RANK
    into_middle = np.outer(error, last) * (1 - middle**2)
    return np.concatenate([(inputs.T @ into_middle).ravel(), middle.T @ error])


class Adam:
    """The optimizer of Kingma and Ba 2015, algorithm 1."""

    def __init__(self, n: int) -> None:
        self.mean, self.square, self.step = np.zeros(n), np.zeros(n), 0

    def update(self, parameters: np.ndarray, slope: np.ndarray) -> None:
        self.step += 1
        self.mean += (1 - DECAY_1) * (slope - self.mean)
        self.square += (1 - DECAY_2) * (slope**2 - self.square)
        mean = self.mean / (1 - DECAY_1**self.step)
        square = self.square / (1 - DECAY_2**self.step)
        parameters -= RATE * mean / (np.sqrt(square) + EPSILON)


def train_alone(parameters: np.ndarray, n_ranks: int, steps: int, hidden: int) -> np.ndarray:
    adam = Adam(len(parameters))
    for step in range(steps):
        slopes = [gradient(parameters, rank, step, hidden) for rank in range(n_ranks)]
        adam.update(parameters, np.mean(slopes, axis=0))
    return parameters


def main() -> None:
    options = parse_arguments()
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    n = (N_INPUTS + 1) * options.hidden
    parameters = np.random.default_rng(rank).standard_normal(n) / 10
    comm.Bcast(parameters, 0)
    initial = parameters.copy()
    adam, total = Adam(n), np.empty(n)
    comm.Barrier()
    start = time.perf_counter()
    for step in range(options.steps):
        comm.Allreduce(gradient(parameters, rank, step, options.hidden), total)
        adam.update(parameters, total / size)
    taken_s = comm.allreduce(time.perf_counter() - start, MPI.MAX)
    if not np.allclose(parameters, train_alone(initial, size, options.steps, options.hidden)):
        raise SystemExit(f"rank {rank}: wrong parameters")
    if rank == 0:
        print(f"adam, a step of {n} parameters: {taken_s / options.steps:.6f} s", flush=True)


if __name__ == "__main__":
    main()
