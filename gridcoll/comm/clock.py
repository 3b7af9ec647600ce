"""One clock for all ranks, so that they can start at an agreed time instead of after a barrier.

A barrier lets ranks go up to a WAN latency apart, which would be in every figure measured after it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import PoliteWait, wait_for_all, wait_politely

N_SAMPLES = 7
_TAG = 2


@dataclass(frozen=True)
class ClockOffset:
    """``offset_s`` added to this rank's `time.monotonic` gives rank 0's."""

    offset_s: float
    latency_s: float

    def now(self) -> float:
        """Rank 0's clock, as far as this rank can tell."""
        return time.monotonic() + self.offset_s


def estimate_offset(comm: MPI.Intracomm) -> ClockOffset:
    """Compare clocks with rank 0 by the quickest of several round trips. Collective.

    ``latency_s`` is the largest latency seen from rank 0, the same on all ranks.
    """
    offset, latency = 0.0, 0.0
    rank, size = comm.Get_rank(), comm.Get_size()
    stamp = np.zeros(1)
    for other in range(1, size):
        if rank not in (0, other):
            continue
        samples = []
        for _ in range(N_SAMPLES):
            start = time.monotonic()
            if rank == 0:
                _receive(comm, stamp, other)
                stamp[0] = time.monotonic()
                _send(comm, stamp, other)
            else:
                _send(comm, stamp, 0)
                _receive(comm, stamp, 0)
                end = time.monotonic()
                samples.append((end - start, float(stamp[0]) - (start + end) / 2))
        if samples:
            trip, offset = min(samples)
            latency = trip / 2
    wait_for_all(comm)
    return ClockOffset(offset, comm.allreduce(latency, MPI.MAX))


def _send(comm: MPI.Intracomm, data: np.ndarray, peer: int) -> None:
    wait_politely(comm.Isend(data, peer, _TAG).Test, PoliteWait(300e-6))


def _receive(comm: MPI.Intracomm, data: np.ndarray, peer: int) -> None:
    wait_politely(comm.Irecv(data, peer, _TAG).Test, PoliteWait(300e-6))


def run_together(comm: MPI.Intracomm, clock: ClockOffset, step: Callable[[], object]) -> float:
    """Run ``step`` on all ranks from one agreed moment; seconds until the last rank is done.

    Collective; the result is the same on all ranks.
    """
    # Rank 0 names a time late enough for everybody to have heard of it.
    wait_for_all(comm)
    slack = 3 * clock.latency_s + 2e-3 + 0.2e-3 * comm.Get_size()
    start = comm.bcast(clock.now() + slack if comm.Get_rank() == 0 else None, 0)
    # Sleeps end some 60 us late. Spinning longer than that would keep ranks that share a core from
    # starting on time.
    while (left := start - clock.now()) > 0:
        if left > 120e-6:
            time.sleep(left - 100e-6)
        else:
            os.sched_yield()
    step()
    took_s = clock.now() - start
    wait_for_all(comm)
    return float(comm.allreduce(took_s, MPI.MAX))


def run_again(run: Callable[[], float], n_runs: int) -> list[float]:
    """What ``n_runs`` runs return, after one more before them that does not count.

    What ran before over the same connections lost segments of its own, and their windows are small
    for a while: the first run after it would pay for that. A broadcast of a megabyte over three
    sites takes 10 to 50 % longer straight after the library's own.
    """
    run()
    return [run() for _ in range(n_runs)]
