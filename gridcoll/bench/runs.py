"""Timing collectives honestly: agreed starts, verified results, natives in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count

import numpy as np
from mpi4py import MPI

from gridcoll.bench.trials import CALLS, Trial, trials_of
from gridcoll.comm.communicator import GridComm
from gridcoll.engine.executor import Memory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.errors import GridcollError, UsageError
from gridcoll.measure.clock import CommonClock, find_clock, run_again, run_together
from gridcoll.model.bounds import limit_s
from gridcoll.model.wires import Wires
from gridcoll.plan import Plan, dataflow
from gridcoll.plan.choice import rows_of
from gridcoll.plan.cost import Timeline
from gridcoll.plan.natives import NATIVE, NONBLOCKING
from gridcoll.topology.grid import Grid

NATIVES = (NATIVE, NONBLOCKING)

CANDIDATES = "candidates"

RUNS_PER_TURN = 3
"""After one that does not count: programs call the same collective again and again."""

FRESH_S = 60.0
"""Clocks drift: within minutes that shows, and they are compared again."""

MORE_OF_SHORT = 5
"""How many times as many runs calls get that are over soon."""


@dataclass(frozen=True)
class Row:
    """One line of a benchmark's table: one variant at one size. Times are the last rank's.

    ``limit_s`` is 0 where nothing limits, as in memory that ranks share; ``store_and_forward_s`` is
    what the papers' store-and-forward accounting says of the same schedule.
    """

    collective: str
    grid: str
    mpi: str
    bytes: int
    variant: str
    median_s: float
    q1_s: float
    q3_s: float
    predicted_s: float | None
    limit_s: float
    repeats: int
    algorithm: str
    store_and_forward_s: float | None = None
    n_ranks: int | None = None

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def mpi_name() -> str:
    """Which MPI this is, as ``"mpich 5.0.2"``."""
    text = MPI.Get_library_version()
    if text.startswith("Open MPI"):
        return "openmpi " + text.split("v", 1)[1].split(",")[0]
    if "Intel" in text:
        return "impi " + next(word for word in text.split() if word[0].isdigit())
    words = text.split()
    return f"mpich {words[words.index('Version:') + 1]}" if "Version:" in words else words[0]


def check_timed(collective: str) -> None:
    """Raise `UsageError` unless there is a benchmark of ``collective``."""
    if collective not in CALLS:
        raise UsageError(f"collective {collective!r}: benchmarks exist for {', '.join(CALLS)}")


def names_of_candidates(comm: GridComm, collective: str, n_bytes: int, root: int) -> list[str]:
    """One algorithm for each different plan that the choice for this call was among."""
    rows = rows_of(comm.explain(collective, n_bytes, root))
    return list(dict.fromkeys(row.names[0] for row in rows if row.names[0] not in NATIVES))


def run_benchmark(
    comm: GridComm,
    collective: str,
    sizes: Sequence[int],
    wires: Wires,
    *,
    root: int = 0,
    repeats: int = 10,
    longest_s: float = 8.0,
    enough_s: float = 0.5,
    algorithms: Sequence[str] = (),
    on_rows: Callable[[list[Row]], None] = lambda _rows: None,
) -> list[Row]:
    """Time ``collective`` at every size; variants take turns so that noise hits all alike.

    A turn is some runs of one variant, the first of which does not count (see `run_again`).

    Collective. Rows are the same on all ranks; ``on_rows`` gets each size's as soon as it is done.
    Raises `UsageError` for an unknown collective, `GridcollError` on all ranks for a wrong result.

    Parameters
    ----------
    wires : Wires
        For the physical limit.
    algorithms : sequence of str
        Timed as well; ``"candidates"`` stands for all that the choice is among at each size.
    repeats : int
        Timed runs of each variant, made up to whole turns.
    longest_s : float
        A variant that has used this much time at one size gets no further turns; where the run of
        a turn that does not count takes it, one more ends the turn.
    enough_s : float
        Short calls, of which noise is a larger part, are repeated up to five times as often, until
        a variant has used this much time.
    """
    check_timed(collective)
    private = MPI.Intracomm.Dup(comm)
    try:
        rows: list[Row] = []
        clock, found_s = None, 0.0
        for n_bytes in sizes:
            names = algorithms
            if CANDIDATES in algorithms:
                names = names_of_candidates(comm, collective, n_bytes, root)
                names += [name for name in algorithms if name not in (CANDIDATES, *names)]
            trials = trials_of(comm, collective, n_bytes, root, names)
            if clock is None or clock.latest(time.monotonic() - found_s) > FRESH_S:
                clock, found_s = find_clock(private, comm.grid), time.monotonic()
            times = _take_turns(private, clock, trials, repeats, longest_s, enough_s)
            bound = limit_s(collective, wires, n_bytes, root)
            new = [
                _row(comm, collective, n_bytes, trial, taken, bound)
                for trial, taken in zip(trials, times, strict=True)
            ]
            rows += new
            on_rows(new)
        return rows
    finally:
        private.Free()


def _take_turns(
    private: MPI.Intracomm,
    clock: CommonClock,
    trials: Sequence[Trial],
    repeats: int,
    longest_s: float,
    enough_s: float,
) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in trials]
    n_turns = -(-repeats // RUNS_PER_TURN)
    calls = count()
    for turn in range(MORE_OF_SHORT * n_turns):
        if turn >= n_turns and max(map(sum, times)) >= enough_s:
            break
        # To and fro, so that each comes after others in turn.
        turns = list(zip(trials, times, strict=True))
        for trial, taken in reversed(turns) if turn % 2 else turns:
            if sum(taken) <= longest_s:
                once = partial(_run_once, private, clock, trial, calls)
                taken += run_again(once, RUNS_PER_TURN, longest_s)
    return times


def _run_once(
    private: MPI.Intracomm, clock: CommonClock, trial: Trial, calls: Iterator[int]
) -> float:
    """Seconds of one run. Raises `GridcollError` on all ranks if its result is wrong."""
    call = next(calls)
    trial.reset(call)
    took_s = run_together(clock, trial.step)
    wrong = not trial.verify(call)
    if clock.latest(wrong):
        n_wrong = private.allreduce(wrong, MPI.SUM)
        raise GridcollError(f"{trial.variant}: wrong result on {n_wrong} ranks")
    return took_s


def _row(
    comm: GridComm, collective: str, n_bytes: int, trial: Trial, taken: list[float], bound: float
) -> Row:
    q1, median, q3 = (float(x) for x in np.quantile(taken, [0.25, 0.5, 0.75]))
    return Row(
        collective,
        comm.grid.name,
        mpi_name(),
        n_bytes,
        trial.variant,
        median,
        q1,
        q3,
        None if trial.predicted_s is None else float(trial.predicted_s),
        bound,
        len(taken),
        trial.algorithm,
        trial.store_and_forward_s,
        comm.Get_size(),
    )


def trace_plan(comm: MPI.Intracomm, grid: Grid, plan: Plan, memory: Memory) -> Timeline:
    """Run ``plan`` once over ``memory`` on ``grid`` and time every op of every rank. Collective.

    Seconds after the agreed start, on rank 0's clock. A send's end is when MPI has taken it, which
    for short messages is long before it is there. The result is the same on all ranks.
    """
    flow = dataflow(plan.programs[comm.Get_rank()])
    clock = find_clock(comm, grid)
    marks: dict[str, list[float]] = {
        "start": [0.0] * len(flow.program),
        "end": [0.0] * len(flow.program),
    }

    def mark(index: int, what: str) -> None:
        marks[what][index] = clock.now()

    transport = MPITransport(comm)
    begin: list[float] = []

    def step() -> None:
        begin.append(clock.now())
        run_program(flow, transport, memory, trace=mark)

    run_together(clock, step)
    origin = comm.allreduce(begin[0], MPI.MIN)
    rows = comm.allgather([[time - origin for time in marks[what]] for what in ("start", "end")])
    return Timeline(tuple(tuple(row[0]) for row in rows), tuple(tuple(row[1]) for row in rows))
