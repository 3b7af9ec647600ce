"""The allgather methods of `GridComm`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI
from msgspec import Struct
from numpy import ndarray

from gridcoll.comm.arguments.blocks import Vectors, read_even, read_vectors
from gridcoll.comm.arguments.buffers import read_message, view_of
from gridcoll.comm.context import Context, Key
from gridcoll.comm.decisions import PLAIN
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.moving import (
    agree,
    agree_on_objects,
    are_equal,
    blank_memory,
    decide_if_valid,
    flow_of,
    gather_heads,
    heads_flow,
    in_place,
    mean_size,
    move,
    padded,
    read_or_none,
    refuse,
)
from gridcoll.comm.pickles import Arrived, pickle_of
from gridcoll.engine.memory import PartedMemory
from gridcoll.engine.repeat import Form
from gridcoll.plan import Dataflow

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace


class _Allgathering(Struct, frozen=True):
    source: memoryview | None
    """As long as this rank's block; None if the user's buffer is longer."""
    into: Vectors
    fits: bool = True
    """Whether the user's buffer is as long as the block, so that it was not padded."""

    def run(self, context: Context, flow: Dataflow) -> None:
        """Run the plan, whose blocks are contiguous in rank order; the user's may not be."""
        run = self.into.run
        if self.source is None:
            refuse(context, flow, sum(self.into.sizes))
        elif run is not None:
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

    def Allgather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB) -> None:
        """Like `mpi4py.MPI.Comm.Allgather`, by a grid-aware plan if that is predicted faster."""
        key = ("Allgather", recvbuf.nbytes) if type(recvbuf) is ndarray else None
        if fast_call := self._fast_path.get(key):
            return fast_call(self, sendbuf, recvbuf)
        if key is None:
            sent, got = view_of(sendbuf), view_of(recvbuf, self.Get_size())
            if sent is not None and type(got) is memoryview:
                key = ("Allgather", got.nbytes)
                if fast_call := self._fast_path.get(key):
                    return fast_call(self, sent, got)
        return self._read_and_gather(sendbuf, recvbuf, key)

    def _read_and_gather(self, sendbuf: Any, recvbuf: Any, key: Key | None = None) -> None:
        context = self._planning_context()
        if context is None:
            return super().Allgather(sendbuf, recvbuf)
        call = read_or_none(lambda: _read(context, sendbuf, recvbuf, read_even))
        n_bytes = call.into.sizes[0] if call else None
        agree(context, "Allgather", None, n_bytes, sendbuf, recvbuf)
        flow, native = decide_if_valid(context, "allgather", n_bytes, 0)
        if call is None or flow is None:
            return self._natively(context, "Allgather", native, key, sendbuf, recvbuf)
        call.run(context, flow)
        if not call.fits:
            return None
        n_ranks = context.model.grid.n_ranks
        block_bytes = call.into.sizes[0]
        context.repeat(
            key,
            flow,
            lambda: blank_memory(flow, n_ranks * block_bytes),
            AllgatheringMethods._read_and_gather,
            given=Form(1, block_bytes),
            output=Form(2, n_ranks * block_bytes, n_blocks=n_ranks),
        )
        return None

    def Allgatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV) -> None:
        """Like `mpi4py.MPI.Comm.Allgatherv`. The choice may use all sizes: all ranks know them."""
        context = self._planning_context()
        if context is None:
            return super().Allgatherv(sendbuf, recvbuf)
        call = read_or_none(lambda: _read(context, sendbuf, recvbuf, read_vectors))
        n_bytes = sum(call.into.sizes) if call else None
        agree(context, "Allgatherv", None, n_bytes, sendbuf, recvbuf)
        flow = _flow(context, call.into.sizes) if call else None
        if call is None or flow is None:
            return super().Allgatherv(sendbuf, recvbuf)
        return call.run(context, flow)

    def allgather(self, sendobj: Any) -> list[Any]:
        """Like `mpi4py.MPI.Comm.allgather`: lengths with the first bytes, then the rest."""
        context = self._planning_context()
        if context is None:
            return super().allgather(sendobj)
        agree_on_objects(context, "allgather", 0, lambda: pickle_of(sendobj))
        flow = heads_flow(context, "allgather", 0)
        if flow is None:
            return super().allgather(sendobj)
        pickled = pickle_of(sendobj)
        heads = gather_heads(context, flow, memoryview(pickled.head()))
        data = memoryview(bytearray(sum(heads.rests())))
        if data:
            _allgather_bytes(context, pickled.rest(), data, heads.rests())
        parted = heads.parted(data)
        if any(each.n_bytes for each in parted.values()):
            _allgather_parts(context, pickled.parts, parted)
        return heads.loads(data, parted)


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
    recvbuf = [into, sizes, None, MPI.BYTE]
    MPI.Intracomm.Allgatherv(context.comm, [source, MPI.BYTE], recvbuf)


def _allgather_parts(
    context: Context, source: Sequence[memoryview], parted: Mapping[int, Arrived]
) -> None:
    """Fill the parts of ``parted``, objects by rank, with the data of these ranks."""
    ranks = range(context.model.grid.n_ranks)
    sizes = tuple(parted[rank].n_bytes if rank in parted else 0 for rank in ranks)
    into = [part for rank in ranks if rank in parted for part in parted[rank].parts]
    flow = _flow(context, sizes)
    if flow is not None:
        scratch = memoryview(np.empty(flow.scratch_units, np.uint8).data)
        return context.run(flow, PartedMemory(into, source, [scratch]))
    # The native collective needs every rank's block in one piece.
    whole = memoryview(np.empty(sum(sizes), np.uint8).data)
    _allgather_natively(context, memoryview(b"".join(source)), whole, sizes)
    for part in into:
        part[:] = whole[: len(part)]
        whole = whole[len(part) :]
    return None


def _flow(context: Context, sizes: tuple[int, ...]) -> Dataflow | None:
    """Return this rank's part of a plan for blocks of ``sizes`` bytes; None for the native call."""
    if are_equal(sizes):
        return context.decide("allgather", sizes[0], 0, semantics=PLAIN).flow
    build = context.decisions.choice("allgather", mean_size(sizes), 0, PLAIN).winner.build_blocks
    return flow_of(build, sizes, context.rank)


def _read(
    context: Context, sendbuf: Any, recvbuf: Any, read: Callable[..., Vectors]
) -> _Allgathering:
    into = read(recvbuf, context.model.grid.n_ranks, writable=True)
    own = into.block(context.rank)
    if in_place(sendbuf):
        return _Allgathering(own, into)
    source = read_message(sendbuf, writable=False).view
    if len(source) > len(own):
        return _Allgathering(None, into)
    return _Allgathering(padded(source, own), into, len(source) == len(own))
