"""The non-blocking and persistent methods of `GridComm`.

They run in a background thread if MPI provides ``MPI.THREAD_MULTIPLE``. Otherwise, and if the
native blocking call would be chosen, they are MPI's own. Reductions by a user-defined operation are
also MPI's own: the operation may be freed before they end, and MPI has no way to keep it.
``GRIDCOLL_CHECK`` has no effect here: comparing arguments would block a non-blocking call, and the
arguments of persistent calls are always compared (if they differ, the call is MPI's own).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, SupportsIndex

from mpi4py import MPI
from msgspec import Struct

from gridcoll.comm.arguments.buffers import read_message
from gridcoll.comm.channel import Begin
from gridcoll.comm.context import Context
from gridcoll.comm.decisions import Decision
from gridcoll.comm.methods.alltoall import read_exchange
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.reductions import Reduction, barrier_memory, read_input, read_reduction
from gridcoll.engine.executor import Memory, Run, Transport
from gridcoll.engine.memory import ByteMemory, byte_memory
from gridcoll.engine.runner import begin_program
from gridcoll.plan import Dataflow

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, InPlace


def _nothing() -> None:
    pass


class _Call(Struct, frozen=True):
    """A call whose arguments were read."""

    text: str
    """Description of the call, the same on all ranks if the call is correct."""
    decide: Callable[[Context], Decision]
    """Decides as for a blocking call."""
    load: Callable[[Dataflow], tuple[Memory, Callable[[], None]]]
    """Returns the buffers of a new run, and a function to call when the run ends."""
    free: Callable[[], None] = _nothing
    """Called when the arguments are no longer needed."""


class _Arguments:
    """Buffer arguments with duplicated datatypes: the user may free the originals meanwhile."""

    def __init__(self, *specs: Any) -> None:
        self._types: list[MPI.Datatype] = []
        self.specs = [self._duplicate_types(spec) for spec in specs]

    def _duplicate_types(self, spec: Any) -> Any:
        if isinstance(spec, MPI.Datatype) and not spec.is_predefined:
            self._types.append(spec.Dup())
            return self._types[-1]
        return tuple(map(self._duplicate_types, spec)) if type(spec) in (list, tuple) else spec

    def free(self) -> None:
        while self._types:
            self._types.pop().Free()


class NonblockingMethods(GridMethods):
    """`Ibcast`, `Iallreduce`, `Ialltoall`, `Ireduce`, `Ibarrier`, and their persistent forms."""

    def Ibcast(self, buf: BufSpec, root: int = 0) -> MPI.Request:
        """Like `mpi4py.MPI.Comm.Ibcast`."""
        request = _start(self._context, lambda context: _read_bcast(context, buf, root))
        return super().Ibcast(buf, root) if request is None else request

    def Iallreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM
    ) -> MPI.Request:
        """Like `mpi4py.MPI.Comm.Iallreduce`; every rank gets the same bits."""
        request = _start(self._context, lambda _: _read_allreduce(sendbuf, recvbuf, op))
        return super().Iallreduce(sendbuf, recvbuf, op) if request is None else request

    def Ireduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
    ) -> MPI.Request:
        """Like `mpi4py.MPI.Comm.Ireduce`."""
        request = _start(
            self._context, lambda context: _read_reduce(context, sendbuf, recvbuf, op, root)
        )
        return super().Ireduce(sendbuf, recvbuf, op, root) if request is None else request

    def Ialltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> MPI.Request:
        """Like `mpi4py.MPI.Comm.Ialltoall`."""
        request = _start(self._context, lambda context: _read_alltoall(context, sendbuf, recvbuf))
        return super().Ialltoall(sendbuf, recvbuf) if request is None else request

    def Ibarrier(self) -> MPI.Request:
        """Like `mpi4py.MPI.Comm.Ibarrier`."""
        request = _start(self._context, lambda _: _read_barrier())
        return super().Ibarrier() if request is None else request

    def Bcast_init(
        self, buf: BufSpec, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Like `mpi4py.MPI.Comm.Bcast_init`."""
        request = _prepare(
            self._context, lambda context: _read_bcast(context, buf, root, reread=True)
        )
        return super().Bcast_init(buf, root, info) if request is None else request

    def Allreduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Like `mpi4py.MPI.Comm.Allreduce_init`; every rank gets the same bits."""
        request = _prepare(self._context, lambda _: _read_allreduce(sendbuf, recvbuf, op))
        return super().Allreduce_init(sendbuf, recvbuf, op, info) if request is None else request

    def Reduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Like `mpi4py.MPI.Comm.Reduce_init`."""
        request = _prepare(
            self._context, lambda context: _read_reduce(context, sendbuf, recvbuf, op, root)
        )
        return super().Reduce_init(sendbuf, recvbuf, op, root, info) if request is None else request

    def Alltoall_init(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Like `mpi4py.MPI.Comm.Alltoall_init`."""
        request = _prepare(
            self._context, lambda context: _read_alltoall(context, sendbuf, recvbuf, reread=True)
        )
        return super().Alltoall_init(sendbuf, recvbuf, info) if request is None else request

    def Barrier_init(self, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Like `mpi4py.MPI.Comm.Barrier_init`."""
        request = _prepare(self._context, lambda _: _read_barrier())
        return super().Barrier_init(info) if request is None else request


def _start(context: Context | None, read: Callable[[Context], _Call | None]) -> MPI.Request | None:
    """Run the call that ``read`` returns, once; return None if it is left to MPI."""
    if context is None or not context.can_run_in_background:
        return None
    call = read(context)
    if call is None:
        return None
    with context.without_trials():
        flow = call.decide(context).flow
    if flow is None:
        call.free()
        return None
    return context.channel.bands.start(_begin(call, flow, call.free))


def _prepare(
    context: Context | None, read: Callable[[Context], _Call | None]
) -> MPI.Prequest | None:
    """Run the call that ``read`` returns at each start; return None if it is left to MPI.

    Collective.
    """
    if context is None or context.native_only:
        return None
    context.channel.open()
    if not context.can_run_in_background:
        return None
    call = read(context)
    band = context.channel.bands.claim(call.text if call else "left to MPI")
    with context.without_trials():
        flow = None if call is None or band is None else call.decide(context).flow
    if call is not None and band is not None and flow is not None:
        return context.channel.bands.prepare(band, _begin(call, flow, _nothing), call.free)
    if band is not None:
        context.channel.bands.release(band)
    if call is not None:
        call.free()
    return None


def _begin(call: _Call, flow: Dataflow, free: Callable[[], None]) -> Begin:
    def begin(transport: Transport) -> tuple[Run, Callable[[], None]]:
        memory, store = call.load(flow)

        def end() -> None:
            store()
            free()

        return begin_program(flow, transport, memory), end

    return begin


def _read_bcast(
    context: Context, buf: Any, root: SupportsIndex, *, reread: bool = False
) -> _Call | None:
    """Read the arguments; with ``reread``, each run reads the buffer again.

    Return None if the call is left to MPI.
    """
    rank = context.as_rank(root)
    if rank is None:
        return None
    writable = context.rank != rank
    arguments = _Arguments(buf)
    try:
        first = read_message(*arguments.specs, writable=writable)
    except BaseException:
        arguments.free()
        raise

    def load(flow: Dataflow) -> tuple[Memory, Callable[[], None]]:
        message = read_message(*arguments.specs, writable=writable) if reread else first
        scratch = memoryview(bytearray(flow.scratch_units))
        return ByteMemory(message.view, scratch=scratch), message.store or _nothing

    n_bytes = len(first.view)
    return _Call(
        f"bcast root={rank} bytes={n_bytes}",
        lambda context: context.decide("bcast", n_bytes, rank),
        load,
        arguments.free,
    )


def _read_alltoall(
    context: Context, sendbuf: Any, recvbuf: Any, *, reread: bool = False
) -> _Call | None:
    """Read the arguments; with ``reread``, each run reads the buffers again.

    Return None if the call is left to MPI.
    """
    arguments = _Arguments(sendbuf, recvbuf)
    n_ranks = context.model.grid.n_ranks
    first = read_exchange(arguments.specs[0], arguments.specs[1], n_ranks)
    if first is None or len(first[0]) != len(first[1].message.view):
        arguments.free()
        return None

    def load(flow: Dataflow) -> tuple[Memory, Callable[[], None]]:
        latest = read_exchange(arguments.specs[0], arguments.specs[1], n_ranks) if reread else None
        source, into = latest or first
        return byte_memory(flow, source, into.message.view), into.message.store or _nothing

    n_bytes = first[1].sizes[0]
    return _Call(
        f"alltoall bytes={n_bytes}",
        lambda context: context.decide("alltoall", n_bytes, 0),
        load,
        arguments.free,
    )


def _read_allreduce(sendbuf: Any, recvbuf: Any, op: MPI.Op) -> _Call | None:
    return _reduction_call("allreduce", lambda: read_reduction(sendbuf, recvbuf, op))


def _read_reduce(
    context: Context, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: SupportsIndex
) -> _Call | None:
    """Read the arguments; return None if the call is left to MPI."""
    rank = context.as_rank(root)
    if rank is None:
        return None
    if context.rank == rank:
        return _reduction_call("reduce", lambda: read_reduction(sendbuf, recvbuf, op), rank)
    return _reduction_call("reduce", lambda: read_input(sendbuf, op), rank)


def _reduction_call(
    collective: str, read: Callable[[], Reduction | None], root: int = 0
) -> _Call | None:
    """Read the arguments by ``read``; each run reads them again if they are copied.

    Return None if the call is left to MPI.
    """
    call = read()
    if call is None or not call.predefined:
        return None

    def load(flow: Dataflow) -> tuple[Memory, Callable[[], None]]:
        latest = read() or call if call.copied else call
        return latest.memory(flow), latest.store

    return _Call(
        f"{collective} root={root} {call.text()}",
        lambda context: call.decide(context, collective, root),
        load,
    )


def _read_barrier() -> _Call:
    return _Call(
        "barrier",
        lambda context: context.decide("barrier", 1, 0),
        lambda flow: (barrier_memory(flow), _nothing),
    )
