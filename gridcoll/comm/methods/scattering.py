"""Scatter as a user calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy import ndarray

from gridcoll.comm.arguments.blocks import Vectors, read_blocks, read_vectors
from gridcoll.comm.arguments.buffers import Message, read_message
from gridcoll.comm.context import Context
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.moving import (
    agree,
    agree_on_root,
    copy_as_mpi_does,
    decide_or_leave,
    heads_flow,
    in_place,
    in_turn,
    move,
    move_parts,
    read_or_leave,
    serve_flow,
    take_flow,
)
from gridcoll.comm.pickles import Heads, pickle_each

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace

_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class _Scattering:
    """At the root: where blocks are, and where its own goes; None if it stays in place."""

    source: Vectors
    mine: Message | None

    def own(self, root: int) -> memoryview:
        """Memory for the root's block, the user's if it has that length."""
        n_bytes = self.source.sizes[root]
        fits = self.mine is not None and len(self.mine.view) == n_bytes
        return self.mine.view if self.mine and fits else memoryview(bytearray(n_bytes))

    def store(self, own: memoryview) -> None:
        """Copy the root's block to the user's buffer."""
        if self.mine is None:
            return
        if len(self.mine.view) != len(own):
            copy_as_mpi_does(own, self.mine.view)
        if self.mine.store:
            self.mine.store()


class ScatteringMethods(GridMethods):
    """`Scatter`, `Scatterv` and `scatter`."""

    def Scatter(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0) -> None:
        """As `mpi4py.MPI.Comm.Scatter`, along the grid where that is predicted faster."""
        plain = type(recvbuf) is ndarray and type(root) is int
        key = ("Scatter", recvbuf.nbytes, root) if plain else None  # type: ignore[union-attr]
        if again := self._fast_path.get(key):
            return again(self, sendbuf, recvbuf, root)
        context = self._planning()
        if context is None or (rank := context.as_rank(root)) is None:
            return super().Scatter(sendbuf, recvbuf, root)
        root = rank
        if context.rank != root:
            message = read_or_leave(lambda: read_message(recvbuf, writable=True))
            n_bytes = len(message.view) if message else None
            agree(context, "Scatter", root, n_bytes, recvbuf)
            flow, native = decide_or_leave(context, "scatter", n_bytes, root)
            if message is None or flow is None:
                return self._natively(context, "Scatter", native, key, sendbuf, recvbuf, root)
            return _take(context, flow, message)
        call = read_or_leave(lambda: _read_even(context, sendbuf, recvbuf))
        n_bytes = call.source.sizes[root] if call else None
        agree(context, "Scatter", root, n_bytes, sendbuf, recvbuf)
        flow, native = decide_or_leave(context, "scatter", n_bytes, root)
        if call is None or flow is None:
            return self._natively(context, "Scatter", native, key, sendbuf, recvbuf, root)
        own = call.own(root)
        move(context, flow, call.source.message.view, own)
        return call.store(own)

    def Scatterv(self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0) -> None:
        """As `mpi4py.MPI.Comm.Scatterv`: every block straight from the root."""
        context = self._planning()
        if context is None or (rank := context.as_rank(root)) is None:
            return super().Scatterv(sendbuf, recvbuf, root)
        root = rank
        at_root = (sendbuf,) if context.rank == root else ()
        agree_on_root(context, "Scatterv", root, recvbuf, *at_root)
        if context.decide("scatterv", 0, root).flow is None:
            return super().Scatterv(sendbuf, recvbuf, root)
        if context.rank != root:
            message = read_or_leave(lambda: read_message(recvbuf, writable=True))
            if message is None:
                return super().Scatterv(sendbuf, recvbuf, root)
            return _take(context, take_flow(root, len(message.view)), message)
        call = read_or_leave(lambda: _read_uneven(context, sendbuf, recvbuf))
        if call is None:
            return super().Scatterv(sendbuf, recvbuf, root)
        own = call.own(root)
        flow = serve_flow(context, call.source.starts, call.source.sizes)
        move(context, flow, call.source.message.view, own)
        return call.store(own)

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        """As `mpi4py.MPI.Comm.scatter`: length and first bytes together, then what is left."""
        context = self._planning()
        if context is None or (rank := context.as_rank(root)) is None:
            return super().scatter(sendobj, root)
        root = rank
        agree_on_root(context, "scatter", root)
        flow = heads_flow(context, "scatter", root)
        if flow is None:
            return super().scatter(sendobj, root)
        heads = Heads(1)
        if context.rank != root:
            move(context, flow, _NOTHING, heads.view)
            data = memoryview(bytearray(sum(heads.rests())))
            move(context, take_flow(root, len(data)), _NOTHING, data)
            parted = heads.parted(data)
            move_parts(context, {}, {root: parted[0].parts if parted else ()})
            return heads.loads(data, parted)[0]
        pickles = pickle_each(sendobj, context.model.grid.n_ranks)
        every = Heads.of(pickles)
        move(context, flow, every.view, heads.view)
        rests = memoryview(b"".join(pickled.rest() for pickled in pickles))
        data = memoryview(bytearray(sum(heads.rests())))
        move(context, serve_flow(context, every.rest_starts(), every.rests()), rests, data)
        parted = heads.parted(data)
        if parted:
            parted[0].take(pickles[root].parts)
        move_parts(context, {peer: pickles[peer].parts for peer in in_turn(context)}, {})
        return heads.loads(data, parted)[0]


def _take(context: Context, flow: Any, message: Message) -> None:
    """Run a rank's share, and copy what it received to the user's buffer."""
    move(context, flow, _NOTHING, message.view)
    if message.store:
        message.store()


def _read_even(context: Context, sendbuf: Any, recvbuf: Any) -> _Scattering:
    n_ranks = context.model.grid.n_ranks
    blocks = read_blocks(sendbuf, n_ranks, writable=False)
    if blocks is None:
        raise ValueError("no even blocks")
    return _Scattering(Vectors.even(blocks, n_ranks), _read_mine(recvbuf))


def _read_uneven(context: Context, sendbuf: Any, recvbuf: Any) -> _Scattering:
    source = read_vectors(sendbuf, context.model.grid.n_ranks, writable=False)
    return _Scattering(source, _read_mine(recvbuf))


def _read_mine(recvbuf: Any) -> Message | None:
    return None if in_place(recvbuf) else read_message(recvbuf, writable=True)
