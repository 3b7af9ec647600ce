"""Calls the MPI library's own collectives, by the method of that name or an equivalent one.

All ranks must use the same method: MPI does not match a blocking call with a non-blocking one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_politely
from gridcoll.plan.natives import NONBLOCKING, VECTOR

NativeCall = Callable[..., None]
"""A function that takes the communicator and the arguments of ``method``."""


def native_call(native: str, method: str) -> NativeCall:
    """Return a function that does mpi4py's ``method`` by ``native`` of `plan.natives.NATIVES`.

    `VECTOR` requires contiguous buffers of equal blocks: see `are_plain_blocks`.
    """
    if native == NONBLOCKING:
        return _politely(getattr(MPI.Intracomm, f"I{method.lower()}"))
    if native == VECTOR:
        return _as_vectors
    call: NativeCall = getattr(MPI.Intracomm, method)
    return call


def _politely(start: Callable[..., MPI.Request]) -> NativeCall:
    return lambda *args: wait_politely(start(*args).Test, kept=args)


def _as_vectors(comm: MPI.Intracomm, *buffers: Any) -> None:
    size = comm.Get_size()
    blocks = ([each, memoryview(each).nbytes // size, MPI.BYTE] for each in buffers)
    MPI.Intracomm.Alltoallv(comm, *blocks)


def are_plain_blocks(sendbuf: Any, recvbuf: Any, n_blocks: int) -> bool:
    """Whether both are plain arrays that divide into ``n_blocks`` equal blocks.

    Such arguments need no further checks.
    """
    return (
        is_plain(sendbuf)
        and is_plain(recvbuf)
        and sendbuf.nbytes == recvbuf.nbytes
        and not recvbuf.size % n_blocks
        and not sendbuf.size % n_blocks
        and bool(recvbuf.flags.writeable)
    )


def is_plain(array: Any) -> bool:
    """Whether ``array`` is contiguous, of numbers in native byte order: MPI needs no type then."""
    return (
        type(array) is np.ndarray
        and array.flags.c_contiguous
        and array.dtype.isnative
        and array.dtype.char in "?bBhHiIlLqQfdFD"
    )
