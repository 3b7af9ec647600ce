"""One clock for all ranks, so that they can start at an agreed time instead of after a barrier.

Ranks leave a barrier up to a WAN latency apart, and that would be part of every time measured
after it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI
from msgspec import Struct

from gridcoll.engine.memory import ElementMemory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import PoliteWait, wait_politely
from gridcoll.plan import dataflow
from gridcoll.plan.allreduce.pieces import Piece, plan_allreduce
from gridcoll.topology.grid import Grid

N_SAMPLES = 7

FIRST_RUN_COUNTS_S = 3.0
"""A first run that takes this long counts: after-effects of earlier runs are a small part of it."""

MOST_SHARING_A_HOST = 64
"""Most ranks assumed to share the cores of one host, where each one makes the others wake later."""

_TAG = 2


class CommonClock(Struct, frozen=True):
    """``offset_s`` added to this rank's `time.monotonic` gives that of rank 0."""

    offset_s: float
    slack_s: float
    """All ranks have the result of `latest` within this time after the last one called it."""
    latest: Callable[[float], float]
    """Returns the largest of all ranks' values, on all ranks. Collective; ranks wait politely."""

    def now(self) -> float:
        """Return an estimate of rank 0's clock."""
        return time.monotonic() + self.offset_s


def find_clock(
    comm: MPI.Intracomm, grid: Grid | None = None, n_samples: int = N_SAMPLES
) -> CommonClock:
    """Compare clocks with rank 0 by the quickest of several round trips. Collective.

    With ``grid``, which is that of ``comm``, only coordinators compare with rank 0. Other ranks
    compare with their coordinator, all clusters at once. So thousands of ranks cost no more than
    the coordinators and the largest cluster. Without ``grid``, all ranks form one cluster.
    """
    rank, size = comm.Get_rank(), comm.Get_size()
    grid = grid or Grid.from_labels([0] * size)
    mine = grid.clusters[grid.cluster_of[rank]].ranks
    offset_s = latency_s = 0.0
    for ranks in ([cluster.coordinator for cluster in grid.clusters], mine):
        # Coordinators, which are asked in the second round, got their offset in the first one.
        if rank == ranks[0]:
            for other in ranks[1:]:
                tell_time(comm, other, offset_s, n_samples)
        elif rank in ranks:
            latency_s, offset_s = ask_time(comm, ranks[0], n_samples)
    latest = _find_latest(comm, grid)
    upper_bound_s = 3 * latest(latency_s)  # any two ranks are at most as far apart as via rank 0
    observed_s = _longest_wait(CommonClock(offset_s, 0.0, latest), n_samples)
    slack_s = min(upper_bound_s, 1.5 * observed_s) + 2e-3 + 0.2e-3 * min(size, MOST_SHARING_A_HOST)
    return CommonClock(offset_s, slack_s, latest)


def _longest_wait(clock: CommonClock, n_samples: int) -> float:
    """Return the seconds from the last rank's call of `CommonClock.latest` until all returned."""
    waits_s = []
    for _ in range(n_samples):
        called_s = clock.latest(clock.now())
        waits_s.append(clock.latest(clock.now()) - called_s)
    return max(waits_s)


def _find_latest(comm: MPI.Intracomm, grid: Grid) -> Callable[[float], float]:
    """Return `CommonClock.latest`. It takes one latency between clusters, an allreduce several."""
    pieces = [Piece(0, 1, (0,) * len(grid.clusters))]
    plan = plan_allreduce(grid, 1, pieces, 1, "binomial")
    flow, transport = dataflow(plan.programs[comm.Get_rank()]), MPITransport(comm)
    mine, largest = (memoryview(bytearray(8)) for _ in range(2))
    memory = ElementMemory(largest, mine, flow, MPI.DOUBLE, MPI.MAX)

    def latest(value: float) -> float:
        mine.cast("d")[0] = value
        run_program(flow, transport, memory)
        return largest.cast("d")[0]

    return latest


def tell_time(
    comm: MPI.Intracomm, peer: int, offset_s: float, n_samples: int, *, wall: bool = False
) -> None:
    """Send our time plus ``offset_s`` to ``peer``, which calls `ask_time`.

    ``wall``: the time of day, else the monotonic clock.
    """
    now, stamp = time.time if wall else time.monotonic, np.zeros(1)
    for _ in range(n_samples):
        _receive(comm, stamp, peer)
        stamp[0] = now() + offset_s
        _send(comm, stamp, peer)


def ask_time(
    comm: MPI.Intracomm, peer: int, n_samples: int, *, wall: bool = False
) -> tuple[float, float]:
    """Return the latency to ``peer``, and its time minus our clock; both in seconds."""
    now, stamp, samples = time.time if wall else time.monotonic, np.zeros(1), []
    for _ in range(n_samples):
        start = now()
        _send(comm, stamp, peer)
        _receive(comm, stamp, peer)
        end = now()
        samples.append((end - start, float(stamp[0]) - (start + end) / 2))
    trip_s, offset_s = min(samples)
    return trip_s / 2, offset_s


def _send(comm: MPI.Intracomm, data: np.ndarray, peer: int) -> None:
    wait_politely(comm.Isend(data, peer, _TAG).Test, PoliteWait(300e-6))


def _receive(comm: MPI.Intracomm, data: np.ndarray, peer: int) -> None:
    wait_politely(comm.Irecv(data, peer, _TAG).Test, PoliteWait(300e-6))


class Series:
    """Runs on all ranks, one right after another, each from an agreed moment.

    If there is a ``barrier``, ranks call it at that moment, and enter the run as they leave it.
    """

    def __init__(self, clock: CommonClock, barrier: Callable[[], object] | None = None) -> None:
        self._clock, self._barrier = clock, barrier
        self.began_s = self.ended_s = math.nan
        """When the first run began and the last one ended, by rank 0's clock; on all ranks."""

    def run(self, step: Callable[[], object]) -> float:
        """Run ``step``, and return the seconds from the last entry until the last rank is done.

        Collective; equal on all ranks. Between two runs no rank may do anything that takes long.
        """
        clock = self._clock
        # The start follows from the time of the last rank, which every rank has by then.
        first = math.isnan(self.ended_s)
        start = (clock.latest(clock.now()) if first else self.ended_s) + clock.slack_s
        # A sleep ends some 60 us late. Spinning longer than that would keep other ranks on the same
        # core from starting on time.
        while (left := start - clock.now()) > 0:
            if left > 120e-6:
                time.sleep(left - 100e-6)
            else:
                os.sched_yield()
        entered = start
        if self._barrier is not None:
            self._barrier()
            entered = clock.now()
        step()
        ended = clock.now()
        if self._barrier is not None:
            entered = clock.latest(entered)
        took_s = clock.latest(ended - entered)
        self.began_s = start if first else self.began_s
        self.ended_s = entered + took_s
        return took_s


def run_together(clock: CommonClock, step: Callable[[], object]) -> float:
    """One run of ``step`` on all ranks, as in a `Series`."""
    return Series(clock).run(step)


def run_again(run: Callable[[], float], n_runs: int, long_s: float = math.inf) -> list[float]:
    """Return what ``n_runs`` runs return, after a first one that does not count.

    If the first one takes ``long_s``, only one run follows it.

    Earlier runs over the same connections may have lost segments. TCP windows then stay small for a
    while, which slows the next run: a broadcast of a megabyte over three sites takes 10 to 50 %
    longer right after the library's own. The first message may also open the connection: among 88
    hosts that took 10 s instead of half a second.
    """
    is_long = run() >= long_s
    return [run() for _ in range(1 if is_long else n_runs)]
