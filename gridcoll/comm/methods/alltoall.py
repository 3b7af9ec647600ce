"""The all-to-all methods of `GridComm`."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from gridcoll.comm.arguments.blocks import Vectors, read_even
from gridcoll.comm.arguments.buffers import view_of
from gridcoll.comm.context import Context, Key
from gridcoll.comm.decisions import PLAIN
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.moving import (
    agree,
    agree_on_objects,
    blank_memory,
    move,
    move_parts,
    padded,
    refuse,
)
from gridcoll.comm.pickles import Arrived, Kind, Pickled, has_parts, length_of, pickle_each
from gridcoll.engine.natives import are_plain_blocks, native_call
from gridcoll.engine.repeat import Form
from gridcoll.plan import dataflow
from gridcoll.plan.alltoall.vector import vector_program
from gridcoll.plan.natives import VECTOR

if TYPE_CHECKING:
    from mpi4py.typing import BufSpecB, InPlace

LENGTH_BYTES = 8
"""Bytes of the length of a pickle; ranks exchange these lengths first."""


class AlltoallMethods(GridMethods):
    """`Alltoall` and `alltoall`."""

    def Alltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> None:
        """Like `mpi4py.MPI.Comm.Alltoall`, by a grid-aware plan if that is predicted faster."""
        key = ("Alltoall", recvbuf.nbytes) if type(recvbuf) is np.ndarray else None
        if fast_call := self._fast_path.get(key):
            return fast_call(self, sendbuf, recvbuf)
        if key is None:
            n_ranks = self.Get_size()
            sent, got = view_of(sendbuf, n_ranks), view_of(recvbuf, n_ranks)
            if sent is not None and type(got) is memoryview:
                key = ("Alltoall", got.nbytes)
                if fast_call := self._fast_path.get(key):
                    return fast_call(self, sent, got)
        return self._read_and_exchange(sendbuf, recvbuf, key)

    def _read_and_exchange(self, sendbuf: Any, recvbuf: Any, key: Key | None = None) -> None:
        context = self._planning_context()
        if context is None:
            return super().Alltoall(sendbuf, recvbuf)
        n_ranks = context.model.grid.n_ranks
        read = read_exchange(sendbuf, recvbuf, n_ranks)
        n_bytes = read[1].sizes[0] if read else None
        agree(context, "Alltoall", None, n_bytes, sendbuf, recvbuf)
        if read is None:
            return super().Alltoall(sendbuf, recvbuf)
        given, into = read
        source, n_bytes = padded(given, into.message.view, n_ranks), len(into.message.view)
        decision = context.decide("alltoall", into.sizes[0], 0)
        if (flow := decision.flow) is not None and len(source) > n_bytes:
            refuse(context, flow, n_bytes)
        elif flow is not None:
            move(context, flow, source, into.message.view)
            if len(given) == n_bytes:
                context.repeat(
                    key,
                    flow,
                    lambda: blank_memory(flow, n_bytes),
                    AlltoallMethods._read_and_exchange,
                    given=Form(1, n_bytes, n_blocks=n_ranks),
                    output=Form(2, n_bytes, n_blocks=n_ranks),
                )
        elif decision.native == VECTOR:
            fast_call = context.stamped(_exchange_vectors)
            context.stamped(native_call(VECTOR, "Alltoall"))(self, source, into.message.view)
            context.add_fast_call(key, fast_call)
        else:
            return self._natively(context, "Alltoall", decision.native, key, sendbuf, recvbuf)
        if into.message.store:
            into.message.store()
        return None

    def alltoall(self, sendobj: Any) -> list[Any]:
        """Like `mpi4py.MPI.Comm.alltoall`: exchange lengths, then pickles, then large buffers."""
        context = self._planning_context()
        if context is None:
            return super().alltoall(sendobj)
        n_ranks = context.model.grid.n_ranks
        agree_on_objects(context, "alltoall", None, lambda: _pickle_each(sendobj, n_ranks))
        flow = context.decide("alltoall", LENGTH_BYTES, 0, semantics=PLAIN).flow
        if flow is None:
            return super().alltoall(sendobj)
        pickles = _pickle_each(sendobj, n_ranks)
        form = struct.Struct(f"<{len(pickles)}q")
        words = form.pack(*(pickled.word for pickled in pickles))
        answer = memoryview(bytearray(form.size))
        move(context, flow, memoryview(words), answer)
        incoming = form.unpack(answer)
        data = _exchange_data(context, pickles, incoming)
        parted = {
            rank: Arrived(Kind.INDEX, data[rank])
            for rank, word in enumerate(incoming)
            if has_parts(word)
        }
        _exchange_parts(context, pickles, parted)
        whole = (Arrived(Kind.PICKLE, each) for each in data)
        arrived = (parted.get(rank, each) for rank, each in enumerate(whole))
        return [each.load() if len(each.data) else None for each in arrived]


def _exchange_vectors(comm: AlltoallMethods, sendbuf: Any, recvbuf: Any) -> None:
    """Exchange plain blocks by native `VECTOR`, which could misread other buffers: read these."""
    if are_plain_blocks(sendbuf, recvbuf, comm.Get_size()):
        return native_call(VECTOR, "Alltoall")(comm, sendbuf, recvbuf)
    return comm._read_and_exchange(sendbuf, recvbuf)


def read_exchange(sendbuf: Any, recvbuf: Any, n_ranks: int) -> tuple[memoryview, Vectors] | None:
    """Return the bytes to send, and the receive buffer; None if either argument is invalid.

    Arguments are read before anything is sent. Errors are ignored here: the native call that
    follows raises what plain mpi4py raises.
    """
    try:
        into = read_even(recvbuf, n_ranks, writable=True)
        if sendbuf is None or sendbuf is MPI.IN_PLACE:
            return memoryview(bytes(into.message.view)), into
        return read_even(sendbuf, n_ranks, writable=False).message.view, into
    except Exception:
        return None


def _pickle_each(sendobj: Any, n_ranks: int) -> list[Pickled]:
    """Return a pickle for each rank; all are empty if ``sendobj`` is None, as in mpi4py."""
    return [Pickled(b"")] * n_ranks if sendobj is None else pickle_each(sendobj, n_ranks)


def _exchange_data(
    context: Context, pickles: Sequence[Pickled], words: Sequence[int]
) -> list[memoryview]:
    """Exchange the data of objects, and return those of each rank; ``words`` tell their lengths."""
    lengths, incoming = [len(pickled.data) for pickled in pickles], list(map(length_of, words))
    into = memoryview(bytearray(sum(incoming)))
    flow = dataflow(vector_program(context.rank, lengths, incoming))
    move(context, flow, memoryview(b"".join(pickled.data for pickled in pickles)), into)
    return [into[start:stop] for start, stop in pairwise(accumulate(incoming, initial=0))]


def _exchange_parts(
    context: Context, pickles: Sequence[Pickled], parted: Mapping[int, Arrived]
) -> None:
    rank, n_ranks = context.rank, len(pickles)
    if rank in parted:
        parted[rank].copy_parts(pickles[rank].parts)
    peers = [(rank + step) % n_ranks for step in range(1, n_ranks)]
    source = {peer: pickles[peer].parts for peer in peers}
    move_parts(context, source, {peer: parted[peer].parts for peer in peers if peer in parted})
