"""Timing collectives honestly: agreed starts, verified results, natives in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from mpi4py import MPI

from gridcoll.comm.clock import ClockOffset, estimate_offset, run_together
from gridcoll.comm.gridcomm import GridComm
from gridcoll.engine.waiting import wait_politely
from gridcoll.errors import GridcollError, UsageError
from gridcoll.model.limits import Wires, limit_s
from gridcoll.plan.choice_text import rows_of
from gridcoll.plan.choose import NATIVE

NATIVES = ("native", "native-nonblocking")

TRIED = "tried"


@dataclass(frozen=True)
class Row:
    """One line of a benchmark's table: one variant at one size. Times are the last rank's.

    ``stored_s`` is the papers' store-and-forward accounting of the same schedule.
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
    stored_s: float | None = None

    def to_dict(self) -> dict[str, object]:
        return asdict(self)


def mpi_name() -> str:
    """Which MPI this is, as ``"mpich 5.0.2"``."""
    text = MPI.Get_library_version()
    if text.startswith("Open MPI"):
        return "openmpi " + text.split("v", 1)[1].split(",")[0]
    if "Intel" in text:
        return "impi " + text.split("Version", 1)[1].split()[0]
    words = text.split()
    return f"mpich {words[words.index('Version:') + 1]}" if "Version:" in words else words[0]


@dataclass(frozen=True)
class Trial:
    """One way to run a call: ``step`` does it, ``reset`` before, ``verify`` after, per rank."""

    variant: str
    reset: Callable[[int], None]
    step: Callable[[], None]
    verify: Callable[[int], bool]
    predicted_s: float | None = None
    algorithm: str = ""
    stored_s: float | None = None


def bcast_trials(comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]) -> list[Trial]:
    """Native, native non-blocking with our polite wait, ours, and any algorithms by name."""
    buffer = np.zeros(n_bytes, np.uint8)
    plain = MPI.Intracomm(comm)

    def reset(repeat: int) -> None:
        buffer[:] = _pattern(n_bytes, repeat) if comm.Get_rank() == root else 0

    def verify(repeat: int) -> bool:
        return bool((buffer == _pattern(n_bytes, repeat)).all())

    def nonblocking() -> None:
        wait_politely(plain.Ibcast(buffer, root).Test)

    choice = comm.explain("bcast", n_bytes, root)
    native_s = next(c.predicted_s for c in choice.candidates if c.name == "native")
    trials = [
        Trial("native", reset, lambda: plain.Bcast(buffer, root), verify, native_s),
        Trial("native-nonblocking", reset, nonblocking, verify),
        Trial(
            "gridcoll",
            reset,
            lambda: comm.Bcast(buffer, root),
            verify,
            choice.winner.predicted_s,
            f"{choice.winner.name}: {choice.winner.label}",
        ),
    ]
    for name in algorithms:
        forced = comm.forced("bcast", name)
        winner = forced.explain("bcast", n_bytes, root).winner
        trials.append(
            Trial(
                f"gridcoll:{name}",
                reset,
                lambda forced=forced: forced.Bcast(buffer, root),  # type: ignore[misc]
                verify,
                winner.predicted_s,
                winner.label,
                winner.stored_s,
            )
        )
    return trials


def alltoall_trials(
    comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """The same for an all-to-all of ``n_bytes`` per pair; ``root`` plays no part."""
    rank, n_ranks = comm.Get_rank(), comm.Get_size()
    outgoing, incoming = (np.zeros((n_ranks, n_bytes), np.uint8) for _ in range(2))
    plain = MPI.Intracomm(comm)

    def reset(repeat: int) -> None:
        for other in range(n_ranks):
            outgoing[other] = _pattern(n_bytes, repeat + rank * n_ranks + other)
        incoming[:] = 0

    def verify(repeat: int) -> bool:
        return all(
            bool((incoming[other] == _pattern(n_bytes, repeat + other * n_ranks + rank)).all())
            for other in range(n_ranks)
        )

    def nonblocking() -> None:
        wait_politely(plain.Ialltoall(outgoing, incoming).Test)

    def planned(variant: str, ours: GridComm) -> Trial:
        winner = ours.explain("alltoall", n_bytes).winner
        label = f"{winner.name}: {winner.label}"

        def step() -> None:
            ours.Alltoall(outgoing, incoming)

        return Trial(variant, reset, step, verify, winner.predicted_s, label)

    candidates = comm.explain("alltoall", n_bytes).candidates
    native_s = next(c.predicted_s for c in candidates if c.name == "native")
    return [
        Trial("native", reset, lambda: plain.Alltoall(outgoing, incoming), verify, native_s),
        Trial("native-nonblocking", reset, nonblocking, verify),
        planned("gridcoll", comm),
        *(planned(f"gridcoll:{name}", comm.forced("alltoall", name)) for name in algorithms),
    ]


def allreduce_trials(
    comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """The same for a sum of ``n_bytes`` of doubles, one at least; ``root`` plays no part."""
    rank, n_ranks = comm.Get_rank(), comm.Get_size()
    mine, result = (np.zeros(max(n_bytes // 8, 1)) for _ in range(2))
    places = np.arange(len(mine)) % 1024
    plain = MPI.Intracomm(comm)

    def reset(repeat: int) -> None:
        mine[:] = places + rank + repeat
        result[:] = -1

    def verify(repeat: int) -> bool:
        # Whole numbers, exact whatever the order.
        wanted = n_ranks * (places + repeat) + n_ranks * (n_ranks - 1) // 2
        return bool((result == wanted).all())

    def nonblocking() -> None:
        wait_politely(plain.Iallreduce(mine, result).Test)

    def planned(variant: str, ours: GridComm) -> Trial:
        winner = ours.explain("allreduce", mine.nbytes).winner
        label = f"{winner.name}: {winner.label}"

        def step() -> None:
            ours.Allreduce(mine, result)

        return Trial(variant, reset, step, verify, winner.predicted_s, label)

    candidates = comm.explain("allreduce", mine.nbytes).candidates
    native_s = next(c.predicted_s for c in candidates if c.name == "native")
    return [
        Trial("native", reset, lambda: plain.Allreduce(mine, result), verify, native_s),
        Trial("native-nonblocking", reset, nonblocking, verify),
        planned("gridcoll", comm),
        *(planned(f"gridcoll:{name}", comm.forced("allreduce", name)) for name in algorithms),
    ]


def tried(comm: GridComm, collective: str, n_bytes: int, root: int) -> list[str]:
    """One algorithm for each different plan that the choice for this call was among."""
    rows = rows_of(comm.explain(collective, n_bytes, root))
    return list(dict.fromkeys(row.names[0] for row in rows if row.names[0] != NATIVE))


def _pattern(n_bytes: int, repeat: int) -> np.ndarray:
    """Bytes that differ from repeat to repeat and from place to place."""
    return ((np.arange(n_bytes) * 31 + repeat * 7 + 1) & 0xFF).astype(np.uint8)


TRIALS: dict[str, Callable[[GridComm, int, int, Sequence[str]], list[Trial]]] = {
    "bcast": bcast_trials,
    "alltoall": alltoall_trials,
    "allreduce": allreduce_trials,
}


def run_benchmark(
    comm: GridComm,
    collective: str,
    sizes: Sequence[int],
    wires: Wires,
    *,
    root: int = 0,
    repeats: int = 10,
    longest_s: float = 8.0,
    algorithms: Sequence[str] = (),
    on_rows: Callable[[list[Row]], None] = lambda _rows: None,
) -> list[Row]:
    """Time ``collective`` at every size; variants take turns so that noise hits all alike.

    Collective. Rows are the same on all ranks; ``on_rows`` gets each size's as soon as it is done.

    Parameters
    ----------
    sizes : sequence of int
        Message sizes in bytes.
    wires : Wires
        For the physical limit.
    algorithms : sequence of str
        Timed as well; ``"tried"`` stands for all that the choice is among at each size.
    repeats : int
        Timed runs of each variant, after one that is not counted.
    longest_s : float
        A variant that has used this much time at one size gets no further repeats beyond three.

    Raises
    ------
    UsageError
        For an unknown collective.
    GridcollError
        When a result is wrong, on all ranks.
    """
    if collective not in TRIALS:
        raise UsageError(f"collective {collective!r}: benchmarks exist for {', '.join(TRIALS)}")
    private = MPI.Intracomm.Dup(comm)
    try:
        clock = estimate_offset(private)
        rows: list[Row] = []
        for n_bytes in sizes:
            names = algorithms
            if TRIED in algorithms:
                names = tried(comm, collective, n_bytes, root)
                names += [name for name in algorithms if name not in (TRIED, *names)]
            trials = TRIALS[collective](comm, n_bytes, root, names)
            times = _take_turns(private, clock, trials, repeats, longest_s)
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
    clock: ClockOffset,
    trials: Sequence[Trial],
    repeats: int,
    longest_s: float,
) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in trials]
    for repeat in range(repeats + 1):
        for trial, taken in zip(trials, times, strict=True):
            if len(taken) > 3 and sum(taken) > longest_s:
                continue
            trial.reset(repeat)
            taken.append(run_together(private, clock, trial.step))
            wrong = private.allreduce(0 if trial.verify(repeat) else 1, MPI.SUM)
            if wrong:
                raise GridcollError(f"{trial.variant}: wrong result on {wrong} ranks")
    return [taken[1:] for taken in times]


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
        trial.stored_s,
    )
