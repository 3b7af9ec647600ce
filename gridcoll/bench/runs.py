"""Time collectives: with agreed start times, verified results, and natives in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
from mpi4py import MPI
from msgspec import Struct

from gridcoll.comm.communicator import GridComm
from gridcoll.comm.decisions import ANY, Semantics
from gridcoll.engine.executor import Memory
from gridcoll.engine.runner import run_program
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import wait_politely
from gridcoll.errors import GridcollError, UsageError
from gridcoll.measure.clock import CommonClock, find_clock, run_again, run_together
from gridcoll.model.bounds import limit_s
from gridcoll.model.wires import Wires
from gridcoll.plan import Plan, dataflow
from gridcoll.plan.choice import rows_of
from gridcoll.plan.cost import Timeline
from gridcoll.plan.natives import NATIVE, NONBLOCKING
from gridcoll.topology.grid import Grid


class Trial(Struct, frozen=True):
    """One variant of a call: each rank runs ``reset``, then ``step``, then ``verify``."""

    variant: str
    reset: Callable[[int], None]
    step: Callable[[], None]
    verify: Callable[[int], bool]
    predicted_s: float | None = None
    algorithm: str = ""
    store_and_forward_s: float | None = None


class _Call(Struct, frozen=True):
    """A call of ``n_bytes``: mpi4py's method and its arguments."""

    n_bytes: int
    root: int
    method: str
    args: tuple[Any, ...]
    reset: Callable[[int], None]
    verify: Callable[[int], bool]
    semantics: Semantics = ANY


def trials_of(
    comm: GridComm, collective: str, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """Return trials: native, native non-blocking with our polite wait, ours, and ``algorithms``.

    ``n_bytes`` is the size that every rank receives, or the size of one block. ``root`` is ignored
    by collectives without a root, and both are ignored by barriers, whose guarantee is verified by
    tests, not here.
    """
    call = CALLS[collective](comm, n_bytes, root)
    plain = MPI.Intracomm(comm)
    native = partial(getattr(plain, call.method), *call.args)
    start = partial(getattr(plain, f"I{call.method.lower()}"), *call.args)

    def nonblocking() -> None:
        wait_politely(start().Test)

    choice = comm.explain(collective, call.n_bytes, call.root)
    measured_s = {c.name: c.predicted_s for c in choice.candidates if c.build is None}

    def planned(variant: str, comm: GridComm) -> Trial:
        decisions = comm._require_context().decisions
        winner = decisions.choice(collective, call.n_bytes, call.root, call.semantics).winner
        return Trial(
            variant,
            call.reset,
            partial(getattr(comm, call.method), *call.args),
            call.verify,
            winner.predicted_s,
            f"{winner.name}: {winner.label}" if variant == "gridcoll" else winner.label,
            winner.store_and_forward_s,
        )

    return [
        Trial(NATIVE, call.reset, native, call.verify, measured_s[NATIVE]),
        Trial(NONBLOCKING, call.reset, nonblocking, call.verify, measured_s.get(NONBLOCKING)),
        planned("gridcoll", comm),
        *(planned(f"gridcoll:{name}", comm.forced(collective, name)) for name in algorithms),
    ]


class _Sum:
    """A sum of ``n_bytes`` of doubles, at least one: integers, whose sum is exact in any order."""

    def __init__(self, comm: GridComm, n_bytes: int) -> None:
        self._rank, self._n_ranks = comm.Get_rank(), comm.Get_size()
        self.mine, self.result = (np.zeros(max(n_bytes // 8, 1)) for _ in range(2))
        self._pattern = np.arange(len(self.mine)) % 1024

    def reset(self, repeat: int) -> None:
        self.mine[:] = self._pattern + self._rank + repeat
        self.result[:] = -1

    def verify(self, repeat: int, part: slice = slice(None)) -> bool:
        n = self._n_ranks
        expected = n * (self._pattern[part] + repeat) + n * (n - 1) // 2
        return bool((self.result[part] == expected).all())


class _Blocks:
    """A block per rank: ``mine`` is this rank's, ``all`` are those of all ranks."""

    def __init__(self, comm: GridComm, n_bytes: int) -> None:
        self.rank, self.n_ranks = comm.Get_rank(), comm.Get_size()
        self.mine = np.zeros(n_bytes, np.uint8)
        self.all = np.zeros((self.n_ranks, n_bytes), np.uint8)

    def fill_mine(self, repeat: int) -> None:
        self.mine[:] = _pattern(len(self.mine), repeat + self.rank)
        self.all[:] = 0

    def fill_all(self, repeat: int) -> None:
        for rank in range(self.n_ranks):
            self.all[rank] = _pattern(len(self.mine), repeat + rank)
        self.mine[:] = 0

    def all_correct(self, repeat: int) -> bool:
        """Whether the blocks of all ranks are correct."""
        expected = (_pattern(len(self.mine), repeat + rank) for rank in range(self.n_ranks))
        return all(bool((got == each).all()) for got, each in zip(self.all, expected, strict=True))

    def own_correct(self, repeat: int) -> bool:
        return bool((self.mine == _pattern(len(self.mine), repeat + self.rank)).all())


def _pattern(n_bytes: int, repeat: int) -> np.ndarray:
    """Return bytes that differ between repeats and between positions."""
    return ((np.arange(n_bytes) * 31 + repeat * 7 + 1) & 0xFF).astype(np.uint8)


def _bcast(comm: GridComm, n_bytes: int, root: int) -> _Call:
    buffer = np.zeros(n_bytes, np.uint8)

    def reset(repeat: int) -> None:
        buffer[:] = _pattern(n_bytes, repeat) if comm.Get_rank() == root else 0

    def verify(repeat: int) -> bool:
        return bool((buffer == _pattern(n_bytes, repeat)).all())

    return _Call(n_bytes, root, "Bcast", (buffer, root), reset, verify)


def _alltoall(comm: GridComm, n_bytes: int, root: int) -> _Call:
    rank, n_ranks = comm.Get_rank(), comm.Get_size()
    outgoing, incoming = (np.zeros((n_ranks, n_bytes), np.uint8) for _ in range(2))

    def reset(repeat: int) -> None:
        for other in range(n_ranks):
            outgoing[other] = _pattern(n_bytes, repeat + rank * n_ranks + other)
        incoming[:] = 0

    def verify(repeat: int) -> bool:
        return all(
            bool((incoming[other] == _pattern(n_bytes, repeat + other * n_ranks + rank)).all())
            for other in range(n_ranks)
        )

    return _Call(n_bytes, 0, "Alltoall", (outgoing, incoming), reset, verify)


def _allreduce(comm: GridComm, n_bytes: int, root: int) -> _Call:
    data = _Sum(comm, n_bytes)
    args, size = (data.mine, data.result), data.mine.nbytes
    # Sums of doubles must be bitwise equal on all ranks.
    semantics = Semantics(bitwise_equal=True)
    return _Call(size, 0, "Allreduce", args, data.reset, data.verify, semantics)


def _reduce(comm: GridComm, n_bytes: int, root: int) -> _Call:
    data = _Sum(comm, n_bytes)
    args, size = (data.mine, data.result, MPI.SUM, root), data.mine.nbytes
    at_root = comm.Get_rank() == root
    return _Call(
        size, root, "Reduce", args, data.reset, lambda repeat: not at_root or data.verify(repeat)
    )


def _gather(comm: GridComm, n_bytes: int, root: int) -> _Call:
    data = _Blocks(comm, n_bytes)
    args, at_root = (data.mine, data.all, root), comm.Get_rank() == root
    return _Call(
        n_bytes, root, "Gather", args, data.fill_mine,
        lambda repeat: not at_root or data.all_correct(repeat),
    )  # fmt: skip


def _scatter(comm: GridComm, n_bytes: int, root: int) -> _Call:
    data = _Blocks(comm, n_bytes)
    args = data.all, data.mine, root
    return _Call(n_bytes, root, "Scatter", args, data.fill_all, data.own_correct)


def _allgather(comm: GridComm, n_bytes: int, root: int) -> _Call:
    data = _Blocks(comm, n_bytes)
    return _Call(n_bytes, 0, "Allgather", (data.mine, data.all), data.fill_mine, data.all_correct)


def _reduce_scatter(comm: GridComm, n_bytes: int, root: int) -> _Call:
    rank, n = comm.Get_rank(), max(n_bytes // 8, 1)
    data, ours = _Sum(comm, 8 * n * comm.Get_size()), np.zeros(n)
    part = slice(rank * n, (rank + 1) * n)

    def verify(repeat: int) -> bool:
        data.result[part] = ours
        return data.verify(repeat, part)

    return _Call(ours.nbytes, 0, "Reduce_scatter_block", (data.mine, ours), data.reset, verify)


def _barrier(comm: GridComm, n_bytes: int, root: int) -> _Call:
    return _Call(1, 0, "Barrier", (), lambda repeat: None, lambda repeat: True)


CALLS: dict[str, Callable[[GridComm, int, int], _Call]] = {
    "bcast": _bcast,
    "alltoall": _alltoall,
    "allreduce": _allreduce,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "allgather": _allgather,
    "reduce_scatter": _reduce_scatter,
    "barrier": _barrier,
}
"""Collectives that can be timed."""


NATIVES = (NATIVE, NONBLOCKING)

CANDIDATES = "candidates"

RUNS_PER_TURN = 3
"""Timed runs in a turn, after a first one that does not count: programs repeat the same collective
many times."""

CLOCK_VALID_S = 60.0
"""Seconds until clocks are compared again: within minutes, their drift becomes noticeable."""

SHORT_CALLS_FACTOR = 5
"""Short calls get up to this many times as many runs."""


class Row(Struct, frozen=True):
    """One row of a benchmark's table: one variant at one size. Times are those of the last rank.

    ``limit_s`` is the lower bound, 0 if nothing limits the call, as in shared memory.
    ``store_and_forward_s`` is the time of the same schedule by the papers' store-and-forward
    accounting.
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


def mpi_name() -> str:
    """Return the name and version of the MPI library, such as ``"mpich 5.0.2"``."""
    text = MPI.Get_library_version()
    if text.startswith("Open MPI"):
        return "openmpi " + text.split("v", 1)[1].split(",")[0]
    if "Intel" in text:
        return "impi " + next(word for word in text.split() if word[0].isdigit())
    words = text.split()
    return f"mpich {words[words.index('Version:') + 1]}" if "Version:" in words else words[0]


def check_timed(collective: str) -> None:
    """Raise `UsageError` unless there is a benchmark for ``collective``."""
    if collective not in CALLS:
        raise UsageError(f"collective {collective!r}: benchmarks exist for {', '.join(CALLS)}")


def names_of_candidates(comm: GridComm, collective: str, n_bytes: int, root: int) -> list[str]:
    """Return one algorithm for each different plan among the candidates for this call."""
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
    """Time ``collective`` at every size; variants take turns, so that noise affects all equally.

    A turn is several runs of one variant, the first of which does not count (see `run_again`).

    Collective. Rows are the same on all ranks; ``on_rows`` is called with the rows of each size as
    soon as they are known. Raises `UsageError` for an unknown collective, and `GridcollError` on
    all ranks for a wrong result.

    Parameters
    ----------
    wires : Wires
        Used for the lower bound.
    algorithms : sequence of str
        Algorithms to time as well; ``"candidates"`` stands for all candidates at each size.
    repeats : int
        Timed runs of each variant, rounded up to whole turns.
    longest_s : float
        A variant that has used this much time at one size gets no further turns. If the run that
        does not count takes this long, the turn has only one more run.
    enough_s : float
        Short calls, in which noise is a larger part, are repeated up to five times as often, until
        a variant has used this much time.
    """
    check_timed(collective)
    private = MPI.Intracomm.Dup(comm)
    try:
        rows: list[Row] = []
        clock, compared_s = None, 0.0
        for n_bytes in sizes:
            names = algorithms
            if CANDIDATES in algorithms:
                names = names_of_candidates(comm, collective, n_bytes, root)
                names += [name for name in algorithms if name not in (CANDIDATES, *names)]
            trials = trials_of(comm, collective, n_bytes, root, names)
            if clock is None or clock.latest(time.monotonic() - compared_s) > CLOCK_VALID_S:
                clock, compared_s = find_clock(private, comm.grid), time.monotonic()
            times = _take_turns(private, clock, trials, repeats, longest_s, enough_s)
            bound = limit_s(collective, wires, n_bytes, root)
            new = [
                _row(comm, collective, n_bytes, trial, seconds, bound)
                for trial, seconds in zip(trials, times, strict=True)
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
    for turn in range(SHORT_CALLS_FACTOR * n_turns):
        if turn >= n_turns and max(map(sum, times)) >= enough_s:
            break
        # Reverse the order in every second turn, so that no variant always follows the same one.
        turns = list(zip(trials, times, strict=True))
        for trial, seconds in reversed(turns) if turn % 2 else turns:
            if sum(seconds) <= longest_s:
                once = partial(_run_once, private, clock, trial, calls)
                seconds += run_again(once, RUNS_PER_TURN, longest_s)
    return times


def _run_once(
    private: MPI.Intracomm, clock: CommonClock, trial: Trial, calls: Iterator[int]
) -> float:
    """Return the seconds of one run. Raises `GridcollError` on all ranks if its result is wrong."""
    call = next(calls)
    trial.reset(call)
    took_s = run_together(clock, trial.step)
    wrong = not trial.verify(call)
    if clock.latest(wrong):
        n_wrong = private.allreduce(wrong, MPI.SUM)
        raise GridcollError(f"{trial.variant}: wrong result on {n_wrong} ranks")
    return took_s


def _row(
    comm: GridComm, collective: str, n_bytes: int, trial: Trial, seconds: list[float], bound: float
) -> Row:
    q1, median, q3 = (float(x) for x in np.quantile(seconds, [0.25, 0.5, 0.75]))
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
        len(seconds),
        trial.algorithm,
        trial.store_and_forward_s,
        comm.Get_size(),
    )


def trace_plan(comm: MPI.Intracomm, grid: Grid, plan: Plan, memory: Memory) -> Timeline:
    """Run ``plan`` once on ``memory`` and ``grid``, and time every op of every rank. Collective.

    Times are seconds after the agreed start, on rank 0's clock. A send ends when MPI has accepted
    it, which for short messages is long before it arrives. The result is the same on all ranks.
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
