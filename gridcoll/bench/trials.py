"""What is timed of each collective: natives, ours, and any algorithms by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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
    """Native, native non-blocking with our polite wait, ours, and ``algorithms``.

    ``n_bytes`` is what every rank gets, of what moves blocks one block. Where there is no ``root``
    it is ignored, as are sizes of barriers, whose promise tests show, not timings.
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
        decisions = comm._need().decisions
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


def _pattern(n_bytes: int, repeat: int) -> np.ndarray:
    """Bytes that differ from repeat to repeat and from place to place."""
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
    # Sums of doubles must have the same bits everywhere.
    equal = Semantics(bitwise_equal=True)
    return _Call(size, 0, "Allreduce", args, data.reset, data.verify, equal)


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
        lambda repeat: not at_root or data.right(repeat),
    )  # fmt: skip


def _scatter(comm: GridComm, n_bytes: int, root: int) -> _Call:
    data = _Blocks(comm, n_bytes)
    args = data.all, data.mine, root
    return _Call(n_bytes, root, "Scatter", args, data.fill_all, data.own_right)


def _allgather(comm: GridComm, n_bytes: int, root: int) -> _Call:
    data = _Blocks(comm, n_bytes)
    return _Call(n_bytes, 0, "Allgather", (data.mine, data.all), data.fill_mine, data.right)


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
"""Collectives that are timed."""
