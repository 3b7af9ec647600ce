"""Costs of our own engine: the gap between relayed segments, and the start of a plan."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from gridcoll.engine.memory import ByteMemory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import wait_for_all
from gridcoll.measure.clock import CommonClock, Series, find_clock, run_together
from gridcoll.measure.contention import split_inside
from gridcoll.measure.trials import step_of
from gridcoll.model import GridModel, TimesBySize
from gridcoll.plan import choose, dataflow
from gridcoll.plan.bcast.tree import plan_bcast
from gridcoll.plan.trees import RankTree
from gridcoll.schedule.trees import find_shape
from gridcoll.topology.grid import Grid

RELAY_SIZES = (1 << 10, 1 << 12, 1 << 14, 1 << 16)

N_BROADCASTS = 4
"""Broadcasts in a row. The first one fills the chain, and the others leave it at the gap."""

FEWEST_SEGMENTS, MOST_SEGMENTS = 8, 128
"""Segments of a broadcast. Where one begins, the chain may run empty for a round trip."""

LONG_S = 0.2
"""Broadcasts in a row that take so long are not repeated: disturbances matter less."""


def measure_relay_gap(
    comm: MPI.Intracomm,
    grid: Grid,
    broadcast_s: float = 40e-3,
    sizes_bytes: tuple[int, ...] | None = None,
    n_repeats: int = 3,
    inside: MPI.Intracomm | None = None,
) -> TimesBySize | None:
    """Return the seconds per segment while every cluster passes segments down a chain. Collective.

    This contains the gap inside the cluster; the rest is the cost of our engine, and of ranks that
    share cores. All clusters measure at about the same time and without links between them, each
    among the ranks of `split_inside`. The slowest cluster counts. None if no cluster has two ranks.

    ``broadcast_s`` is about how long each broadcast takes, within the limits of segments. The
    shortest of ``n_repeats`` counts. ``inside``: an existing communicator of these ranks of this
    cluster, null on others.
    """
    if max(grid.ranks_per_cluster) == 1:
        return None
    sizes_bytes = sizes_bytes or RELAY_SIZES
    mine = split_inside(comm, grid) if inside is None else inside
    seconds = np.zeros(len(sizes_bytes))
    if mine != MPI.COMM_NULL and mine.Get_size() > 1:
        chain = _Chain(mine)
        seconds[:] = [chain.gap_s(each, broadcast_s, n_repeats) for each in sizes_bytes]
    if inside is None and mine != MPI.COMM_NULL:
        mine.Free()
    wait_for_all(comm)
    slowest = np.empty_like(seconds)
    comm.Allreduce(seconds, slowest, MPI.MAX)
    return TimesBySize(sizes_bytes, tuple(float(each) for each in slowest))


class _Chain:
    """A chain of all ranks of a communicator, each of which sends to the next."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self._clock = comm, find_clock(comm)

    def gap_s(self, segment: int, broadcast_s: float, n_repeats: int) -> float:
        """Return the seconds per segment at which the last rank receives them; 0 on others.

        Only the ends of broadcasts that follow one another are compared, by the clock of the last
        rank: how evenly ranks begin, and how soon the chain is full, does not matter.
        """
        first = self._broadcast(segment, FEWEST_SEGMENTS)
        took_s = max(run_together(self._clock, first), 1e-9)  # the same on all ranks
        n_segments = int(FEWEST_SEGMENTS * broadcast_s / took_s)
        n_segments = max(FEWEST_SEGMENTS, min(n_segments, MOST_SEGMENTS))
        broadcast, ends_s, gaps_s = self._broadcast(segment, n_segments), [0.0] * N_BROADCASTS, []

        def run() -> None:
            for k in range(N_BROADCASTS):
                broadcast()
                ends_s[k] = time.monotonic()

        for _ in range(n_repeats):
            run_s = run_together(self._clock, run)
            gaps_s.append((ends_s[-1] - ends_s[0]) / ((N_BROADCASTS - 1) * n_segments))
            if run_s > LONG_S:
                break
        is_last = self._comm.Get_rank() == self._comm.Get_size() - 1
        return min(gaps_s) if is_last else 0.0

    def _broadcast(self, segment: int, n_segments: int) -> Callable[[], None]:
        tree = RankTree(0, find_shape("chain").children(self._comm.Get_size()))
        plan = plan_bcast([tree], n_segments * segment, segment)
        flow = dataflow(plan.programs[self._comm.Get_rank()])
        transport = MPITransport(self._comm)
        memory = ByteMemory(memoryview(bytearray(n_segments * segment)))
        return lambda: run_program(flow, transport, memory)


def measure_start(
    comm: MPI.Intracomm, model: GridModel, clock: CommonClock, n_runs: int = 7
) -> float:
    """Return the seconds by which the shortest broadcast exceeds its prediction. Collective."""
    winner = choose("bcast", model, 8, 0, grid_only=True).winner
    if winner.build is None or winner.predicted_s is None:
        return 0.0
    flow = dataflow(winner.build(8).programs[comm.Get_rank()])
    step, series = step_of(comm, flow, ByteMemory(memoryview(bytearray(8)))), Series(clock)
    took = [series.run(step) for _ in range(n_runs)]
    return max(float(np.median(took)) - winner.predicted_s, 0.0)
