"""Objects with buffers that pickles may leave out, and what there is to see of them."""

from __future__ import annotations

import array
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI


class Holder:
    """A user's class whose memory is a buffer of its own pickle."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory

    def __reduce_ex__(self, protocol: Any) -> Any:
        if protocol < 5:
            return Holder, (bytes(self.memory),)
        return Holder, (pickle.PickleBuffer(self.memory),)


class Growing(Holder):
    """Wants a bytearray that nobody looks at: it makes it longer for a moment."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _grow, super().__reduce_ex__(protocol)[1]


def _grow(memory: Any) -> Growing:
    memory.extend(b"!")
    memory.pop()
    return Growing(memory)


def elements(rank: int, n: int) -> np.ndarray:
    """``n`` doubles of ``rank``."""
    return np.arange(n, dtype="f8") * (rank + 1) + rank


def _read_only(data: np.ndarray) -> np.ndarray:
    data.flags.writeable = False
    return data


def _shared(rank: int, n: int) -> Any:
    """One array twice, and its memory a third time."""
    data = elements(rank, n)
    return [data, data, data[:]]


BUFFERED: dict[str, Callable[[int, int], Any]] = {
    "an array": elements,
    "Fortran order": lambda rank, n: np.asfortranarray(elements(rank, 6 * n).reshape(6, n)),
    "gaps": lambda rank, n: elements(rank, 2 * n)[::2],
    "axes exchanged": lambda rank, n: elements(rank, 6 * n).reshape(2, 3, n).swapaxes(0, 1),
    "no elements": lambda rank, n: np.empty((0, 3), "i2"),
    "no dimensions": lambda rank, n: np.array(rank + 0.5),
    "read-only": lambda rank, n: _read_only(elements(rank, n)),
    "structures": lambda rank, n: elements(rank, 2 * n).view([("a", "f8"), ("b", "i8")]),
    "days": lambda rank, n: np.arange(n).astype("M8[D]") + rank,
    "objects": lambda rank, n: np.array([rank, None, "x" * n], object),
    "masked": lambda rank, n: np.ma.masked_less(elements(rank, n), 5),
    "nested": lambda rank, n: {
        "rank": rank,
        "small": elements(rank, 3),
        "deep": {"list": [elements(rank, n + k) for k in range(3)], "none": None},
    },
    "many": lambda rank, n: [elements(rank, n // 50 + k) for k in range(140)],
    "one of many is large": lambda rank, n: [elements(rank, 2), elements(rank, n), "x" * rank],
    "shared": _shared,
    "some ranks only": lambda rank, n: elements(rank, n) if rank % 2 else rank,
    "on others only": lambda rank, n: rank if rank % 2 else elements(rank, n),
    "bytes": lambda rank, n: bytes([rank]) * (8 * n),
    "a bytearray": lambda rank, n: bytearray([rank]) * (8 * n),
    "bytes beside an array": lambda rank, n: (bytes([rank]) * (8 * n), elements(rank, n)),
    "array.array": lambda rank, n: array.array("d", elements(rank, n).tolist()),
    "held bytes": lambda rank, n: Holder(bytes([rank]) * (8 * n)),
    "a held bytearray": lambda rank, n: Holder(bytearray([rank]) * (8 * n)),
    "a held array": lambda rank, n: Holder(np.asfortranarray(elements(rank, 4 * n).reshape(4, n))),
    "growing": lambda rank, n: Growing(bytearray([rank]) * (8 * n)),
}
"""By what is special about them; of a rank and a number of elements."""


def seen(value: Any) -> Any:
    """Everything about ``value`` that a program may rely on, to be compared."""
    if isinstance(value, np.ma.MaskedArray):
        return "masked", seen(value.filled(0)), value.mask.tobytes()
    if isinstance(value, np.ndarray):
        flags = value.flags
        data = value.tolist() if value.dtype.hasobject else value.tobytes()
        order = flags.c_contiguous, flags.f_contiguous, flags.writeable, flags.aligned
        return "array", str(value.dtype), value.shape, order, data
    if isinstance(value, Holder):
        return type(value), type(value.memory), bytes(value.memory)
    if isinstance(value, dict):
        return {key: seen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        same = [[one is other for one in value] for other in value]
        return type(value), [seen(item) for item in value], same if len(value) < 9 else None
    return type(value), value


@contextmanager
def threshold(n_bytes: int) -> Iterator[None]:
    """Buffers of so many bytes are left out of pickles."""
    before = MPI.pickle.THRESHOLD
    MPI.pickle.THRESHOLD = n_bytes
    try:
        yield
    finally:
        MPI.pickle.THRESHOLD = before


def first(left: Any, _right: Any) -> Any:
    """An operation that costs no memory."""
    return left


CALLS: dict[str, Callable[[MPI.Intracomm, Callable[[int], Any], int], Any]] = {
    "bcast": lambda comm, make, root: comm.bcast(
        make(root) if comm.Get_rank() == root else None, root
    ),
    "gather": lambda comm, make, root: comm.gather(make(comm.Get_rank()), root),
    "scatter": lambda comm, make, root: comm.scatter(
        list(map(make, range(comm.Get_size()))) if comm.Get_rank() == root else None, root
    ),
    "allgather": lambda comm, make, root: comm.allgather(make(comm.Get_rank())),
    "alltoall": lambda comm, make, root: comm.alltoall(
        [make(comm.Get_rank() * comm.Get_size() + other) for other in range(comm.Get_size())]
    ),
    "reduce": lambda comm, make, root: comm.reduce([make(comm.Get_rank())], root=root),
    "allreduce": lambda comm, make, root: comm.allreduce([make(comm.Get_rank())]),
}
"""Every collective of objects, of what a rank makes; alltoall makes of ranks and their peers."""

ROOTED = ("bcast", "gather", "scatter", "reduce")
"""Those of them that have a root."""
