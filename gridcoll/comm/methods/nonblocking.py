"""Non-blocking and persistent collectives as a user calls them.

They run in a thread beside the application if MPI has ``MPI.THREAD_MULTIPLE``. Otherwise, and where
the library's own blocking call would be chosen, they are MPI's own. So are reductions by a user's
operation, which may be freed before they end: MPI has no way to keep it. ``GRIDCOLL_CHECK`` has no
effect here: comparing arguments would block a non-blocking call, and those of persistent calls are
always compared (where they differ, the call is MPI's own).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex

from mpi4py import MPI

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


@dataclass(frozen=True)
class _Call:
    """A call whose arguments were read."""

    text: str
    """The same on all ranks of a correct call."""
    decide: Callable[[Context], Decision]
    """Decides as for a blocking call."""
    load: Callable[[Dataflow], tuple[Memory, Callable[[], None]]]
    """Returns the buffers of a new run, and a function to call at its end."""
    free: Callable[[], None] = _nothing
    """To be called when it is over."""


class _Kept:
    """Buffer arguments with duplicated datatypes: the user may free the originals meanwhile."""

    def __init__(self, *specs: Any) -> None:
        self._types: list[MPI.Datatype] = []
        self.specs = [self._keep(spec) for spec in specs]

    def _keep(self, spec: Any) -> Any:
        if isinstance(spec, MPI.Datatype) and not spec.is_predefined:
            self._types.append(spec.Dup())
            return self._types[-1]
        return tuple(map(self._keep, spec)) if type(spec) in (list, tuple) else spec

    def free(self) -> None:
        while self._types:
            self._types.pop().Free()


class NonblockingMethods(GridMethods):
    """`Ibcast`, `Iallreduce`, `Ialltoall`, `Ireduce`, `Ibarrier` and their persistent likes."""

    def Ibcast(self, buf: BufSpec, root: int = 0) -> MPI.Request:
        """As `mpi4py.MPI.Comm.Ibcast`."""
        request = _start(self._context, lambda context: _read_bcast(context, buf, root))
        return super().Ibcast(buf, root) if request is None else request

    def Iallreduce(
        self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM
    ) -> MPI.Request:
        """As `mpi4py.MPI.Comm.Iallreduce`; every rank gets the same bits."""
        request = _start(self._context, lambda _: _read_allreduce(sendbuf, recvbuf, op))
        return super().Iallreduce(sendbuf, recvbuf, op) if request is None else request

    def Ireduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
    ) -> MPI.Request:
        """As `mpi4py.MPI.Comm.Ireduce`."""
        request = _start(
            self._context, lambda context: _read_reduce(context, sendbuf, recvbuf, op, root)
        )
        return super().Ireduce(sendbuf, recvbuf, op, root) if request is None else request

    def Ialltoall(self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB) -> MPI.Request:
        """As `mpi4py.MPI.Comm.Ialltoall`."""
        request = _start(self._context, lambda context: _read_alltoall(context, sendbuf, recvbuf))
        return super().Ialltoall(sendbuf, recvbuf) if request is None else request

    def Ibarrier(self) -> MPI.Request:
        """As `mpi4py.MPI.Comm.Ibarrier`."""
        request = _start(self._context, lambda _: _read_barrier())
        return super().Ibarrier() if request is None else request

    def Bcast_init(
        self, buf: BufSpec, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """As `mpi4py.MPI.Comm.Bcast_init`."""
        request = _prepare(
            self._context, lambda context: _read_bcast(context, buf, root, again=True)
        )
        return super().Bcast_init(buf, root, info) if request is None else request

    def Allreduce_init(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """As `mpi4py.MPI.Comm.Allreduce_init`; every rank gets the same bits."""
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
        """As `mpi4py.MPI.Comm.Reduce_init`."""
        request = _prepare(
            self._context, lambda context: _read_reduce(context, sendbuf, recvbuf, op, root)
        )
        return super().Reduce_init(sendbuf, recvbuf, op, root, info) if request is None else request

    def Alltoall_init(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpecB, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """As `mpi4py.MPI.Comm.Alltoall_init`."""
        request = _prepare(
            self._context, lambda context: _read_alltoall(context, sendbuf, recvbuf, again=True)
        )
        return super().Alltoall_init(sendbuf, recvbuf, info) if request is None else request

    def Barrier_init(self, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """As `mpi4py.MPI.Comm.Barrier_init`."""
        request = _prepare(self._context, lambda _: _read_barrier())
        return super().Barrier_init(info) if request is None else request


def _start(context: Context | None, read: Callable[[Context], _Call | None]) -> MPI.Request | None:
    """Run what ``read`` gives once; None where it is left to MPI."""
    if context is None or not context.beside:
        return None
    call = read(context)
    if call is None:
        return None
    with context.steadily():
        flow = call.decide(context).flow
    if flow is None:
        call.free()
        return None
    return context.channel.bands.start(_begin(call, flow, call.free))


def _prepare(
    context: Context | None, read: Callable[[Context], _Call | None]
) -> MPI.Prequest | None:
    """Run what ``read`` gives at each start; None where it is left to MPI. Collective."""
    if context is None or context.native_only:
        return None
    context.channel.open()
    if not context.beside:
        return None
    call = read(context)
    band = context.channel.bands.claim(call.text if call else "left to MPI")
    with context.steadily():
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
    context: Context, buf: Any, root: SupportsIndex, *, again: bool = False
) -> _Call | None:
    """``again``: the buffer is read anew by each run. None for what is left to MPI."""
    rank = context.as_rank(root)
    if rank is None:
        return None
    writable = context.rank != rank
    kept = _Kept(buf)
    try:
        first = read_message(*kept.specs, writable=writable)
    except BaseException:
        kept.free()
        raise

    def load(flow: Dataflow) -> tuple[Memory, Callable[[], None]]:
        message = read_message(*kept.specs, writable=writable) if again else first
        scratch = memoryview(bytearray(flow.scratch_units))
        return ByteMemory(message.view, scratch=scratch), message.store or _nothing

    n_bytes = len(first.view)
    return _Call(
        f"bcast root={rank} bytes={n_bytes}",
        lambda context: context.decide("bcast", n_bytes, rank),
        load,
        kept.free,
    )


def _read_alltoall(
    context: Context, sendbuf: Any, recvbuf: Any, *, again: bool = False
) -> _Call | None:
    """``again``: the buffers are read anew by each run. None for what is left to MPI."""
    kept = _Kept(sendbuf, recvbuf)
    n_ranks = context.model.grid.n_ranks
    first = read_exchange(kept.specs[0], kept.specs[1], n_ranks)
    if first is None or len(first[0]) != len(first[1].message.view):
        kept.free()
        return None

    def load(flow: Dataflow) -> tuple[Memory, Callable[[], None]]:
        anew = read_exchange(kept.specs[0], kept.specs[1], n_ranks) if again else None
        source, into = anew or first
        return byte_memory(flow, source, into.message.view), into.message.store or _nothing

    n_bytes = first[1].sizes[0]
    return _Call(
        f"alltoall bytes={n_bytes}",
        lambda context: context.decide("alltoall", n_bytes, 0),
        load,
        kept.free,
    )


def _read_allreduce(sendbuf: Any, recvbuf: Any, op: MPI.Op) -> _Call | None:
    return _reduction_call("allreduce", lambda: read_reduction(sendbuf, recvbuf, op))


def _read_reduce(
    context: Context, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: SupportsIndex
) -> _Call | None:
    """None for what is left to MPI."""
    rank = context.as_rank(root)
    if rank is None:
        return None
    if context.rank == rank:
        return _reduction_call("reduce", lambda: read_reduction(sendbuf, recvbuf, op), rank)
    return _reduction_call("reduce", lambda: read_input(sendbuf, op), rank)


def _reduction_call(
    collective: str, read: Callable[[], Reduction | None], root: int = 0
) -> _Call | None:
    """What is copied is read anew by each run. None for what is left to MPI."""
    call = read()
    if call is None or not call.predefined:
        return None

    def load(flow: Dataflow) -> tuple[Memory, Callable[[], None]]:
        now = read() or call if call.copied else call
        return now.memory(flow), now.store

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
