"""All-to-all of blocks of any size and type, as a user calls it.

What one rank has for another only these two know. So nothing is chosen by sizes: where an
all-to-all of middling blocks goes by a plan, these go directly, those with the longest way first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from gridcoll.comm.agreement import require_alike, require_equal
from gridcoll.comm.buffers import Message
from gridcoll.comm.context import PLAIN, Context
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.signatures import signature
from gridcoll.comm.typed_vectors import read_typed_vector
from gridcoll.comm.vectors import read_vectors
from gridcoll.engine.parts import PartedMemory
from gridcoll.plan import dataflow
from gridcoll.plan.collectives.alltoall import far_first_peers
from gridcoll.plan.collectives.alltoall_price import far_order
from gridcoll.plan.collectives.alltoallv import vector_program

CHOICE_BYTES = 8192
"""An all-to-all of blocks of this size decides between a plan and the native collective."""

Read = Callable[..., list[Message]]


class AlltoallvMethods(GridMethods):
    """`Alltoallv` and `Alltoallw`."""

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `mpi4py.MPI.Comm.Alltoallv`, directly where plans gain anything."""
        if not self._exchange("Alltoallv", sendbuf, recvbuf, _read_vector):
            super().Alltoallv(sendbuf, recvbuf)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """As `mpi4py.MPI.Comm.Alltoallw`, directly where plans gain anything."""
        if not self._exchange("Alltoallw", sendbuf, recvbuf, read_typed_vector):
            super().Alltoallw(sendbuf, recvbuf)

    def _exchange(self, name: str, sendbuf: Any, recvbuf: Any, read: Read) -> bool:
        """Whether it was done: not where the native collective is to do it, or to refuse it."""
        context = self._context
        if context is None or context.native_only:
            return False
        native = context.choice("alltoall", CHOICE_BYTES, 0, demands=PLAIN).winner.build is None
        if native and not context.settings.check:
            return False  # before anything is packed
        blocks = _read_both(sendbuf, recvbuf, read, context.model.grid.n_ranks)
        if context.settings.check:
            what = name if blocks else f"{name} with arguments that MPI refuses"
            require_equal(context.private, name, what)
            if name == "Alltoallv":  # of the other, only two ranks know which types they exchange
                require_alike(context.private, name, map(signature, (sendbuf, recvbuf)))
        if blocks is None or native:
            return False
        source, into = blocks
        too_long = len(source[context.rank]) > len(into[context.rank].view)
        _run(context, source, [message.view for message in into])
        # Blocks that were packed together are stored together.
        for store in dict.fromkeys(message.store for message in into if message.store):
            store()
        if too_long:
            raise MPI.Exception(MPI.ERR_TRUNCATE)
        return True


def _read_vector(spec: Any, n_blocks: int, *, writable: bool) -> list[Message]:
    vectors = read_vectors(spec, n_blocks, writable=writable)
    store = vectors.message.store
    return [Message(vectors.block(rank), store) for rank in range(n_blocks)]


def _read_both(
    sendbuf: Any, recvbuf: Any, read: Read, n_ranks: int
) -> tuple[list[memoryview], list[Message]] | None:
    """What is sent, as bytes by receiver, and where to; None where these arguments are wrong.

    Before any communication, and of wrong arguments the MPI library has its own opinion, so that
    whatever is raised here is dropped for what it will raise.
    """
    try:
        into = read(recvbuf, n_ranks, writable=True)
        if sendbuf is None or sendbuf is MPI.IN_PLACE:
            return [memoryview(bytes(message.view)) for message in into], into
        return [message.view for message in read(sendbuf, n_ranks, writable=False)], into
    except Exception:
        return None


def _run(context: Context, source: list[memoryview], into: list[memoryview]) -> None:
    rank, model = context.rank, context.model
    # A block for oneself ends where the shorter of its two places does.
    n_own = min(len(source[rank]), len(into[rank]))
    for views in (source, into):
        views[rank] = views[rank][:n_own]
    clusters = [cluster.ranks for cluster in model.grid.clusters]
    peers = far_first_peers(clusters, far_order(model), rank)
    program = vector_program(rank, list(map(len, source)), list(map(len, into)), peers)
    context.run(dataflow(program), PartedMemory(into, source))
