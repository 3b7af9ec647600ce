"""The fast path: short planned calls that stay prepared and run again at once.

Reading a call's arguments and looking its decision up takes several times as long as starting it,
on every rank; between near clusters that is as long as a short call itself. So what a plan needs
stays prepared. A call of the same kind with plain arrays, whose addresses are all that differ, runs
it at once; any other arguments are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py.MPI import IN_PLACE, Get_address

from gridcoll.comm.context import FastCall
from gridcoll.engine.compiled import SHORT_BYTES, Prepared
from gridcoll.engine.natives import is_plain
from gridcoll.plan import Dataflow

MOST_SCRATCH_BYTES = 128 << 10
"""Of what stays prepared, for up to `N_DECISIONS` kinds of calls of every communicator."""

Fits = Callable[[Any, Any], bool]
"""Whether what is sent and what is received into are what a plan was prepared for."""


def is_short(flow: Dataflow, n_bytes: int, unit_bytes: int = 1) -> bool:
    """Whether a call with so many bytes in its buffers should stay prepared."""
    scratch_bytes = flow.scratch_units * unit_bytes
    return 0 < n_bytes <= SHORT_BYTES and scratch_bytes <= MOST_SCRATCH_BYTES


def repeat_nothing(prepared: Prepared) -> FastCall:
    """A call without buffers: those of the plan are its own."""
    return lambda comm: prepared.run()


def repeat_in(prepared: Prepared, *, writes: bool, read: FastCall) -> FastCall:
    """A call on one buffer, which is the plan's ``output``, where it is written to or only read."""

    def call(comm: Any, buffer: Any, *rest: Any) -> None:
        if is_plain(buffer) and (buffer.flags.writeable or not writes):
            prepared.place(Get_address(buffer), 0)
            return prepared.run(buffer)
        return read(comm, buffer, *rest)

    return call


def repeat_from(prepared: Prepared, read: FastCall) -> FastCall:
    """A call from one buffer into none, whatever is given as the other one."""

    def call(comm: Any, sendbuf: Any, *rest: Any) -> None:
        if is_plain(sendbuf):
            prepared.place(0, Get_address(sendbuf))
            return prepared.run(sendbuf)
        return read(comm, sendbuf, *rest)

    return call


def repeat_two(
    prepared: Prepared, fits: Fits, read: FastCall, own: np.ndarray | None = None
) -> FastCall:
    """A call from one buffer into another one; ``own`` takes what is given in place."""

    def call(comm: Any, sendbuf: Any, recvbuf: Any, *rest: Any) -> None:
        source = sendbuf
        if sendbuf is IN_PLACE and own is not None and fits(own, recvbuf):
            own[:] = recvbuf.reshape(-1)
            source = own
        if fits(source, recvbuf):
            given, output = Get_address(source), Get_address(recvbuf)
            if given + source.nbytes <= output or output + recvbuf.nbytes <= given:
                prepared.place(output, given)
                return prepared.run(source, recvbuf)
        return read(comm, sendbuf, recvbuf, *rest)

    return call


def alike(dtype: np.dtype[Any], n_bytes: int) -> Fits:
    """Plain arrays of this type and size both."""

    def fits(sendbuf: Any, recvbuf: Any) -> bool:
        return (
            is_plain(sendbuf)
            and is_plain(recvbuf)
            and sendbuf.dtype == recvbuf.dtype == dtype
            and sendbuf.nbytes == recvbuf.nbytes == n_bytes
            and bool(recvbuf.flags.writeable)
        )

    return fits
