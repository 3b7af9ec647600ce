"""An ordinary mpi4py application: verified, timed broadcasts. It knows nothing of gridcoll."""

import sys
import time

import numpy as np
from mpi4py import MPI

REPEATS = 5


def main() -> None:
    comm = MPI.COMM_WORLD
    rank = comm.Get_rank()
    for size in [int(text) for text in sys.argv[1:]] or [1 << 20, 4 << 20]:
        buffer = np.empty(size, np.uint8)
        times = []
        for repeat in range(REPEATS + 1):
            pattern = (np.arange(size) + repeat) % 251
            buffer[:] = pattern if rank == 0 else 255
            comm.Barrier()
            start = time.perf_counter()
            comm.Bcast(buffer, root=0)
            times.append(comm.allreduce(time.perf_counter() - start, MPI.MAX))
            if not (buffer == pattern).all():
                raise SystemExit(f"rank {rank}: wrong data after a broadcast of {size} bytes")
        if rank == 0:
            print(f"broadcast of {size} bytes: {1e3 * np.median(times[1:]):.1f} ms", flush=True)


if __name__ == "__main__":
    main()
