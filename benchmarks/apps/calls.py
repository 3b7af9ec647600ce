"""An application that makes only collective calls. `learning.py` and `drift.py` use its times.

    calls.py mix OUTPUT N_CALLS       # broadcast, allreduce, all-to-all of 8 B to 4 MiB, in turn
    calls.py late OUTPUT N_CALLS      # the same; each rank enters each call 0 to 50 ms late
    calls.py loop OUTPUT SECONDS      # 1 MiB broadcast and allreduce, 64 KiB all-to-all
    calls.py meet OUTPUT SECONDS      # the same; ranks meet in a native barrier before each call

Rank 0 writes a row per call: its name, and the times in seconds when the last rank entered and
left. Ranks use the machine's clock, which the hosts of an emulated grid share.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from mpi4py import MPI

MIX = {
    "Bcast": {8: 4, 1 << 13: 2, 1 << 16: 3, 1 << 20: 3, 1 << 22: 1},
    "Allreduce": {8: 5, 1 << 13: 3, 1 << 16: 2, 1 << 20: 3, 1 << 22: 1},
    "Alltoall": {8: 1, 1 << 10: 2, 1 << 13: 2, 1 << 16: 2},
}
"""The frequency of each size, in bytes, in the mix: applications make many short calls."""

LOOP = (("Bcast", 1 << 20), ("Allreduce", 1 << 20), ("Alltoall", 1 << 16))

LATE_S = 0.05
"""The longest delay in seconds, about the time of a call of the mix between sites."""

Call = tuple[str, int]


def mix(n_calls: int) -> Iterator[Call]:
    """Yield random calls of the mix, the same ones in the same order each time."""
    deck = [
        (name, n)
        for name, sizes in MIX.items()
        for n, how_often in sizes.items()
        for _ in range(how_often)
    ]
    rng = random.Random(33)
    for _ in range(n_calls):
        yield rng.choice(deck)


def loop(comm: MPI.Intracomm, seconds: float) -> Iterator[Call]:
    """Yield the calls of `LOOP` in whole rounds, until rank 0 finds that the time is over."""
    began_s = time.monotonic()
    continues = np.ones(1, np.uint8)
    while continues[0]:
        yield from LOOP
        continues[0] = time.monotonic() - began_s < seconds
        comm.Bcast(continues, 0)


def runners(comm: MPI.Intracomm) -> dict[Call, Callable[[], None]]:
    """Return a function for each kind of call. Its buffers are made before anything is timed."""
    n_ranks = comm.Get_size()
    made: dict[Call, Callable[[], None]] = {}
    for name, n in {*LOOP, *((name, n) for name, sizes in MIX.items() for n in sizes)}:
        if name == "Bcast":
            data = np.zeros(n, np.uint8)
            made[name, n] = lambda data=data: comm.Bcast(data, 0)  # type: ignore[misc]
        elif name == "Allreduce":
            mine, result = np.ones(n // 8), np.empty(n // 8)
            made[name, n] = lambda a=mine, b=result: comm.Allreduce(a, b)  # type: ignore[misc]
        else:
            sent, got = (np.zeros((n_ranks, n), np.uint8) for _ in range(2))
            made[name, n] = lambda a=sent, b=got: comm.Alltoall(a, b)  # type: ignore[misc]
    return made


def main() -> None:
    kind, output, amount = sys.argv[1:]
    comm = MPI.COMM_WORLD
    run = runners(comm)
    MPI.Intracomm(comm).Barrier()
    stamps: list[tuple[Call, float, float]] = []
    rng = random.Random(comm.Get_rank())
    calls = loop(comm, float(amount)) if kind in ("loop", "meet") else mix(int(amount))
    for call in calls:
        if kind == "late":
            time.sleep(rng.uniform(0, LATE_S))
        elif kind == "meet":
            MPI.Intracomm(comm).Barrier()
        began_s = time.monotonic()
        run[call]()
        stamps.append((call, began_s, time.monotonic()))
    times = np.array([each[1:] for each in stamps])
    latest = np.empty_like(times)
    MPI.Intracomm(comm).Allreduce(times, latest, MPI.MAX)
    if comm.Get_rank() == 0:
        rows = [
            {"call": f"{name} {n}", "entry_s": entry_s, "exit_s": exit_s}
            for ((name, n), *_), (entry_s, exit_s) in zip(stamps, latest.tolist(), strict=True)
        ]
        Path(output).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
