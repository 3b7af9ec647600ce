"""Calls the MPI library's own collectives: by the method of that name, or an equivalent one.

All ranks must take the same one: MPI does not match a blocking call with a non-blocking one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_politely
from gridcoll.plan.natives import NONBLOCKING, VECTOR

NativeCall = Callable[..., None]
"""Takes the communicator and what ``method`` takes."""


def native_call(native: str, method: str) -> NativeCall:
    """A function that does mpi4py's ``method`` by ``native``, one of `plan.natives.NATIVES`.

    `VECTOR` takes contiguous buffers of equal blocks, as `are_plain_blocks` says.
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
    """Whether these are arrays of equal contiguous blocks, whose arguments need no reading."""
    return (
        is_plain(sendbuf)
        and is_plain(recvbuf)
        and sendbuf.nbytes == recvbuf.nbytes
        and not recvbuf.size % n_blocks
        and not sendbuf.size % n_blocks
        and bool(recvbuf.flags.writeable)
    )


def is_plain(array: Any) -> bool:
    """Whether it is contiguous, of numbers in this machine's byte order: MPI needs no type then."""
    return (
        type(array) is np.ndarray
        and array.flags.c_contiguous
        and array.dtype.isnative
        and array.dtype.char in "?bBhHiIlLqQfdFD"
    )
