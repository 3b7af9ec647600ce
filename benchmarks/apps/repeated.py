"""Collective calls by mpi4py, made and timed as IMB-MPI1 does. It knows nothing of gridcoll.

    repeated.py Bcast,Allreduce,Alltoall 8,65536 3     # calls, bytes, repetitions

Each rank times its own calls, and a barrier follows each call. Rank 0 prints a line per kind and
size of call: its name, the bytes, and the mean microseconds of the slowest rank.
"""

import sys
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

MOST_WARM_UP = 10
"""Before the timed calls of each kind come as many others, but at most this number, as in IMB."""


def call_of(comm: MPI.Intracomm, name: str, n_bytes: int) -> Callable[[], object]:
    """Return the call that IMB makes with this message length, which is per pair for Alltoall."""
    n_floats = max(n_bytes // 4, 1)
    if name == "Bcast":
        data = np.zeros(n_bytes, np.uint8)
        return lambda: comm.Bcast(data, 0)
    if name == "Allreduce":
        mine, total = np.zeros(n_floats, np.float32), np.empty(n_floats, np.float32)
        return lambda: comm.Allreduce(mine, total)
    sent, got = (np.zeros((comm.size, n_bytes), np.uint8) for _ in range(2))
    return lambda: comm.Alltoall(sent, got)


def main() -> None:
    names, sizes, repeats = sys.argv[1:]
    comm, n_calls = MPI.COMM_WORLD, int(repeats)
    for name in names.split(","):
        for n_bytes in map(int, sizes.split(",")):
            call = call_of(comm, name, n_bytes)
            took_s, n_warm_up = 0.0, min(n_calls, MOST_WARM_UP)
            for k in range(n_warm_up + n_calls):
                began_s = MPI.Wtime()
                call()
                took_s += (MPI.Wtime() - began_s) * (k >= n_warm_up)
                comm.Barrier()
            longest_s = comm.allreduce(took_s / n_calls, MPI.MAX)
            if comm.rank == 0:
                print(name, n_bytes, f"{longest_s * 1e6:.2f}", flush=True)


if __name__ == "__main__":
    main()
