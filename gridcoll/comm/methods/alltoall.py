"""All-to-all as a user calls it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from mpi4py import MPI

from gridcoll.comm.agreement import require_equal
from gridcoll.comm.blocks import Blocks, read_blocks
from gridcoll.comm.context import Context
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.variants import are_plain_blocks, run_native
from gridcoll.engine.memory import ByteMemory
from gridcoll.plan import Dataflow, dataflow
from gridcoll.plan.collectives.alltoallv import vector_program
from gridcoll.plan.natives import NATIVE, VECTOR

LENGTH_BYTES = 8
"""Objects tell each other their pickles' lengths first."""


class AlltoallMethods(GridMethods):
    """`Alltoall` and `alltoall`."""

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `mpi4py.MPI.Comm.Alltoall`, along the grid where that is predicted faster."""
        context = self._context
        if context is None or context.native_only:
            return super().Alltoall(sendbuf, recvbuf)
        n_ranks = context.model.grid.n_ranks
        if type(recvbuf) is np.ndarray:
            native = context.known_native("alltoall", recvbuf, n_ranks, 0)
            if native == NATIVE:
                return super().Alltoall(sendbuf, recvbuf)
            if native and are_plain_blocks(sendbuf, recvbuf, n_ranks):
                return run_native(self, native, "Alltoall", sendbuf, recvbuf)
        read = read_exchange(sendbuf, recvbuf, n_ranks)
        if context.settings.check:
            size = f"bytes={read[1].block_bytes}" if read else "with arguments that MPI refuses"
            require_equal(context.private, "Alltoall", f"Alltoall {size}")
        if read is None:
            return super().Alltoall(sendbuf, recvbuf)
        source, into = read
        flow = context.program("alltoall", into.block_bytes, 0)
        if flow is not None:
            _run(context, flow, source, into.message.view)
        elif (native := context.native("alltoall", into.block_bytes, 0)) == VECTOR:
            run_native(self, native, "Alltoall", source, into.message.view)
        else:
            return run_native(self, native, "Alltoall", sendbuf, recvbuf)
        if into.message.store:
            into.message.store()
        return None

    def alltoall(self, sendobj: Any) -> list[Any]:
        """As `mpi4py.MPI.Comm.alltoall`: lengths as an all-to-all, then pickles, all at once."""
        context = self._context
        if context is None or context.native_only:
            return super().alltoall(sendobj)
        flow = context.program("alltoall", LENGTH_BYTES, 0, plain=True)
        if flow is None:
            return super().alltoall(sendobj)
        pickles = _dump_each(sendobj, context.model.grid.n_ranks)
        if context.settings.check:
            require_equal(context.private, "alltoall", "alltoall")
        lengths = [len(pickled) for pickled in pickles]
        form = struct.Struct(f"<{len(lengths)}q")
        answer = memoryview(bytearray(form.size))
        _run(context, flow, memoryview(form.pack(*lengths)), answer)
        coming = form.unpack(answer)
        data = memoryview(bytearray(sum(coming)))
        vector = dataflow(vector_program(context.rank, lengths, coming))
        _run(context, vector, memoryview(b"".join(pickles)), data)
        return _load_each(data, coming)


def read_exchange(sendbuf: Any, recvbuf: Any, n_ranks: int) -> tuple[memoryview, Blocks] | None:
    """What is sent, as bytes, and where to; None where these arguments are wrong.

    Before any communication, and of wrong arguments the MPI library has its own opinion, so that
    whatever is raised here is dropped for what it will raise.
    """
    try:
        into = read_blocks(recvbuf, n_ranks, writable=True)
        if into is None:
            return None
        if sendbuf is None or sendbuf is MPI.IN_PLACE:
            return memoryview(bytes(into.message.view)), into
        source = read_blocks(sendbuf, n_ranks, writable=False)
    except Exception:
        return None
    if source is None or source.block_bytes != into.block_bytes:
        return None
    return source.message.view, into


def _run(context: Context, flow: Dataflow, source: memoryview, into: memoryview) -> None:
    context.run(flow, exchange_memory(flow, source, into))


def exchange_memory(flow: Dataflow, source: memoryview, into: memoryview) -> ByteMemory:
    """The buffers of a run that begins now."""
    return ByteMemory(into, source, memoryview(np.empty(flow.scratch_units, np.uint8).data))


def _dump_each(sendobj: Any, n_ranks: int) -> list[bytes]:
    """A pickle per rank; all empty for None, as mpi4py has it."""
    if sendobj is None:
        return [b""] * n_ranks
    items = list(sendobj)
    if len(items) != n_ranks:
        raise ValueError(f"expecting {n_ranks} items, got {len(items)}")
    return [MPI.pickle.dumps(item) for item in items]


def _load_each(data: memoryview, lengths: Sequence[int]) -> list[Any]:
    ends = list(accumulate(lengths, initial=0))
    return [
        MPI.pickle.loads(data[start:stop]) if stop > start else None
        for start, stop in pairwise(ends)
    ]
