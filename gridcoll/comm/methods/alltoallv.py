"""All-to-all of blocks of any size and type: `Alltoallv` and `Alltoallw`.

Only the sender and the receiver know the size of a block. Therefore no choice depends on sizes
unless ranks exchange them. If an all-to-all of medium blocks uses a plan on this grid, blocks are
sent directly, those over the longest links first. If another algorithm may be faster on this grid,
all ranks exchange all counts at calls known to all (`vectors`), and use that algorithm if it is
predicted to be faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from gridcoll.comm.arguments.blocks import read_each_block, read_typed_vector
from gridcoll.comm.arguments.buffers import Message
from gridcoll.comm.arguments.elements import signature
from gridcoll.comm.context import Context
from gridcoll.comm.decisions import PLAIN
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.vectors import Vectors
from gridcoll.engine.agreement import require_alike, require_equal
from gridcoll.engine.memory import Part, PartedMemory, Typed
from gridcoll.errors import PlanError
from gridcoll.plan import Dataflow

if TYPE_CHECKING:
    from mpi4py.typing import BufSpecV, BufSpecW, InPlace

CHOICE_BYTES = 8192
"""The choice for an all-to-all of this block size decides between a plan and the native call."""

PACKS = MPI.get_vendor()[0] == "MPICH"
"""Whether blocks with gaps are packed before they are sent. If MPI packs them itself, MPICH 5.0.2
takes 1.4 times as long, and 1.8 times for blocks of 48 KiB that the C engine sends; Open MPI 5.0.11
and Intel MPI 2021.18 take less time (measured by ``benchmarks/apps/fourier.py``, and by transposes
alone, on three sites)."""

Block = Message | Typed
Read = Callable[..., list[Block]]


class AlltoallvMethods(GridMethods):
    """`Alltoallv` and `Alltoallw`."""

    _vectors: Vectors | None = None

    def Alltoallv(self, sendbuf: BufSpecV | InPlace, recvbuf: BufSpecV) -> None:
        """Like `mpi4py.MPI.Comm.Alltoallv`; blocks are sent directly if plans are faster."""
        if not self._exchange("Alltoallv", sendbuf, recvbuf, read_each_block):
            super().Alltoallv(sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: BufSpecW | InPlace, recvbuf: BufSpecW) -> None:
        """Like `mpi4py.MPI.Comm.Alltoallw`; blocks are sent directly if plans are faster."""
        if not self._exchange("Alltoallw", sendbuf, recvbuf, read_typed_vector):
            super().Alltoallw(sendbuf, recvbuf)

    def _exchange(self, name: str, sendbuf: Any, recvbuf: Any, read: Read) -> bool:
        """Execute the call if plans are faster, and return whether it was executed.

        If it was not, the native collective executes it, or raises.
        """
        context = self._planning_context()
        if context is None:
            return False
        native = context.decisions.choice("alltoall", CHOICE_BYTES, 0, PLAIN).winner.build is None
        vectors = self._vectors_of(context)
        shares_counts = vectors.shares_counts
        if native and not context.settings.check and not shares_counts:
            return False  # before anything is packed
        by_type = name == "Alltoallw" and not (native or shares_counts or context.settings.check)
        if by_type and (known := vectors.typed_calls.find(sendbuf, recvbuf)):
            vectors.count_call(known.n_bytes)
            context.run(known.flow, known.prepared)
            return True
        blocks = _read_both(sendbuf, recvbuf, read, context)
        if context.settings.check:
            what = name if blocks else f"{name} with arguments that MPI refuses"
            require_equal(context.comm, name, what)
            if name == "Alltoallv":  # in `Alltoallw`, only the two ranks know a block's type
                require_alike(context.comm, name, map(signature, (sendbuf, recvbuf)))
        flow = vectors.flow(context, _sizes(blocks)) if shares_counts else None
        if blocks is None or (native and flow is None):
            return False
        if flow is not None:
            return _run_plan(
                context, flow, _read_both(sendbuf, recvbuf, read, context, packed=True)
            )
        source, into = blocks
        vectors.count_call(sum(map(_n_bytes, source)))
        too_long = _n_bytes(source[context.rank]) > _n_bytes(into[context.rank])
        parts = list(map(_part, source)), list(map(_part, into))
        flow = _run(context, vectors, *parts)
        if by_type and not too_long and not any(map(_is_copy, (*source, *into))):
            vectors.typed_calls.keep(context, flow, parts, sendbuf, recvbuf)
        _store(into)
        if too_long:
            raise MPI.Exception(MPI.ERR_TRUNCATE)
        return True

    def _vectors_of(self, context: Context) -> Vectors:
        """Return the counts of this communicator's calls; new after decisions changed."""
        if self._vectors is None or self._vectors.decisions is not context.decisions:
            self._vectors = Vectors(context.decisions)
        return self._vectors


def _sizes(blocks: tuple[list[Block], list[Block]] | None) -> tuple[list[int], list[int]] | None:
    """Return the bytes to and from each rank."""
    return None if blocks is None else (_lengths(blocks[0]), _lengths(blocks[1]))


def _lengths(blocks: list[Block]) -> list[int]:
    return list(map(_n_bytes, blocks))


def _run_plan(
    context: Context, flow: Dataflow, blocks: tuple[list[Block], list[Block]] | None
) -> bool:
    """Run a plan that was made for counts that all ranks know."""
    if blocks is None:  # unexpected: the arguments were valid when counts were exchanged
        raise PlanError("arguments of an all-to-all that can be read cannot be packed")
    source, into = blocks
    scratch = [memoryview(bytearray(flow.scratch_units))]
    context.run(flow, PartedMemory(list(map(_part, into)), list(map(_part, source)), scratch))
    _store(into)
    return True


def _store(blocks: list[Block]) -> None:
    """Unpack received ``blocks``. Blocks that were packed together are stored together."""
    for store in dict.fromkeys(b.store for b in blocks if isinstance(b, Message) and b.store):
        store()


def _part(block: Block) -> Part:
    return block.view if isinstance(block, Message) else block


def _is_copy(block: Block) -> bool:
    return isinstance(block, Message) and block.is_copy


def _n_bytes(block: Block) -> int:
    return len(_part(block))


def _copy(block: Block) -> Block:
    return Message(memoryview(bytes(block.view))) if isinstance(block, Message) else block


def _read_both(
    sendbuf: Any, recvbuf: Any, read: Read, context: Context, *, packed: bool = False
) -> tuple[list[Block], list[Block]] | None:
    """Return the blocks to send and to receive, by rank; None for invalid arguments.

    Arguments are read before anything is sent. Errors are ignored here: the native call that
    follows raises what plain mpi4py raises.
    """
    rank, n_ranks = context.rank, context.model.grid.n_ranks
    in_place = sendbuf is None or sendbuf is MPI.IN_PLACE
    packed = packed or PACKS or in_place
    try:
        into = read(recvbuf, n_ranks, writable=True, packed=packed)
        if in_place:
            return list(map(_copy, into)), into
        source = read(sendbuf, n_ranks, writable=False, packed=packed)
        if _n_bytes(source[rank]) != _n_bytes(into[rank]):  # cutting a block needs plain bytes
            source = read(sendbuf, n_ranks, writable=False, packed=True)
            into = read(recvbuf, n_ranks, writable=True, packed=True)
        return source, into
    except Exception:
        return None


def _run(context: Context, vectors: Vectors, source: list[Part], into: list[Part]) -> Dataflow:
    rank = context.rank
    # This rank's own block is as long as the shorter one of its two buffers.
    n_own = min(len(source[rank]), len(into[rank]))
    for parts in (source, into):
        own = parts[rank]
        if isinstance(own, memoryview):
            parts[rank] = own[:n_own]
    by_type = isinstance(source[rank], Typed) or isinstance(into[rank], Typed)
    flow = vectors.direct(tuple(map(len, source)), tuple(map(len, into)), own_message=by_type)
    context.run(flow, PartedMemory(into, source))
    return flow
