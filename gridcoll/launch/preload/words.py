"""Execute a call by the methods of `GridComm`, given the machine words passed to MPI's function."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from gridcoll.comm.communicator import GridComm
from gridcoll.launch.preload.kinds import COLLECTIVES, Question, handle

HANDLES_ARE_INTS = MPI._sizeof(MPI.Datatype) == ctypes.sizeof(ctypes.c_int32)
"""As in MPICH and Intel MPI; elsewhere handles are pointers."""


class _Words:
    """The arguments of a call."""

    def __init__(self, question: Question) -> None:
        self._args = question.args
        self._is_large = bool(question.large)
        self._n_ranks = question.n_ranks
        self.rank = question.rank

    def count(self, at: int) -> int:
        """Return a count."""
        word = self._args[at]
        return word if self._is_large else ctypes.c_int32(word).value

    def rank_at(self, at: int) -> int:
        """Return a rank, which is an int in both forms of a call, with small and large counts."""
        return ctypes.c_int32(self._args[at]).value

    def at_root(self, at: int, read: Callable[[], Any]) -> Any:
        """Return the result of ``read`` on the root, whose rank is at ``at``; None elsewhere."""
        return read() if self.rank == self.rank_at(at) else None

    def counts(self, at: int) -> list[int]:
        """Return counts, or displacements, one for each rank."""
        kind = ctypes.c_int64 if self._is_large else ctypes.c_int32
        return list((kind * self._n_ranks).from_address(self._args[at]))

    def datatype(self, at: int) -> MPI.Datatype:
        return _datatype(self._args[at])

    def datatypes(self, at: int) -> list[MPI.Datatype]:
        """Return datatypes, one for each rank."""
        kind = ctypes.c_int32 if HANDLES_ARE_INTS else ctypes.c_int64
        return [_datatype(word) for word in (kind * self._n_ranks).from_address(self._args[at])]

    def op(self, at: int) -> MPI.Op:
        return MPI.Op.fromhandle(_handle(self._args[at]))

    def is_in_place(self, at: int) -> bool:
        return bool(self._args[at] == int(MPI.IN_PLACE))

    def spec(self, at: int, count_at: int, type_at: int, n_blocks: int = 1) -> Any:
        """Return a buffer argument in mpi4py's form."""
        if self.is_in_place(at):
            return MPI.IN_PLACE
        count, datatype = self.count(count_at), self.datatype(type_at)
        return [self.memory(at, n_blocks * count, datatype), count, datatype]

    def blocks(self, at: int, count_at: int, type_at: int) -> Any:
        """Return a buffer argument with one such block for every rank, in mpi4py's form."""
        return self.spec(at, count_at, type_at, self._n_ranks)

    def vector(self, at: int, counts_at: int, displs_at: int, type_at: int) -> Any:
        """Return a buffer argument with counts and displacements, in mpi4py's form."""
        if self.is_in_place(at):
            return MPI.IN_PLACE
        counts, displs = self.counts(counts_at), self.counts(displs_at)
        datatype = self.datatype(type_at)
        ends = (displ + count for displ, count in zip(displs, counts, strict=True) if count)
        return [self.memory(at, max(ends, default=0), datatype), counts, displs, datatype]

    def typed_vector(self, at: int) -> Any:
        """Like `vector`, with a type for every rank, and displacements in bytes."""
        if self.is_in_place(at):
            return MPI.IN_PLACE
        counts, displs = self.counts(at + 1), self.counts(at + 2)
        datatypes = self.datatypes(at + 3)
        rows = zip(counts, displs, datatypes, strict=True)
        n_bytes = max((displ + n * kind.Get_extent()[1] for n, displ, kind in rows), default=0)
        memory = self._memory(self._args[at], n_bytes)
        return [memory, counts, displs, datatypes]

    def memory(self, at: int, count: int, datatype: MPI.Datatype) -> Any:
        """Return the memory of ``count`` items; they may use more, depending on their type."""
        return self._memory(self._args[at], count * datatype.Get_extent()[1])

    @staticmethod
    def _memory(address: int, n_bytes: int) -> Any:
        return MPI.buffer.fromaddress(address, max(n_bytes, 0)) if address else MPI.BOTTOM


def _handle(word: int) -> int:
    return handle(ctypes.c_int32(word).value if HANDLES_ARE_INTS else word)


def _datatype(word: int) -> MPI.Datatype:
    return MPI.Datatype.fromhandle(_handle(word))


def perform(comm: GridComm, question: Question) -> None:
    """Execute the call on ``comm``. Raises what its method raises."""
    name = COLLECTIVES[question.key.which]
    _CALLS[name](comm, _Words(question))


def _reduce_scatter_block(comm: GridComm, w: _Words) -> None:
    into = w.blocks if w.is_in_place(0) else w.spec
    comm.Reduce_scatter_block(w.blocks(0, 2, 3), into(1, 2, 3), w.op(4))


def _reduce_scatter(comm: GridComm, w: _Words) -> None:
    counts, datatype = w.counts(2), w.datatype(3)
    total = sum(counts)
    own = total if w.is_in_place(0) else counts[w.rank]
    source: Any = MPI.IN_PLACE
    if not w.is_in_place(0):
        source = [w.memory(0, total, datatype), total, datatype]
    into = [w.memory(1, own, datatype), own, datatype]
    comm.Reduce_scatter(source, into, counts, w.op(4))


_CALLS: dict[str, Callable[[GridComm, _Words], None]] = {
    "Bcast": lambda comm, w: comm.Bcast(w.spec(0, 1, 2), w.rank_at(3)),
    "Reduce": lambda comm, w: comm.Reduce(
        w.spec(0, 2, 3), w.at_root(5, lambda: w.spec(1, 2, 3)), w.op(4), w.rank_at(5)
    ),
    "Allreduce": lambda comm, w: comm.Allreduce(w.spec(0, 2, 3), w.spec(1, 2, 3), w.op(4)),
    "Reduce_scatter": _reduce_scatter,
    "Reduce_scatter_block": _reduce_scatter_block,
    "Gather": lambda comm, w: comm.Gather(
        w.spec(0, 1, 2), w.at_root(6, lambda: w.blocks(3, 4, 5)), w.rank_at(6)
    ),
    "Gatherv": lambda comm, w: comm.Gatherv(
        w.spec(0, 1, 2), w.at_root(7, lambda: w.vector(3, 4, 5, 6)), w.rank_at(7)
    ),
    "Scatter": lambda comm, w: comm.Scatter(
        w.at_root(6, lambda: w.blocks(0, 1, 2)), w.spec(3, 4, 5), w.rank_at(6)
    ),
    "Scatterv": lambda comm, w: comm.Scatterv(
        w.at_root(7, lambda: w.vector(0, 1, 2, 3)), w.spec(4, 5, 6), w.rank_at(7)
    ),
    "Allgather": lambda comm, w: comm.Allgather(w.spec(0, 1, 2), w.blocks(3, 4, 5)),
    "Allgatherv": lambda comm, w: comm.Allgatherv(w.spec(0, 1, 2), w.vector(3, 4, 5, 6)),
    "Alltoall": lambda comm, w: comm.Alltoall(w.blocks(0, 1, 2), w.blocks(3, 4, 5)),
    "Alltoallv": lambda comm, w: comm.Alltoallv(w.vector(0, 1, 2, 3), w.vector(4, 5, 6, 7)),
    "Alltoallw": lambda comm, w: comm.Alltoallw(w.typed_vector(0), w.typed_vector(4)),
    "Barrier": lambda comm, _: comm.Barrier(),
}
