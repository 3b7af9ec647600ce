"""The MPI library's own collectives, run: by the call of that name, or another that does the same.

All ranks must take the same one: MPI does not match a blocking call with a non-blocking one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from gridcoll.engine.waiting import wait_politely
from gridcoll.plan.natives import NONBLOCKING, VECTOR


def run_native(comm: MPI.Intracomm, native: str, method: str, *args: Any) -> None:
    """Do plain mpi4py's ``method`` on ``comm`` as ``native`` has it, one of `plan.natives.NATIVES`.

    `VECTOR` takes contiguous buffers of equal blocks, as `are_plain_blocks` says.
    """
    if native == NONBLOCKING:
        start = getattr(MPI.Intracomm, f"I{method.lower()}")
        wait_politely(start(comm, *args).Test)
    elif native == VECTOR:
        block_bytes = memoryview(args[1]).nbytes // comm.Get_size()
        MPI.Intracomm.Alltoallv(comm, *([buffer, block_bytes, MPI.BYTE] for buffer in args))
    else:
        getattr(MPI.Intracomm, method)(comm, *args)


def are_plain_blocks(sendbuf: Any, recvbuf: Any, n_blocks: int) -> bool:
    """Whether these are arrays whose bytes are equal blocks, which need no reading."""
    return (
        _is_plain(sendbuf)
        and _is_plain(recvbuf)
        and sendbuf.nbytes == recvbuf.nbytes
        and not recvbuf.size % n_blocks
        and not sendbuf.size % n_blocks
        and bool(recvbuf.flags.writeable)
    )


def _is_plain(array: Any) -> bool:
    """Of numbers as this machine has them, one after another: what MPI takes without a type."""
    return (
        type(array) is np.ndarray
        and array.flags.c_contiguous
        and array.dtype.isnative
        and array.dtype.char in "?bBhHiIlLqQfdFD"
    )
