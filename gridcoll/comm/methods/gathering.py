"""Gather as a user calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy import ndarray

from gridcoll.comm.arguments.blocks import Vectors, read_blocks, read_vectors
from gridcoll.comm.arguments.buffers import read_message
from gridcoll.comm.context import Context
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.moving import (
    agree,
    agree_on_root,
    collect_flow,
    copy_as_mpi_does,
    decide_or_leave,
    give_flow,
    heads_flow,
    in_place,
    in_turn,
    move,
    move_parts,
    read_or_leave,
)
from gridcoll.comm.pickles import Heads, pickle_of

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace

_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class _Gathering:
    """At the root: where blocks go, and its own block; None if that is in place."""

    into: Vectors
    mine: memoryview | None

    def own(self, root: int) -> memoryview:
        """The root's block, copied to its place if it has another length."""
        block = self.into.block(root)
        if self.mine is None or len(self.mine) == len(block):
            return block if self.mine is None else self.mine
        copy_as_mpi_does(self.mine, block)
        return block

    def store(self) -> None:
        if self.into.message.store:
            self.into.message.store()


class GatheringMethods(GridMethods):
    """`Gather`, `Gatherv` and `gather`."""

    def Gather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0) -> None:
        """As `mpi4py.MPI.Comm.Gather`, along the grid where that is predicted faster."""
        plain = type(sendbuf) is ndarray and type(root) is int
        key = ("Gather", sendbuf.nbytes, root) if plain else None  # type: ignore[union-attr]
        if again := self._fast_path.get(key):
            return again(self, sendbuf, recvbuf, root)
        context = self._planning()
        if context is None or (rank := context.as_rank(root)) is None:
            return super().Gather(sendbuf, recvbuf, root)
        root = rank
        if context.rank != root:
            message = read_or_leave(lambda: read_message(sendbuf, writable=False))
            n_bytes = len(message.view) if message else None
            agree(context, "Gather", root, n_bytes, sendbuf)
            flow, native = decide_or_leave(context, "gather", n_bytes, root)
            if message is None or flow is None:
                return self._natively(context, "Gather", native, key, sendbuf, recvbuf, root)
            return move(context, flow, message.view, _NOTHING)
        call = read_or_leave(lambda: _read_even(context, sendbuf, recvbuf))
        n_bytes = call.into.sizes[root] if call else None
        agree(context, "Gather", root, n_bytes, sendbuf, recvbuf)
        flow, native = decide_or_leave(context, "gather", n_bytes, root)
        if call is None or flow is None:
            return self._natively(context, "Gather", native, key, sendbuf, recvbuf, root)
        move(context, flow, call.own(root), call.into.message.view)
        return call.store()

    def Gatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0) -> None:
        """As `mpi4py.MPI.Comm.Gatherv`: every block straight to the root."""
        context = self._planning()
        if context is None or (rank := context.as_rank(root)) is None:
            return super().Gatherv(sendbuf, recvbuf, root)
        root = rank
        at_root = (recvbuf,) if context.rank == root else ()
        agree_on_root(context, "Gatherv", root, sendbuf, *at_root)
        if context.decide("gatherv", 0, root).flow is None:
            return super().Gatherv(sendbuf, recvbuf, root)
        if context.rank != root:
            message = read_or_leave(lambda: read_message(sendbuf, writable=False))
            if message is None:
                return super().Gatherv(sendbuf, recvbuf, root)
            flow = give_flow(root, len(message.view))
            return move(context, flow, message.view, _NOTHING)
        call = read_or_leave(lambda: _read_uneven(context, sendbuf, recvbuf))
        if call is None:
            return super().Gatherv(sendbuf, recvbuf, root)
        flow = collect_flow(context, call.into.starts, call.into.sizes)
        move(context, flow, call.own(root), call.into.message.view)
        return call.store()

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """As `mpi4py.MPI.Comm.gather`: lengths with the first bytes, then what is left."""
        context = self._planning()
        if context is None or (rank := context.as_rank(root)) is None:
            return super().gather(sendobj, root)
        root = rank
        agree_on_root(context, "gather", root)
        flow = heads_flow(context, "gather", root)
        if flow is None:
            return super().gather(sendobj, root)
        pickled = pickle_of(sendobj)
        head, rest = memoryview(pickled.head()), pickled.rest()
        if context.rank != root:
            move(context, flow, head, _NOTHING)
            move(context, give_flow(root, len(rest)), rest, _NOTHING)
            move_parts(context, {root: pickled.parts}, {})
            return None
        heads = Heads(context.model.grid.n_ranks)
        move(context, flow, head, heads.view)
        data = memoryview(bytearray(sum(heads.rests())))
        move(context, collect_flow(context, heads.rest_starts(), heads.rests()), rest, data)
        parted = heads.parted(data)
        if root in parted:
            parted[root].take(pickled.parts)
        into = {peer: parted[peer].parts for peer in in_turn(context) if peer in parted}
        move_parts(context, {}, into)
        return heads.loads(data, parted)


def _read_even(context: Context, sendbuf: Any, recvbuf: Any) -> _Gathering:
    n_ranks = context.model.grid.n_ranks
    blocks = read_blocks(recvbuf, n_ranks, writable=True)
    if blocks is None:
        raise ValueError("no even blocks")
    return _Gathering(Vectors.even(blocks, n_ranks), _read_mine(sendbuf))


def _read_uneven(context: Context, sendbuf: Any, recvbuf: Any) -> _Gathering:
    into = read_vectors(recvbuf, context.model.grid.n_ranks, writable=True)
    return _Gathering(into, _read_mine(sendbuf))


def _read_mine(sendbuf: Any) -> memoryview | None:
    return None if in_place(sendbuf) else read_message(sendbuf, writable=False).view
