"""The gather and scatter methods of `GridComm`."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from numpy import ndarray

from gridcoll.comm.arguments.blocks import Vectors, read_even, read_vectors
from gridcoll.comm.arguments.buffers import Message, read_message
from gridcoll.comm.context import Context
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.moving import (
    agree,
    agree_on_objects,
    agree_on_uneven,
    copy_as_mpi_does,
    decide_if_valid,
    heads_flow,
    in_place,
    move,
    move_parts,
    read_or_none,
    serving_order,
    valid_root,
)
from gridcoll.comm.pickles import Heads, pickle_each, pickle_of
from gridcoll.plan import Dataflow, dataflow
from gridcoll.plan.gather.mirror import backwards
from gridcoll.plan.pacing import Pace, one_by_one, pace_of
from gridcoll.plan.scatter.trees import serve_blocks, take_block

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, BufSpecV, InPlace

_NOTHING = memoryview(b"")


class _Gathering(Struct, frozen=True):
    """This rank's block, None if it is in place; and at the root the receive buffer."""

    mine: memoryview | None
    into: Vectors | None

    def n_bytes(self, root: int) -> int:
        """Return the size of a block, if all are equal."""
        return self.into.sizes[root] if self.into else len(self.mine or _NOTHING)

    def run(self, context: Context, flow: Dataflow, root: int) -> None:
        mine, into = self.mine or _NOTHING, self.into
        if into is None:
            return move(context, flow, mine, _NOTHING)
        block = into.block(root)
        fits = len(mine) == len(block)
        move(context, flow, mine if fits else block, into.message.view)
        if self.mine is not None and not fits:
            copy_as_mpi_does(mine, block)
        if into.message.store:
            into.message.store()
        return None


class GatheringMethods(GridMethods):
    """`Gather`, `Gatherv` and `gather`."""

    def Gather(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecB | None, root: int = 0) -> None:
        """Like `mpi4py.MPI.Comm.Gather`, by a grid-aware plan if that is predicted faster."""
        plain = type(sendbuf) is ndarray and type(root) is int
        key = ("Gather", sendbuf.nbytes, root) if plain else None  # type: ignore[union-attr]
        if fast_call := self._fast_path.get(key):
            return fast_call(self, sendbuf, recvbuf, root)
        context = self._planning_context()
        if context is None or (rank := valid_root(context, "Gather", root)) is None:
            return super().Gather(sendbuf, recvbuf, root)
        root = rank
        at_root = (recvbuf,) if context.rank == root else ()
        call = read_or_none(lambda: _read_gather(context, root, sendbuf, recvbuf, read_even))
        n_bytes = call.n_bytes(root) if call else None
        agree(context, "Gather", root, n_bytes, sendbuf, *at_root)
        flow, native = decide_if_valid(context, "gather", n_bytes, root)
        if call is None or flow is None:
            return self._natively(context, "Gather", native, key, sendbuf, recvbuf, root)
        return call.run(context, flow, root)

    def Gatherv(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpecV | None, root: int = 0) -> None:
        """Like `mpi4py.MPI.Comm.Gatherv`: every block goes directly to the root."""
        context = self._planning_context()
        if context is None or (rank := valid_root(context, "Gatherv", root)) is None:
            return super().Gatherv(sendbuf, recvbuf, root)
        root = rank
        at_root = (recvbuf,) if context.rank == root else ()

        def read() -> _Gathering:
            return _read_gather(context, root, sendbuf, recvbuf, read_vectors)

        agree_on_uneven(context, "Gatherv", root, read, sendbuf, *at_root)
        if context.decide("gatherv", 0, root).flow is None:
            return super().Gatherv(sendbuf, recvbuf, root)
        call = read_or_none(read)
        if call is None:
            return super().Gatherv(sendbuf, recvbuf, root)
        if call.into is None:
            flow = _block_flow(root, len(call.mine or _NOTHING), gather=True)
        else:
            flow = root_flow(context, call.into.starts, call.into.sizes, gather=True)
        return call.run(context, flow, root)

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Like `mpi4py.MPI.Comm.gather`: lengths with the first bytes, then the rest."""
        context = self._planning_context()
        if context is None or (rank := valid_root(context, "gather", root)) is None:
            return super().gather(sendobj, root)
        root = rank
        agree_on_objects(context, "gather", root, lambda: pickle_of(sendobj))
        flow = heads_flow(context, "gather", root)
        if flow is None:
            return super().gather(sendobj, root)
        pickled = pickle_of(sendobj)
        head, rest = memoryview(pickled.head()), pickled.rest()
        if context.rank != root:
            move(context, flow, head, _NOTHING)
            move(context, _block_flow(root, len(rest), gather=True), rest, _NOTHING)
            move_parts(context, {root: pickled.parts}, {})
            return None
        heads = Heads(context.model.grid.n_ranks)
        move(context, flow, head, heads.view)
        data = memoryview(bytearray(sum(heads.rests())))
        move(
            context, root_flow(context, heads.rest_starts(), heads.rests(), gather=True), rest, data
        )
        parted = heads.parted(data)
        if root in parted:
            parted[root].copy_parts(pickled.parts)
        into = {peer: parted[peer].parts for peer in serving_order(context) if peer in parted}
        move_parts(context, {}, into)
        return heads.loads(data, parted)


def _read_gather(
    context: Context, root: int, sendbuf: Any, recvbuf: Any, read: Callable[..., Vectors]
) -> _Gathering:
    if context.rank != root:
        return _Gathering(read_message(sendbuf, writable=False).view, None)
    into = read(recvbuf, context.model.grid.n_ranks, writable=True)
    return _Gathering(
        None if in_place(sendbuf) else read_message(sendbuf, writable=False).view, into
    )


class _Scattering(Struct, frozen=True):
    """This rank's receive buffer, None if in place; and at the root the blocks to send."""

    mine: Message | None
    source: Vectors | None

    def n_bytes(self, root: int) -> int:
        """Return the size of a block, if all are equal."""
        return self.source.sizes[root] if self.source else self.own_bytes

    @property
    def own_bytes(self) -> int:
        """The size of this rank's receive buffer."""
        return len(self.mine.view) if self.mine else 0

    def run(self, context: Context, flow: Dataflow, root: int) -> None:
        n_bytes = self.n_bytes(root)
        fits = self.mine is not None and self.own_bytes == n_bytes
        own = self.mine.view if self.mine and fits else memoryview(bytearray(n_bytes))
        move(context, flow, self.source.message.view if self.source else _NOTHING, own)
        if self.mine is None:
            return
        if not fits:
            copy_as_mpi_does(own, self.mine.view)
        if self.mine.store:
            self.mine.store()


class ScatteringMethods(GridMethods):
    """`Scatter`, `Scatterv` and `scatter`."""

    def Scatter(self, sendbuf: BufSpecB | None, recvbuf: BufSpec | InPlace, root: int = 0) -> None:
        """Like `mpi4py.MPI.Comm.Scatter`, by a grid-aware plan if that is predicted faster."""
        plain = type(recvbuf) is ndarray and type(root) is int
        key = ("Scatter", recvbuf.nbytes, root) if plain else None  # type: ignore[union-attr]
        if fast_call := self._fast_path.get(key):
            return fast_call(self, sendbuf, recvbuf, root)
        context = self._planning_context()
        if context is None or (rank := valid_root(context, "Scatter", root)) is None:
            return super().Scatter(sendbuf, recvbuf, root)
        root = rank
        at_root = (sendbuf,) if context.rank == root else ()
        call = read_or_none(lambda: _read_scatter(context, root, sendbuf, recvbuf, read_even))
        n_bytes = call.n_bytes(root) if call else None
        agree(context, "Scatter", root, n_bytes, *at_root, recvbuf)
        flow, native = decide_if_valid(context, "scatter", n_bytes, root)
        if call is None or flow is None:
            return self._natively(context, "Scatter", native, key, sendbuf, recvbuf, root)
        return call.run(context, flow, root)

    def Scatterv(self, sendbuf: BufSpecV | None, recvbuf: BufSpec | InPlace, root: int = 0) -> None:
        """Like `mpi4py.MPI.Comm.Scatterv`: every block comes directly from the root."""
        context = self._planning_context()
        if context is None or (rank := valid_root(context, "Scatterv", root)) is None:
            return super().Scatterv(sendbuf, recvbuf, root)
        root = rank
        at_root = (sendbuf,) if context.rank == root else ()

        def read() -> _Scattering:
            return _read_scatter(context, root, sendbuf, recvbuf, read_vectors)

        agree_on_uneven(context, "Scatterv", root, read, recvbuf, *at_root)
        if context.decide("scatterv", 0, root).flow is None:
            return super().Scatterv(sendbuf, recvbuf, root)
        call = read_or_none(read)
        if call is None:
            return super().Scatterv(sendbuf, recvbuf, root)
        if call.source is None:
            flow = _block_flow(root, call.own_bytes)
        else:
            flow = root_flow(context, call.source.starts, call.source.sizes)
        return call.run(context, flow, root)

    def scatter(self, sendobj: Any, root: int = 0) -> Any:
        """Like `mpi4py.MPI.Comm.scatter`: the length with the first bytes, then the rest."""
        context = self._planning_context()
        if context is None or (rank := valid_root(context, "scatter", root)) is None:
            return super().scatter(sendobj, root)
        root = rank
        n_ranks = context.model.grid.n_ranks
        agree_on_objects(
            context, "scatter", root, lambda: context.rank == root and pickle_each(sendobj, n_ranks)
        )
        flow = heads_flow(context, "scatter", root)
        if flow is None:
            return super().scatter(sendobj, root)
        heads = Heads(1)
        if context.rank != root:
            move(context, flow, _NOTHING, heads.view)
            data = memoryview(bytearray(sum(heads.rests())))
            move(context, _block_flow(root, len(data)), _NOTHING, data)
            parted = heads.parted(data)
            move_parts(context, {}, {root: parted[0].parts if parted else ()})
            return heads.loads(data, parted)[0]
        pickles = pickle_each(sendobj, n_ranks)
        all_heads = Heads.of(pickles)
        move(context, flow, all_heads.view, heads.view)
        rests = memoryview(b"".join(pickled.rest() for pickled in pickles))
        data = memoryview(bytearray(sum(heads.rests())))
        move(context, root_flow(context, all_heads.rest_starts(), all_heads.rests()), rests, data)
        parted = heads.parted(data)
        if parted:
            parted[0].copy_parts(pickles[root].parts)
        move_parts(context, {peer: pickles[peer].parts for peer in serving_order(context)}, {})
        return heads.loads(data, parted)[0]


def _read_scatter(
    context: Context, root: int, sendbuf: Any, recvbuf: Any, read: Callable[..., Vectors]
) -> _Scattering:
    at_root = context.rank == root
    source = read(sendbuf, context.model.grid.n_ranks, writable=False) if at_root else None
    if at_root and in_place(recvbuf):
        return _Scattering(None, source)
    return _Scattering(read_message(recvbuf, writable=True), source)


@lru_cache(maxsize=256)
def _block_flow(root: int, n_bytes: int, *, gather: bool = False) -> Dataflow:
    """Return a non-root rank's part of a scatter, or gather, if only the root knows all sizes."""
    program = take_block(root, n_bytes)
    return dataflow(backwards(program) if gather else program)


def root_flow(
    context: Context, starts: tuple[int, ...], sizes: tuple[int, ...], *, gather: bool = False
) -> Dataflow:
    """Return the root's part of it. A scatter is paced, unless settings force an algorithm."""
    forced = context.settings.algorithms.get("scatterv", "")
    mean = sum(sizes) // len(sizes)
    pace = None if gather or forced else pace_of(context.model, context.rank, mean)
    return _served(context.rank, serving_order(context), starts, sizes, pace, gather)


@lru_cache(maxsize=256)
def _served(
    root: int,
    order: tuple[int, ...],
    starts: tuple[int, ...],
    sizes: tuple[int, ...],
    pace: Pace | None,
    gather: bool,
) -> Dataflow:
    program = serve_blocks(root, order, starts, sizes)
    program = one_by_one(program, pace) if pace else program
    return dataflow(backwards(program) if gather else program)
