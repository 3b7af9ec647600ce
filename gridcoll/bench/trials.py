"""What is timed of each collective: natives, ours, and any algorithms by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from mpi4py import MPI

from gridcoll.comm.communicator import GridComm
from gridcoll.comm.decisions import ANY, Semantics
from gridcoll.engine.waiting import wait_politely
from gridcoll.plan.natives import NATIVE, NONBLOCKING


@dataclass(frozen=True)
class Trial:
    """One way to run a call: ``step`` does it, ``reset`` before, ``verify`` after, per rank."""

    variant: str
    reset: Callable[[int], None]
    step: Callable[[], None]
    verify: Callable[[int], bool]
    predicted_s: float | None = None
    algorithm: str = ""
    store_and_forward_s: float | None = None


@dataclass(frozen=True)
class _Call:
    """A call of ``n_bytes`` by its name; ``run`` and ``start`` make it on any communicator."""

    collective: str
    n_bytes: int
    root: int
    run: Callable[[MPI.Intracomm], None]
    start: Callable[[MPI.Intracomm], MPI.Request]
    reset: Callable[[int], None]
    verify: Callable[[int], bool]
    semantics: Semantics = ANY

    def trials(self, comm: GridComm, algorithms: Sequence[str]) -> list[Trial]:
        """Native, native non-blocking with our polite wait, ours, and ``algorithms``."""
        plain = MPI.Intracomm(comm)

        def nonblocking() -> None:
            wait_politely(self.start(plain).Test)

        choice = comm.explain(self.collective, self.n_bytes, self.root)
        measured_s = {c.name: c.predicted_s for c in choice.candidates if c.build is None}
        return [
            Trial(NATIVE, self.reset, lambda: self.run(plain), self.verify, measured_s[NATIVE]),
            Trial(NONBLOCKING, self.reset, nonblocking, self.verify, measured_s.get(NONBLOCKING)),
            self._planned("gridcoll", comm),
            *(
                self._planned(f"gridcoll:{name}", comm.forced(self.collective, name))
                for name in algorithms
            ),
        ]

    def _planned(self, variant: str, comm: GridComm) -> Trial:
        winner = (
            comm._need()
            .decisions.choice(self.collective, self.n_bytes, self.root, semantics=self.semantics)
            .winner
        )
        return Trial(
            variant,
            self.reset,
            lambda: self.run(comm),
            self.verify,
            winner.predicted_s,
            f"{winner.name}: {winner.label}" if variant == "gridcoll" else winner.label,
            winner.store_and_forward_s,
        )


def bcast_trials(comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]) -> list[Trial]:
    """A broadcast from ``root``."""
    buffer = np.zeros(n_bytes, np.uint8)

    def reset(repeat: int) -> None:
        buffer[:] = _pattern(n_bytes, repeat) if comm.Get_rank() == root else 0

    def verify(repeat: int) -> bool:
        return bool((buffer == _pattern(n_bytes, repeat)).all())

    return _Call(
        "bcast",
        n_bytes,
        root,
        lambda comm: comm.Bcast(buffer, root),
        lambda comm: comm.Ibcast(buffer, root),
        reset,
        verify,
    ).trials(comm, algorithms)


def alltoall_trials(
    comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """An all-to-all of ``n_bytes`` per pair; ``root`` is ignored."""
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

    return _Call(
        "alltoall",
        n_bytes,
        0,
        lambda comm: comm.Alltoall(outgoing, incoming),
        lambda comm: comm.Ialltoall(outgoing, incoming),
        reset,
        verify,
    ).trials(comm, algorithms)


class _Sum:
    """A sum of ``n_bytes`` of doubles, one at least: whole numbers, exact in whatever order."""

    def __init__(self, comm: GridComm, n_bytes: int) -> None:
        self._rank, self._n_ranks = comm.Get_rank(), comm.Get_size()
        self.mine, self.result = (np.zeros(max(n_bytes // 8, 1)) for _ in range(2))
        self._places = np.arange(len(self.mine)) % 1024

    def reset(self, repeat: int) -> None:
        self.mine[:] = self._places + self._rank + repeat
        self.result[:] = -1

    def verify(self, repeat: int, part: slice = slice(None)) -> bool:
        n = self._n_ranks
        wanted = n * (self._places[part] + repeat) + n * (n - 1) // 2
        return bool((self.result[part] == wanted).all())


def allreduce_trials(
    comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """A sum for all; ``root`` is ignored."""
    data = _Sum(comm, n_bytes)
    return _Call(
        "allreduce",
        data.mine.nbytes,
        0,
        lambda comm: comm.Allreduce(data.mine, data.result),
        lambda comm: comm.Iallreduce(data.mine, data.result),
        data.reset,
        data.verify,
        Semantics(bitwise_equal=True),  # sums of doubles must have the same bits everywhere
    ).trials(comm, algorithms)


def reduce_trials(
    comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """A sum for ``root``."""
    data = _Sum(comm, n_bytes)
    return _Call(
        "reduce",
        data.mine.nbytes,
        root,
        lambda comm: comm.Reduce(data.mine, data.result, root=root),
        lambda comm: comm.Ireduce(data.mine, data.result, root=root),
        data.reset,
        lambda repeat: comm.Get_rank() != root or data.verify(repeat),
    ).trials(comm, algorithms)


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

    def right(self, repeat: int) -> bool:
        """Whether the blocks of all ranks are right."""
        wanted = (_pattern(len(self.mine), repeat + rank) for rank in range(self.n_ranks))
        return all(bool((got == each).all()) for got, each in zip(self.all, wanted, strict=True))

    def own_right(self, repeat: int) -> bool:
        return bool((self.mine == _pattern(len(self.mine), repeat + self.rank)).all())


def gather_trials(
    comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """A gather of ``n_bytes`` per rank to ``root``."""
    data = _Blocks(comm, n_bytes)
    return _Call(
        "gather",
        n_bytes,
        root,
        lambda comm: comm.Gather(data.mine, data.all, root),
        lambda comm: comm.Igather(data.mine, data.all, root),
        data.fill_mine,
        lambda repeat: data.rank != root or data.right(repeat),
    ).trials(comm, algorithms)


def scatter_trials(
    comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """A scatter of ``n_bytes`` per rank from ``root``."""
    data = _Blocks(comm, n_bytes)
    return _Call(
        "scatter",
        n_bytes,
        root,
        lambda comm: comm.Scatter(data.all, data.mine, root),
        lambda comm: comm.Iscatter(data.all, data.mine, root),
        data.fill_all,
        data.own_right,
    ).trials(comm, algorithms)


def allgather_trials(
    comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """An allgather of ``n_bytes`` per rank; ``root`` is ignored."""
    data = _Blocks(comm, n_bytes)
    return _Call(
        "allgather",
        n_bytes,
        0,
        lambda comm: comm.Allgather(data.mine, data.all),
        lambda comm: comm.Iallgather(data.mine, data.all),
        data.fill_mine,
        data.right,
    ).trials(comm, algorithms)


def reduce_scatter_trials(
    comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """Sums of ``n_bytes`` for each rank; ``root`` is ignored."""
    rank, n_ranks = comm.Get_rank(), comm.Get_size()
    n = max(n_bytes // 8, 1)
    data = _Sum(comm, 8 * n * n_ranks)
    ours = np.zeros(n)

    def verify(repeat: int) -> bool:
        data.result[rank * n : (rank + 1) * n] = ours
        return data.verify(repeat, slice(rank * n, (rank + 1) * n))

    return _Call(
        "reduce_scatter",
        ours.nbytes,
        0,
        lambda comm: comm.Reduce_scatter_block(data.mine, ours),
        lambda comm: comm.Ireduce_scatter_block(data.mine, ours),
        data.reset,
        verify,
    ).trials(comm, algorithms)


def barrier_trials(
    comm: GridComm, n_bytes: int, root: int, algorithms: Sequence[str]
) -> list[Trial]:
    """A barrier; size and root play no part. What it promises, tests show, not timings."""
    return _Call(
        "barrier",
        1,
        0,
        lambda comm: comm.Barrier(),
        lambda comm: comm.Ibarrier(),
        lambda repeat: None,
        lambda repeat: True,
    ).trials(comm, algorithms)


def _pattern(n_bytes: int, repeat: int) -> np.ndarray:
    """Bytes that differ from repeat to repeat and from place to place."""
    return ((np.arange(n_bytes) * 31 + repeat * 7 + 1) & 0xFF).astype(np.uint8)


TRIALS: dict[str, Callable[[GridComm, int, int, Sequence[str]], list[Trial]]] = {
    "bcast": bcast_trials,
    "alltoall": alltoall_trials,
    "allreduce": allreduce_trials,
    "reduce": reduce_trials,
    "gather": gather_trials,
    "scatter": scatter_trials,
    "allgather": allgather_trials,
    "reduce_scatter": reduce_scatter_trials,
    "barrier": barrier_trials,
}
