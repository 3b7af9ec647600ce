"""Collective calls as IMB-MPI1 makes and times them, by mpi4py. It knows nothing of gridcoll.

    repeated.py Bcast,Allreduce,Alltoall 8,65536 3     # calls, bytes, how often each

Each rank times its own call; after each call comes a barrier. Rank 0 prints a line per kind of
call: its name, bytes, and the mean microseconds of the rank that took longest.
"""

import sys
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

N_FIRST = 1
"""Calls of each kind that do not count."""


def call_of(comm: MPI.Intracomm, name: str, n_bytes: int) -> Callable[[], object]:
    """The call that IMB makes of this length; for `Alltoall` that is per pair."""
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
            took_s = 0.0
            for k in range(N_FIRST + n_calls):
                began_s = MPI.Wtime()
                call()
                took_s += (MPI.Wtime() - began_s) * (k >= N_FIRST)
                comm.Barrier()
            longest_s = comm.allreduce(took_s / n_calls, MPI.MAX)
            if comm.rank == 0:
                print(name, n_bytes, f"{longest_s * 1e6:.2f}", flush=True)


if __name__ == "__main__":
    main()
