"""Gather as a user calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy import ndarray

from gridcoll.comm.arguments.blocks import Vectors, read_even, read_vectors
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
from gridcoll.plan import Dataflow

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace

_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class _Gathering:
    """This rank's block, None if it is in place; and at the root where blocks go."""

    mine: memoryview | None
    into: Vectors | None

    def n_bytes(self, root: int) -> int:
        """Bytes of a block, where all are alike."""
        return self.into.sizes[root] if self.into else len(self.mine or _NOTHING)

    def run(self, context: Context, flow: Dataflow, root: int) -> None:
        mine, into = self.mine or _NOTHING, self.into
        if into is None:
            return move(context, flow, mine, _NOTHING)
        block = into.block(root)
        if self.mine is None:
            mine = block
        elif len(mine) != len(block):  # copied to its place
            copy_as_mpi_does(mine, block)
            mine = block
        move(context, flow, mine, into.message.view)
        if into.message.store:
            into.message.store()
        return None


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
        at_root = (recvbuf,) if context.rank == root else ()
        call = read_or_leave(lambda: _read(context, root, sendbuf, recvbuf, read_even))
        n_bytes = call.n_bytes(root) if call else None
        agree(context, "Gather", root, n_bytes, sendbuf, *at_root)
        flow, native = decide_or_leave(context, "gather", n_bytes, root)
        if call is None or flow is None:
            return self._natively(context, "Gather", native, key, sendbuf, recvbuf, root)
        return call.run(context, flow, root)

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
        call = read_or_leave(lambda: _read(context, root, sendbuf, recvbuf, read_vectors))
        if call is None:
            return super().Gatherv(sendbuf, recvbuf, root)
        if call.into is None:
            flow = give_flow(root, len(call.mine or _NOTHING))
        else:
            flow = collect_flow(context, call.into.starts, call.into.sizes)
        return call.run(context, flow, root)

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


def _read(
    context: Context, root: int, sendbuf: Any, recvbuf: Any, read: Callable[..., Vectors]
) -> _Gathering:
    if context.rank != root:
        return _Gathering(read_message(sendbuf, writable=False).view, None)
    into = read(recvbuf, context.model.grid.n_ranks, writable=True)
    return _Gathering(
        None if in_place(sendbuf) else read_message(sendbuf, writable=False).view, into
    )
