"""Allgather as a user calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from gridcoll.comm.blocks import read_blocks
from gridcoll.comm.buffers import read_message
from gridcoll.comm.context import PLAIN, Context
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.moving import (
    agree,
    agree_on_root,
    even_of,
    heads_flow,
    in_place,
    mean_of,
    move,
    read_or_leave,
    uneven_flow,
)
from gridcoll.comm.pickles import Heads, head_of, rest_of
from gridcoll.comm.variants import run_native
from gridcoll.comm.vectors import Vectors, read_vectors
from gridcoll.plan import Dataflow


@dataclass(frozen=True, slots=True)
class _Allgathering:
    source: memoryview
    into: Vectors

    def run(self, context: Context, flow: Dataflow) -> None:
        """The plan has blocks one after another in rank order; the user may want them elsewhere."""
        run = self.into.run
        if run is not None:
            move(context, flow, self.source, run)
        else:
            got = memoryview(bytearray(sum(self.into.sizes)))
            move(context, flow, self.source, got)
            for rank, size in enumerate(self.into.sizes):
                self.into.block(rank)[:] = got[:size]
                got = got[size:]
        if self.into.message.store:
            self.into.message.store()


class AllgatheringMethods(GridMethods):
    """`Allgather`, `Allgatherv` and `allgather`."""

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `mpi4py.MPI.Comm.Allgather`, along the grid where that is predicted faster."""
        context = self._context
        if context is None or context.native_only:
            return super().Allgather(sendbuf, recvbuf)
        call = read_or_leave(lambda: _read_even(context, sendbuf, recvbuf))
        n_bytes = call.into.sizes[0] if call else None
        agree(context, "Allgather", None, n_bytes)
        flow = None if n_bytes is None else context.program("allgather", n_bytes, 0)
        if call is None or flow is None:
            native = context.native("allgather", n_bytes, 0)
            return run_native(self, native, "Allgather", sendbuf, recvbuf)
        return call.run(context, flow)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `mpi4py.MPI.Comm.Allgatherv`; all ranks know all sizes, which the choice may use."""
        context = self._context
        if context is None or context.native_only:
            return super().Allgatherv(sendbuf, recvbuf)
        call = read_or_leave(lambda: _read_uneven(context, sendbuf, recvbuf))
        agree(context, "Allgatherv", None, sum(call.into.sizes) if call else None)
        flow = _flow(context, call.into.sizes) if call else None
        if call is None or flow is None:
            return super().Allgatherv(sendbuf, recvbuf)
        return call.run(context, flow)

    def allgather(self, sendobj: Any) -> list[Any]:
        """As `mpi4py.MPI.Comm.allgather`: lengths with the first bytes, then what is left."""
        context = self._context
        if context is None or context.native_only:
            return super().allgather(sendobj)
        flow = heads_flow(context, "allgather", 0)
        if flow is None:
            return super().allgather(sendobj)
        pickled = MPI.pickle.dumps(sendobj)
        agree_on_root(context, "allgather", 0)
        heads = Heads(context.model.grid.n_ranks)
        move(context, flow, memoryview(head_of(pickled)), heads.view)
        data = memoryview(bytearray(sum(heads.rests())))
        if data:
            self._allgather_rests(context, rest_of(pickled), data, heads.rests())
        return heads.loads(data)

    def _allgather_rests(
        self, context: Context, rest: memoryview, data: memoryview, sizes: tuple[int, ...]
    ) -> None:
        flow = _flow(context, sizes)
        if flow is None:
            into = [data, sizes, None, MPI.BYTE]
            MPI.Intracomm.Allgatherv(context.private, [rest, MPI.BYTE], into)
        else:
            move(context, flow, rest, data)


def _flow(context: Context, sizes: tuple[int, ...]) -> Dataflow | None:
    """This rank's share for blocks of ``sizes`` bytes; None for the native collective."""
    if even_of(sizes):
        return context.program("allgather", sizes[0], 0, plain=True)
    build = context.choice("allgather", mean_of(sizes), 0, demands=PLAIN).winner.build_blocks
    return uneven_flow(build, sizes, context.rank)


def _read_even(context: Context, sendbuf: Any, recvbuf: Any) -> _Allgathering:
    n_ranks = context.model.grid.n_ranks
    blocks = read_blocks(recvbuf, n_ranks, writable=True)
    if blocks is None:
        raise ValueError("no even blocks")
    return _with_source(context, sendbuf, Vectors.even(blocks, n_ranks))


def _read_uneven(context: Context, sendbuf: Any, recvbuf: Any) -> _Allgathering:
    into = read_vectors(recvbuf, context.model.grid.n_ranks, writable=True)
    return _with_source(context, sendbuf, into)


def _with_source(context: Context, sendbuf: Any, into: Vectors) -> _Allgathering:
    own = into.block(context.rank)
    if in_place(sendbuf):
        return _Allgathering(own, into)
    source = read_message(sendbuf, writable=False).view
    if len(source) != len(own):
        raise ValueError("sizes differ")
    return _Allgathering(source, into)
