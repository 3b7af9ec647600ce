"""Allgather as a user calls it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI
from numpy import ndarray

from gridcoll.comm.arguments.blocks import Vectors, read_blocks, read_vectors
from gridcoll.comm.arguments.buffers import read_message
from gridcoll.comm.context import Context, FastCall, Key
from gridcoll.comm.decisions import PLAIN
from gridcoll.comm.fast_path import is_short, repeat_two
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
from gridcoll.comm.pickles import Arrived, Heads, pickle_of
from gridcoll.engine.compiled import Prepared
from gridcoll.engine.memory import PartedMemory, byte_memory
from gridcoll.engine.natives import is_plain
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
        key = ("Allgather", recvbuf.nbytes) if type(recvbuf) is ndarray else None
        if again := self._fast_path.get(key):
            return again(self, sendbuf, recvbuf)
        return self._read_and_gather(sendbuf, recvbuf, key)

    def _read_and_gather(self, sendbuf: Any, recvbuf: Any, key: Key | None = None) -> None:
        context = self._context
        if context is None or context.native_only:
            return super().Allgather(sendbuf, recvbuf)
        call = read_or_leave(lambda: _read_even(context, sendbuf, recvbuf))
        n_bytes = call.into.sizes[0] if call else None
        agree(context, "Allgather", None, n_bytes, sendbuf, recvbuf)
        decision = None if n_bytes is None else context.decide("allgather", n_bytes, 0)
        flow = decision.flow if decision else None
        if call is None or flow is None:
            native = decision.native if decision else None
            return self._natively(context, "Allgather", native, key, sendbuf, recvbuf)
        call.run(context, flow)
        if key and is_short(flow, recvbuf.nbytes + call.into.sizes[0]):
            own = memoryview(bytearray(recvbuf.nbytes))
            if prepared := context.prepare(flow, byte_memory(flow, own, own)):
                context.enter(key, _repeat(prepared, context.model.grid.n_ranks))
        return None

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `mpi4py.MPI.Comm.Allgatherv`; all ranks know all sizes, which the choice may use."""
        context = self._context
        if context is None or context.native_only:
            return super().Allgatherv(sendbuf, recvbuf)
        call = read_or_leave(lambda: _read_uneven(context, sendbuf, recvbuf))
        n_bytes = sum(call.into.sizes) if call else None
        agree(context, "Allgatherv", None, n_bytes, sendbuf, recvbuf)
        flow = _flow(context, call.into.sizes) if call else None
        if call is None or flow is None:
            return super().Allgatherv(sendbuf, recvbuf)
        return call.run(context, flow)

    def allgather(self, sendobj: Any) -> list[Any]:
        """As `mpi4py.MPI.Comm.allgather`: lengths with the first bytes, then what is left."""
        context = self._context
        if context is None or context.native_only:
            return super().allgather(sendobj)
        agree_on_root(context, "allgather", 0)
        flow = heads_flow(context, "allgather", 0)
        if flow is None:
            return super().allgather(sendobj)
        pickled = pickle_of(sendobj)
        heads = Heads(context.model.grid.n_ranks)
        move(context, flow, memoryview(pickled.head()), heads.view)
        data = memoryview(bytearray(sum(heads.rests())))
        if data:
            _allgather_bytes(context, pickled.rest(), data, heads.rests())
        parted = heads.parted(data)
        if any(each.n_bytes for each in parted.values()):
            _allgather_parts(context, pickled.parts, parted)
        return heads.loads(data, parted)


def _repeat(prepared: Prepared, n_ranks: int) -> FastCall:
    def fits(sendbuf: Any, recvbuf: Any) -> bool:
        return (
            is_plain(sendbuf)
            and is_plain(recvbuf)
            and sendbuf.nbytes * n_ranks == recvbuf.nbytes
            and not recvbuf.size % n_ranks
            and bool(recvbuf.flags.writeable)
        )

    return repeat_two(prepared, fits, AllgatheringMethods._read_and_gather)


def _allgather_bytes(
    context: Context, source: memoryview, into: memoryview, sizes: tuple[int, ...]
) -> None:
    flow = _flow(context, sizes)
    if flow is None:
        _allgather_natively(context, source, into, sizes)
    else:
        move(context, flow, source, into)


def _allgather_natively(
    context: Context, source: memoryview, into: memoryview, sizes: tuple[int, ...]
) -> None:
    theirs = [into, sizes, None, MPI.BYTE]
    MPI.Intracomm.Allgatherv(context.private, [source, MPI.BYTE], theirs)


def _allgather_parts(
    context: Context, source: Sequence[memoryview], parted: Mapping[int, Arrived]
) -> None:
    """Fill the parts of ``parted``, by rank, with what the ranks have."""
    ranks = range(context.model.grid.n_ranks)
    sizes = tuple(parted[rank].n_bytes if rank in parted else 0 for rank in ranks)
    into = [part for rank in ranks if rank in parted for part in parted[rank].parts]
    flow = _flow(context, sizes)
    if flow is not None:
        scratch = memoryview(np.empty(flow.scratch_units, np.uint8).data)
        return context.run(flow, PartedMemory(into, source, [scratch]))
    # MPI's own wants every rank's block in one piece.
    whole = memoryview(np.empty(sum(sizes), np.uint8).data)
    _allgather_natively(context, memoryview(b"".join(source)), whole, sizes)
    for part in into:
        part[:] = whole[: len(part)]
        whole = whole[len(part) :]
    return None


def _flow(context: Context, sizes: tuple[int, ...]) -> Dataflow | None:
    """This rank's share for blocks of ``sizes`` bytes; None for the native collective."""
    if even_of(sizes):
        return context.decide("allgather", sizes[0], 0, semantics=PLAIN).flow
    build = context.choice("allgather", mean_of(sizes), 0, PLAIN).winner.build_blocks
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
