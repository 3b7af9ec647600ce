"""The reduction methods of `GridComm`, and the barrier, a reduction of no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mpi4py import MPI
from mpi4py.MPI import Op
from msgspec import Struct
from numpy import ndarray

from gridcoll.comm.arguments.buffers import view_of
from gridcoll.comm.arguments.elements import (
    Elements,
    copy_view,
    format_of,
    is_whole,
    overlap,
    read_elements,
)
from gridcoll.comm.context import Context, Key, Read
from gridcoll.comm.decisions import Decision, Semantics
from gridcoll.comm.methods.moving import valid_root
from gridcoll.comm.methods.object_reductions import ObjectReductionMethods
from gridcoll.engine.agreement import require_equal
from gridcoll.engine.memory import ElementMemory, aligned_bytes
from gridcoll.engine.repeat import SHORT_BYTES, Form
from gridcoll.plan import Dataflow

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, InPlace

_OPS = {
    op.handle: name
    for name, op in (
        ("MAX", MPI.MAX), ("MIN", MPI.MIN), ("SUM", MPI.SUM), ("PROD", MPI.PROD),
        ("LAND", MPI.LAND), ("BAND", MPI.BAND), ("LOR", MPI.LOR), ("BOR", MPI.BOR),
        ("LXOR", MPI.LXOR), ("BXOR", MPI.BXOR), ("MAXLOC", MPI.MAXLOC), ("MINLOC", MPI.MINLOC),
    )
}  # fmt: skip

_EXACT = frozenset(op.handle for op in (MPI.LAND, MPI.BAND, MPI.LOR, MPI.BOR, MPI.LXOR, MPI.BXOR))

_BARRIER = ("Barrier",)

_accepted: dict[tuple[int, int], bool] = {}


class Reduction(Struct, frozen=True):
    """Arguments of a reduction.

    ``output`` is None on ranks that get no result. ``aliased`` tells whether it shares memory with
    ``input``, and ``copied`` whether either is a copy of memory that the CPU cannot reach.
    """

    input: memoryview
    output: memoryview | None
    elements: Elements
    op: MPI.Op
    aliased: bool = False
    copied: bool = False

    @property
    def predefined(self) -> bool:
        """Whether the operation is predefined by MPI."""
        return self.op.handle in _OPS

    @property
    def rank_order(self) -> bool:
        """Whether the operation must be applied in rank order."""
        return self.op.handle not in _OPS and not self.op.Is_commutative()

    @property
    def prefer_order(self) -> bool:
        """Whether rank order may matter although the operation is declared commutative.

        An example is an ``argmax`` that takes the first of equal values. MPI libraries keep rank
        order, too.
        """
        return self.op.handle not in _OPS and self.op.Is_commutative()

    def text(self) -> str:
        """Return a description of the call, the same on all ranks if the call is correct."""
        op = _OPS.get(self.op.handle, "user-defined")
        return f"op={op} type={self.elements.datatype.Get_name()} count={self.elements.n_units}"

    @property
    def exact(self) -> bool:
        """Whether the result is bitwise the same in any order of combination."""
        return self.predefined and (self.op.handle in _EXACT or is_whole(self.elements.datatype))

    def semantics(self, context: Context, collective: str) -> Semantics:
        """Return the semantics that the operation needs."""
        return Semantics(
            rank_order=self.rank_order,
            prefer_order=self.prefer_order,
            reproducible=context.settings.reproducible and not self.exact,
            bitwise_equal=collective == "allreduce" and not self.exact,
        )

    def decide(self, context: Context, collective: str, root: int) -> Decision:
        """Decide, with the semantics that the operation needs."""
        semantics = self.semantics(context, collective)
        unit_bytes = self.elements.unit_bytes
        return context.decide(
            collective, len(self.input), root, unit_bytes=unit_bytes, semantics=semantics
        )

    def memory(self, flow: Dataflow) -> ElementMemory:
        """Return the buffers of a new run."""
        given = copy_view(self.input) if self.aliased else self.input
        return ElementMemory(self.output, given, flow, self.elements.datatype, self.op)

    def repeat(self, context: Context, key: Key | None, flow: Dataflow, read: Read) -> None:
        """Add this call to the fast path; see `Context.repeat`.

        Not for user-defined operations: a new one may get the handle of a freed one.
        """
        n_bytes, datatype = len(self.input), self.elements.datatype
        if key is None or n_bytes > SHORT_BYTES or not self.predefined:
            return
        if (elements := format_of(datatype)) is None:
            return
        own = aligned_bytes(n_bytes)
        output = None if self.output is None else own
        context.repeat(
            key,
            flow,
            lambda: ElementMemory(output, own, flow, datatype, self.op),
            read,
            unit_bytes=self.elements.unit_bytes,
            given=Form(1, n_bytes, elements),
            output=None if output is None else Form(2, n_bytes, elements),
            own=output,
        )

    def run(self, context: Context, flow: Dataflow) -> None:
        """Run the plan, and copy the result to the user's buffer."""
        context.run(flow, self.memory(flow))
        self.store()

    def store(self) -> None:
        """Copy the result to the user's buffer."""
        if self.elements.store:
            self.elements.store()


class ReductionMethods(ObjectReductionMethods):
    """`Allreduce`, `Reduce` and `Barrier`; and for objects, `allreduce` and `reduce`."""

    def Allreduce(self, sendbuf: BufSpec | InPlace, recvbuf: BufSpec, op: MPI.Op = MPI.SUM) -> None:
        """Like `mpi4py.MPI.Comm.Allreduce`; every rank gets the same bits.

        For native calls, this depends on the MPI library. Calls are native inside one cluster, if
        native is forced, and for datatypes that consist mostly of gaps.
        """
        key: Key | None = None
        if type(op) is Op:
            if type(recvbuf) is ndarray:
                key = ("Allreduce", op.handle, recvbuf.dtype, recvbuf.nbytes)
                if fast_call := self._fast_path.get(key):
                    return fast_call(self, sendbuf, recvbuf, op)
            else:
                sent, got = view_of(sendbuf), view_of(recvbuf)
                if sent is not None and type(got) is memoryview:
                    key = ("Allreduce", op.handle, got.format, got.nbytes)
                    if fast_call := self._fast_path.get(key):
                        return fast_call(self, sent, got, op)
        return self._read_and_allreduce(sendbuf, recvbuf, op, key)

    def _read_and_allreduce(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op, key: Key | None = None
    ) -> None:
        context = self._planning_context()
        if context is None:
            return super().Allreduce(sendbuf, recvbuf, op)
        call = read_reduction(sendbuf, recvbuf, op)
        if context.settings.check:
            require_equal(context.comm, "Allreduce", f"Allreduce {_text(call)}")
        if call is None:
            return super().Allreduce(sendbuf, recvbuf, op)
        decision = call.decide(context, "allreduce", 0)
        if (flow := decision.flow) is None:
            known = key if call.predefined else None
            return self._natively(
                context, "Allreduce", decision.native, known, sendbuf, recvbuf, op
            )
        call.run(context, flow)
        call.repeat(context, key, flow, ReductionMethods._read_and_allreduce)
        return None

    def Reduce(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec | None,
        op: MPI.Op = MPI.SUM,
        root: int = 0,
    ) -> None:
        """Like `mpi4py.MPI.Comm.Reduce`."""
        plain = type(sendbuf) is ndarray and type(op) is Op and type(root) is int
        key = ("Reduce", op.handle, sendbuf.dtype, sendbuf.nbytes, root) if plain else None  # type: ignore[union-attr]
        if fast_call := self._fast_path.get(key):
            return fast_call(self, sendbuf, recvbuf, op, root)
        return self._read_and_reduce(sendbuf, recvbuf, op, root, key)

    def _read_and_reduce(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op, root: int, key: Key | None = None
    ) -> None:
        context = self._planning_context()
        if context is None or (rank := valid_root(context, "Reduce", root)) is None:
            return super().Reduce(sendbuf, recvbuf, op, root)
        root = rank
        call = (
            read_reduction(sendbuf, recvbuf, op)
            if context.rank == root
            else read_input(sendbuf, op)
        )
        if context.settings.check:
            require_equal(context.comm, "Reduce", f"Reduce root={root} {_text(call)}")
        if call is None:
            return super().Reduce(sendbuf, recvbuf, op, root)
        decision = call.decide(context, "reduce", root)
        if (flow := decision.flow) is None:
            known = key if call.predefined else None
            return self._natively(
                context, "Reduce", decision.native, known, sendbuf, recvbuf, op, root
            )
        call.run(context, flow)
        call.repeat(context, key, flow, ReductionMethods._read_and_reduce)
        return None

    def Barrier(self) -> None:
        """Like `mpi4py.MPI.Comm.Barrier`."""
        if fast_call := self._fast_path.get(_BARRIER):
            return fast_call(self)
        return self._read_and_wait()

    def _read_and_wait(self) -> None:
        context = self._planning_context()
        if context is None:
            return super().Barrier()
        if context.settings.check:
            require_equal(context.comm, "Barrier", "Barrier")
        decision = context.decide("barrier", 1, 0)
        if (flow := decision.flow) is None:
            return self._natively(context, "Barrier", decision.native, _BARRIER)
        context.run(flow, barrier_memory(flow))
        context.repeat(
            _BARRIER, flow, lambda: barrier_memory(flow), ReductionMethods._read_and_wait
        )
        return None


def barrier_memory(flow: Dataflow) -> ElementMemory:
    """Return the buffers of a barrier: one byte, which is not used."""
    return ElementMemory(memoryview(bytearray(1)), memoryview(b"\0"), flow, MPI.BYTE, MPI.BOR)


def _text(call: Reduction | None) -> str:
    return call.text() if call else "left to MPI"


def read_reduction(sendbuf: Any, recvbuf: Any, op: Any) -> Reduction | None:
    """Return the reduction, or None if it is left to MPI.

    It is None on all ranks, or on a rank with invalid arguments, which MPI or mpi4py reports.
    """
    try:
        output = read_elements(recvbuf, writable=True)
        if output is None or not accepts(op, output.datatype):
            return None
        if sendbuf is None or sendbuf is MPI.IN_PLACE:  # mpi4py accepts both
            return Reduction(output.view, output.view, output, op, True, output.copied)
        given = read_elements(sendbuf, writable=False)
        if given is None or (given.n_units, given.datatype) != (output.n_units, output.datatype):
            return None
        aliased = overlap(given.view, output.view)
        if aliased:
            before = copy_view(output.view)
            # Some MPI libraries reject aliased buffers and some accept them: try it on one rank.
            MPI.COMM_SELF.Allreduce(sendbuf, recvbuf, op)
            output.view[:] = before
    except Exception:
        return None
    copied = given.copied or output.copied
    return Reduction(given.view, output.view, output, op, aliased, copied)


def read_input(sendbuf: Any, op: Any) -> Reduction | None:
    """Return the reduction on a rank that gets no result; see `read_reduction`."""
    try:
        given = read_elements(sendbuf, writable=False)
        if given is None or not accepts(op, given.datatype):
            return None
    except Exception:
        return None
    return Reduction(given.view, None, given, op, copied=given.copied)


def accepts(op: MPI.Op, datatype: MPI.Datatype) -> bool:
    """Whether MPI can combine elements of ``datatype`` by ``op``; tried once, on one element."""
    if op.handle not in _OPS:
        return not op.is_predefined
    if not datatype.is_predefined:
        return False
    key = (op.handle, datatype.handle)
    if key not in _accepted:
        left, right = (aligned_bytes(datatype.Get_extent()[1]) for _ in range(2))
        left[:] = right[:] = bytes(len(left))
        try:
            op.Reduce_local((left, 1, datatype), (right, 1, datatype))
            _accepted[key] = True
        except MPI.Exception:
            _accepted[key] = False
    return _accepted[key]
