"""The reduce-scatter methods of `GridComm`."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from mpi4py import MPI
from mpi4py.MPI import Op
from msgspec import Struct
from msgspec.structs import replace
from numpy import ndarray

from gridcoll.comm.arguments.blocks import all_blocks
from gridcoll.comm.arguments.elements import Elements, overlap, read_elements
from gridcoll.comm.context import Context
from gridcoll.comm.decisions import Decision, Semantics
from gridcoll.comm.methods.base import GridMethods
from gridcoll.comm.methods.moving import (
    agree_on_uneven,
    are_equal,
    flow_of,
    in_place,
    mean_size,
    read_or_none,
)
from gridcoll.comm.methods.reductions import Reduction, read_input
from gridcoll.constants import SHORT_IN_ORDER_BYTES
from gridcoll.engine.agreement import require_equal
from gridcoll.engine.memory import aligned_bytes
from gridcoll.plan.natives import NATIVE

if TYPE_CHECKING:
    from mpi4py.typing import BufSpec, BufSpecB, InPlace


class _ReduceScatter(Struct, frozen=True):
    """A call in which each rank gets ``counts[rank]`` of the combined elements of ``reduction``.

    ``output`` is a part of ``into``. ``block`` tells whether it is a `Reduce_scatter_block`.
    """

    reduction: Reduction
    output: memoryview
    into: Elements
    counts: tuple[int, ...]
    block: bool

    def _decide(self, context: Context) -> Decision:
        """Decide. Unequal blocks with a non-commutative operation are left to MPI.

        Only `Reduce_scatter_block` has native variants, because only that one was timed.
        """
        reduction, counts = self.reduction, self.counts
        semantics = Semantics(
            rank_order=reduction.rank_order,
            prefer_order=reduction.prefer_order,
            no_variants=not self.block,
        )
        unit_bytes = reduction.elements.unit_bytes
        n_bytes = mean_size(counts) * unit_bytes
        if are_equal(counts):
            return context.decide(
                "reduce_scatter", n_bytes, 0, unit_bytes=unit_bytes, semantics=semantics
            )
        if reduction.rank_order:
            return Decision(None)
        winner = context.decisions.choice("reduce_scatter", n_bytes, 0, semantics).winner
        return Decision(flow_of(winner.build_blocks, counts, context.rank))

    def run(self, context: Context) -> str | None:
        """Execute the call, or return the native collective to use, the same on all ranks."""
        if runs_whole(context, self.reduction, len(self.reduction.input)):
            native = self._run_whole(context)
        else:
            decision = self._decide(context)
            native = decision.native if decision.flow is None else None
            if decision.flow is not None:
                context.run(decision.flow, self.reduction.memory(decision.flow))
        if native is None and self.into.store:
            self.into.store()
        return native

    def _run_whole(self, context: Context) -> str | None:
        """Take this rank's part of an allreduce, whose order of combination is fixed."""
        whole = aligned_bytes(len(self.reduction.input))
        reduction = replace(self.reduction, output=whole, aliased=False)
        flow = reduction.decide(context, "allreduce", 0).flow
        if flow is None:
            return NATIVE
        context.run(flow, reduction.memory(flow))
        start = sum(self.counts[: context.rank]) * self.reduction.elements.unit_bytes
        self.output[:] = whole[start : start + len(self.output)]
        return None


def runs_whole(context: Context, reduction: Reduction, n_bytes: int) -> bool:
    """Whether to run an allreduce, for its order of combination. The same on all ranks.

    If the ranks of clusters are interleaved, no plan for the parts alone keeps rank order.
    """
    if context.settings.reproducible and not reduction.exact:
        return True
    return reduction.prefer_order and n_bytes <= SHORT_IN_ORDER_BYTES


class ReduceScatteringMethods(GridMethods):
    """`Reduce_scatter_block` and `Reduce_scatter`."""

    def Reduce_scatter_block(
        self, sendbuf: BufSpecB | InPlace, recvbuf: BufSpec | BufSpecB, op: MPI.Op = MPI.SUM
    ) -> None:
        """Like `mpi4py.MPI.Comm.Reduce_scatter_block`."""
        plain = type(recvbuf) is type(sendbuf) is ndarray and type(op) is Op
        key = ("Reduce_scatter_block", op.handle, recvbuf.dtype, recvbuf.nbytes) if plain else None  # type: ignore[union-attr]
        if fast_call := self._fast_path.get(key):
            return fast_call(self, sendbuf, recvbuf, op)
        context = self._planning_context()
        if context is None:
            return super().Reduce_scatter_block(sendbuf, recvbuf, op)
        call = read_or_none(lambda: _read_even(context, sendbuf, recvbuf, op))
        _agree(context, "Reduce_scatter_block", call)
        if call is None:
            super().Reduce_scatter_block(sendbuf, recvbuf, op)
        elif native := call.run(context):
            known = key if call.reduction.predefined else None
            self._natively(context, "Reduce_scatter_block", native, known, sendbuf, recvbuf, op)
        return None

    def Reduce_scatter(
        self,
        sendbuf: BufSpec | InPlace,
        recvbuf: BufSpec,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
    ) -> None:
        """Like `mpi4py.MPI.Comm.Reduce_scatter`; counts are gathered if ``recvcounts`` is None."""
        context = self._planning_context()
        if context is None:
            return super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)
        if recvcounts is None and not in_place(sendbuf):
            into = read_or_none(lambda: read_elements(recvbuf, writable=True))
            agree_on_uneven(context, "Reduce_scatter", None, lambda: into)
            if into is None:
                return super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)
            recvcounts = self.allgather(into.n_units)
        call = read_or_none(lambda: _read_uneven(context, sendbuf, recvbuf, recvcounts, op))
        _agree(context, "Reduce_scatter", call)
        if call is None or call.run(context):
            super().Reduce_scatter(sendbuf, recvbuf, recvcounts, op)
        return None


def _agree(context: Context, method: str, call: _ReduceScatter | None) -> None:
    if context.settings.check:
        text = call.reduction.text() if call else "left to MPI"
        require_equal(context.comm, method, f"{method} {text}")


def _read_even(context: Context, sendbuf: Any, recvbuf: Any, op: Any) -> _ReduceScatter:
    n_ranks = context.model.grid.n_ranks
    is_in_place = in_place(sendbuf)
    given = _read_given(all_blocks(recvbuf if is_in_place else sendbuf, n_ranks), op)
    count, rest = divmod(given.elements.n_units, n_ranks)
    into = _elements(all_blocks(recvbuf, n_ranks) if is_in_place else recvbuf)
    if rest or (not is_in_place and into.n_units != count):
        raise ValueError("no block for each rank")
    return _into(given, into, (count,) * n_ranks, context.rank, is_in_place, block=True)


def _read_uneven(
    context: Context, sendbuf: Any, recvbuf: Any, recvcounts: Any, op: Any
) -> _ReduceScatter:
    counts = tuple(map(index, recvcounts))
    is_in_place = in_place(sendbuf)
    given = _read_given(recvbuf if is_in_place else sendbuf, op)
    into = _elements(recvbuf)
    fits = is_in_place or into.n_units == counts[context.rank]
    if (
        len(counts) != context.model.grid.n_ranks
        or sum(counts) != given.elements.n_units
        or not fits
    ):
        raise ValueError("counts do not fit")
    return _into(given, into, counts, context.rank, is_in_place)


def _read_given(spec: Any, op: Any) -> Reduction:
    given = read_input(spec, op)
    if given is None:
        raise TypeError("left to MPI")
    return given


def _elements(spec: Any) -> Elements:
    into = read_elements(spec, writable=True)
    if into is None:
        raise TypeError("left to MPI")
    return into


def _into(
    given: Reduction,
    into: Elements,
    counts: tuple[int, ...],
    rank: int,
    is_in_place: bool,
    *,
    block: bool = False,
) -> _ReduceScatter:
    """Return the call. If one buffer is used for both, the result is at its beginning."""
    if given.elements.datatype != into.datatype:
        raise ValueError("types differ")
    output = into.view[: counts[rank] * into.unit_bytes]
    aliased = is_in_place or overlap(given.input, output)
    reduction = replace(given, output=output, aliased=aliased)
    return _ReduceScatter(reduction, output, into, counts, block)
