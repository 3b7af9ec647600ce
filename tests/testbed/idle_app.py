"""All pairs of ranks meet once, and again when somebody says that it is enough.

    idle_app.py FOLDER

Between, their connections are idle, whatever happens to the links. Rank 0 writes ``FOLDER/met``
and waits for ``FOLDER/enough``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from mpi4py import MPI


def main() -> None:
    folder, comm = Path(sys.argv[1]), MPI.COMM_WORLD
    assert comm.alltoall([comm.rank] * comm.size) == [*range(comm.size)]
    comm.barrier()
    if comm.rank == 0:
        (folder / "met").touch()
    while not (folder / "enough").exists():
        time.sleep(0.2)
    assert comm.alltoall([comm.rank] * comm.size) == [*range(comm.size)]
    if comm.rank == 0:
        sys.stdout.write("met again\n")


if __name__ == "__main__":
    main()
