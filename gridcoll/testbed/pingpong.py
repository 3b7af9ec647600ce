"""A program that is run on the hosts, as a file, and reports what MPI sees of the network.

Rank 0 prints one JSON line: ``{"hosts": […], "node_sizes": […], "round_trip_s": [[i, j, s], …],
"bulk_s": s or null}``. The program needs only mpi4py, so that it starts quickly.

Usage: pingpong.py N_ROUNDS BULK_BYTES (0: none; else sent from rank 0 to the last rank)
"""

import json
import sys
import time
from itertools import combinations

from mpi4py import MPI


def round_trip_s(comm: MPI.Comm, i: int, j: int, n_rounds: int) -> float:
    """Return the shortest 8-byte round trip between ranks ``i`` and ``j``; 0.0 but on ``i``."""
    data = bytearray(8)
    least_s = float("inf")
    for _ in range(n_rounds):
        if comm.rank == i:
            start_s = time.perf_counter()
            comm.Send(data, j)
            comm.Recv(data, j)
            least_s = min(least_s, time.perf_counter() - start_s)
        elif comm.rank == j:
            comm.Recv(data, i)
            comm.Send(data, i)
    return least_s if comm.rank == i else 0.0


def bulk_s(comm: MPI.Comm, n_bytes: int) -> float:
    """Return the shortest time until the last rank acknowledges ``n_bytes`` from rank 0."""
    last = comm.size - 1
    data, answer = bytearray(n_bytes), bytearray(1)
    least_s = float("inf")
    for _ in range(2):
        start_s = time.perf_counter()
        if comm.rank == 0:
            comm.Send(data, last)
            comm.Recv(answer, last)
        elif comm.rank == last:
            comm.Recv(data, 0)
            comm.Send(answer, 0)
        least_s = min(least_s, time.perf_counter() - start_s)
    return least_s


def main() -> None:
    n_rounds, n_bytes = int(sys.argv[1]), int(sys.argv[2])
    comm = MPI.COMM_WORLD
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    n_ends = comm.size - 1 if n_bytes else comm.size  # with a bulk transfer, without its receiver
    trips = [(i, j, round_trip_s(comm, i, j, n_rounds)) for i, j in combinations(range(n_ends), 2)]
    bulk = bulk_s(comm, n_bytes) if n_bytes else None
    seen = comm.gather((MPI.Get_processor_name(), node.size, trips), root=0)
    node.Free()
    if seen is not None:
        report = {
            "hosts": [name for name, _, _ in seen],
            "node_sizes": [size for _, size, _ in seen],
            "round_trip_s": [
                max(found, key=lambda trip: trip[2])
                for found in zip(*(t for _, _, t in seen), strict=True)
            ],
            "bulk_s": bulk,
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
