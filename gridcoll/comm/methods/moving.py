"""Helper functions of the methods that move blocks of bytes between ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn, SupportsIndex, TypeVar

from mpi4py import MPI

from gridcoll.comm.arguments.elements import signature
from gridcoll.comm.context import Context
from gridcoll.comm.decisions import PLAIN
from gridcoll.comm.pickles import HEADER_BYTES, Heads
from gridcoll.engine.agreement import agree_on, require_alike, require_equal
from gridcoll.engine.memory import ByteMemory, PartedMemory, byte_memory
from gridcoll.engine.repeat import Form
from gridcoll.plan import Dataflow, Plan, dataflow
from gridcoll.plan.blocks import exchange_parts
from gridcoll.plan.scatter.trees import serving_ranks

S = TypeVar("S", int, tuple[int, ...])
T = TypeVar("T")


REFUSED = "with arguments that MPI refuses"
"""What a rank tells the others of such a call."""


def read_or_none(read: Callable[[], T]) -> T | None:
    """Return the result of ``read``, or None for invalid arguments: MPI's own error says more."""
    try:
        return read()
    except Exception:
        return None


def in_place(buffer: Any) -> bool:
    """Whether ``buffer`` stands for ``MPI.IN_PLACE``, as mpi4py interprets it."""
    return buffer is None or buffer is MPI.IN_PLACE


def _said(method: str, root: int | None, rest: str = "") -> str:
    return " ".join(filter(None, (method, "" if root is None else f"root={root}", rest)))


def agree(
    context: Context, method: str, root: int | None, n_bytes: int | None, *specs: Any
) -> None:
    """With ``GRIDCOLL_CHECK``, raise unless all ranks make the same call.

    ``root`` is None for collectives without one; ``n_bytes`` is None for invalid arguments.
    ``specs`` are the buffer arguments that are significant on this rank; they must all have the
    same types.
    """
    if context.settings.check:
        size = REFUSED if n_bytes is None else f"bytes={n_bytes}"
        require_equal(context.comm, method, _said(method, root, size))
        require_alike(context.comm, method, map(signature, specs))


def agree_on_uneven(
    context: Context, method: str, root: int | None, read: Callable[[], object], *specs: Any
) -> None:
    """Like `agree`, for a call whose sizes differ between ranks; ``read`` reads its arguments."""
    if context.settings.check:
        refused = REFUSED if read_or_none(read) is None else ""
        require_equal(context.comm, method, _said(method, root, refused))
        require_alike(context.comm, method, map(signature, specs))


def agree_on_objects(
    context: Context, method: str, root: int | None, pickle: Callable[[], object]
) -> None:
    """Like `agree`, for a call with objects; ``pickle`` pickles those that this rank sends.

    If it fails on some rank, all ranks raise an error.
    """
    if context.settings.check:
        text = _said(method, root)
        agree_on(context.comm, method, pickle, lambda _: text, lambda _: None)


def valid_root(context: Context, method: str, root: SupportsIndex) -> int | None:
    """Return ``root`` as an int, or None if MPI rejects it.

    With ``GRIDCOLL_CHECK``, raise if only some ranks have such a root.
    """
    rank = context.as_rank(root)
    if rank is None and context.settings.check:
        require_equal(context.comm, method, f"{method} with a root that is no rank")
    return rank


def decide_if_valid(
    context: Context, collective: str, n_bytes: int | None, root: int
) -> tuple[Dataflow | None, str | None]:
    """Return this rank's part of a plan, or the name of a native collective.

    Both are None for invalid arguments, where ``n_bytes`` is None.
    """
    if n_bytes is None:
        return None, None
    decision = context.decide(collective, n_bytes, root)
    return decision.flow, decision.native


def refuse(context: Context, flow: Dataflow, n_bytes: int) -> NoReturn:
    """Take part in a call of ``n_bytes`` whose arguments on this rank do not fit, then raise.

    Ranks that need the data of this rank raise the same error, so no rank hangs.
    """
    context.run(flow, blank_memory(flow, n_bytes), has_data=False)
    raise MPI.Exception(MPI.ERR_TRUNCATE)


def padded(source: memoryview, target: memoryview, n_blocks: int = 1) -> memoryview:
    """Return a copy of ``target`` in which each block begins with a block of ``source``.

    Return ``source`` itself if it is not shorter than ``target``. MPICH accepts blocks that are too
    short, though the standard does not.
    """
    if len(source) >= len(target):
        return source
    source_bytes, target_bytes = len(source) // n_blocks, len(target) // n_blocks
    whole = memoryview(bytearray(target))
    for k in range(n_blocks):
        whole[k * target_bytes :][:source_bytes] = source[k * source_bytes :][:source_bytes]
    return whole


def move(context: Context, flow: Dataflow, source: memoryview, into: memoryview) -> None:
    """Run ``flow`` from ``source`` to ``into``."""
    context.run(flow, byte_memory(flow, source, into))


def blank_memory(flow: Dataflow, n_bytes: int) -> ByteMemory:
    """Return memory of ``n_bytes``, to prepare a program that will run on other buffers."""
    own = memoryview(bytearray(n_bytes))
    return byte_memory(flow, own, own)


def copy_as_mpi_does(source: memoryview, into: memoryview) -> None:
    """Copy like a message to oneself.

    If ``source`` is shorter, the rest of ``into`` stays as it is; if longer, raise `MPI.Exception`.
    """
    n_bytes = min(len(source), len(into))
    into[:n_bytes] = source[:n_bytes]
    if len(source) > len(into):
        raise MPI.Exception(MPI.ERR_TRUNCATE)


def are_equal(sizes: tuple[int, ...]) -> bool:
    """Whether all blocks have the same size."""
    return len(set(sizes)) == 1


def mean_size(sizes: tuple[int, ...]) -> int:
    """Return the mean block size, rounded up: the choice is made for it if sizes differ."""
    return -(-sum(sizes) // len(sizes))


def move_parts(
    context: Context,
    source: Mapping[int, Sequence[memoryview]],
    into: Mapping[int, Sequence[memoryview]],
) -> None:
    """Send parts to the ranks of ``source``, and receive parts from those of ``into``, all at once.

    Parts are not copied. This rank's own parts are ignored.
    """
    sends, receives = (
        {peer: views for peer, views in each.items() if peer != context.rank}
        for each in (source, into)
    )
    flow = _exchange_flow(_sizes(sends), _sizes(receives))
    if flow.program:
        context.run(flow, PartedMemory(_chained(receives), _chained(sends)))


_Sizes = tuple[tuple[int, tuple[int, ...]], ...]


def _sizes(parts: Mapping[int, Sequence[memoryview]]) -> _Sizes:
    return tuple((peer, tuple(map(len, views))) for peer, views in parts.items())


@lru_cache(maxsize=256)
def _exchange_flow(sends: _Sizes, receives: _Sizes) -> Dataflow:
    """Cached, because the same exchange is often repeated in loops."""
    return dataflow(exchange_parts(dict(sends), dict(receives)))


def _chained(parts: Mapping[int, Sequence[memoryview]]) -> list[memoryview]:
    return [view for views in parts.values() for view in views]


@lru_cache(maxsize=128)
def flow_of(build: Callable[[S], Plan] | None, sizes: S, rank: int) -> Dataflow | None:
    """Return this rank's part of the plan for ``sizes``, which all ranks know.

    None without ``build``.
    """
    return dataflow(build(sizes).programs[rank]) if build else None


def heads_flow(context: Context, collective: str, root: int) -> Dataflow | None:
    """Return this rank's part of a plan for the heads of objects; None for the native collective.

    mpi4py makes two native calls for objects, the first one for lengths. Therefore a plan is used
    unless the native collective is at least twice as fast.
    """
    flow = context.decide(collective, HEADER_BYTES, root, semantics=PLAIN).flow
    if flow is not None or context.decisions.is_forced_native(collective):
        return flow
    choice = context.decisions.choice(collective, HEADER_BYTES, root, PLAIN)
    native_s = choice.winner.predicted_s
    plan = next((candidate for candidate in choice.candidates if candidate.build), None)
    if plan is None or native_s is None or (plan.predicted_s or 0.0) >= 2 * native_s:
        return None
    return flow_of(plan.build, HEADER_BYTES, context.rank)


def gather_heads(context: Context, flow: Dataflow, head: memoryview) -> Heads:
    """Return the heads of all ranks' objects, on every rank. ``flow`` is from `heads_flow`."""
    heads = Heads(n_ranks := context.model.grid.n_ranks)
    if fast_call := context.fast_path.get(_HEADS):
        fast_call(context.comm, head, heads.view)
        return heads
    move(context, flow, head, heads.view)
    context.repeat(
        _HEADS,
        flow,
        lambda: blank_memory(flow, n_ranks * HEADER_BYTES),
        _unreachable,
        given=Form(1, HEADER_BYTES),
        output=Form(2, n_ranks * HEADER_BYTES, n_blocks=n_ranks),
    )
    return heads


_HEADS = ("heads of allgather",)


def _unreachable(*args: object) -> None:
    """Stand in for the function that reads buffers of another form; heads have only one form."""
    raise AssertionError("heads are of one length")


def serving_order(context: Context) -> tuple[int, ...]:
    """Return the other ranks in the order in which a root serves them."""
    return tuple(serving_ranks(context.model, context.rank, 0, in_turn=True))
