"""Functions for methods that move blocks of bytes from rank to rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

from mpi4py import MPI

from gridcoll.comm.arguments.elements import signature
from gridcoll.comm.context import Context
from gridcoll.comm.decisions import PLAIN
from gridcoll.comm.pickles import HEADER_BYTES, Heads
from gridcoll.engine.agreement import require_alike, require_equal
from gridcoll.engine.memory import ByteMemory, PartedMemory, byte_memory
from gridcoll.engine.repeat import Form
from gridcoll.plan import Dataflow, Plan, dataflow
from gridcoll.plan.blocks import exchange_parts
from gridcoll.plan.scatter.trees import serving_ranks

S = TypeVar("S", int, tuple[int, ...])
T = TypeVar("T")


def read_or_leave(read: Callable[[], T]) -> T | None:
    """The result of ``read``, or None for invalid arguments: MPI's own error says more."""
    try:
        return read()
    except Exception:
        return None


def in_place(buffer: Any) -> bool:
    """Whether ``buffer`` means in place, as in mpi4py."""
    return buffer is None or buffer is MPI.IN_PLACE


def agree(
    context: Context, method: str, root: int | None, n_bytes: int | None, *specs: Any
) -> None:
    """Where checks are asked for, raise unless all ranks make the same call.

    ``root`` is None for collectives without one; ``n_bytes`` is None for invalid arguments.
    ``specs`` are the buffer arguments that count on this rank: all hold the same types.
    """
    if context.settings.check:
        rooted = "" if root is None else f" root={root}"
        size = "with arguments that MPI refuses" if n_bytes is None else f"bytes={n_bytes}"
        require_equal(context.comm, method, f"{method}{rooted} {size}")
        require_alike(context.comm, method, map(signature, specs))


def agree_on_root(context: Context, method: str, root: int, *specs: Any) -> None:
    """The same for a call whose sizes differ between ranks."""
    if context.settings.check:
        require_equal(context.comm, method, f"{method} root={root}")
        require_alike(context.comm, method, map(signature, specs))


def decide_or_leave(
    context: Context, collective: str, n_bytes: int | None, root: int
) -> tuple[Dataflow | None, str | None]:
    """This rank's share of a plan, or the name of a native; neither for invalid arguments."""
    if n_bytes is None:
        return None, None
    decision = context.decide(collective, n_bytes, root)
    return decision.flow, decision.native


def refuse(context: Context, flow: Dataflow, n_bytes: int) -> NoReturn:
    """Take part in a call of ``n_bytes`` that this rank's arguments do not fit.

    Ranks that need its data raise the same, and none waits for ever.
    """
    context.run(flow, blank_memory(flow, n_bytes), has_data=False)
    raise MPI.Exception(MPI.ERR_TRUNCATE)


def filled_up(source: memoryview, place: memoryview, n_blocks: int = 1) -> memoryview:
    """As many bytes as ``place`` has: its blocks, each beginning with one of ``source``.

    ``source`` itself if it is no shorter. MPICH takes shorter blocks, though the standard does not.
    """
    if len(source) >= len(place):
        return source
    mine, theirs = len(source) // n_blocks, len(place) // n_blocks
    whole = memoryview(bytearray(place))
    for at in range(n_blocks):
        whole[at * theirs :][:mine] = source[at * mine :][:mine]
    return whole


def move(context: Context, flow: Dataflow, source: memoryview, into: memoryview) -> None:
    """Run ``flow`` from ``source`` to ``into``."""
    context.run(flow, byte_memory(flow, source, into))


def blank_memory(flow: Dataflow, n_bytes: int) -> ByteMemory:
    """Memory of ``n_bytes`` to prepare a program that will run over other buffers."""
    own = memoryview(bytearray(n_bytes))
    return byte_memory(flow, own, own)


def copy_as_mpi_does(source: memoryview, into: memoryview) -> None:
    """As by a message to oneself: it raises or leaves the rest as MPI does."""
    n_bytes = min(len(source), len(into))
    into[:n_bytes] = source[:n_bytes]
    if len(source) > len(into):
        raise MPI.Exception(MPI.ERR_TRUNCATE)


def even_of(sizes: tuple[int, ...]) -> bool:
    """Whether all blocks have the same size."""
    return len(set(sizes)) == 1


def mean_of(sizes: tuple[int, ...]) -> int:
    """The block size that a choice is made for where sizes differ."""
    return -(-sum(sizes) // len(sizes))


def move_parts(
    context: Context,
    source: Mapping[int, Sequence[memoryview]],
    into: Mapping[int, Sequence[memoryview]],
) -> None:
    """Send parts to the ranks of ``source``, receive parts from those of ``into``, all at once.

    Straight from memory to memory; what is this rank's own is left where it is.
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
    """Cached: the same exchange is repeated in loops."""
    return dataflow(exchange_parts(dict(sends), dict(receives)))


def _chained(parts: Mapping[int, Sequence[memoryview]]) -> list[memoryview]:
    return [view for views in parts.values() for view in views]


@lru_cache(maxsize=128)
def share_of(build: Callable[[S], Plan] | None, sizes: S, rank: int) -> Dataflow | None:
    """This rank's share of the plan for ``sizes``, known on all ranks; None without ``build``."""
    return dataflow(build(sizes).programs[rank]) if build else None


def heads_flow(context: Context, collective: str, root: int) -> Dataflow | None:
    """This rank's share of moving the heads of objects; None for the native collective.

    mpi4py makes two native calls for objects, lengths first: a native must be twice as fast as a
    plan.
    """
    flow = context.decide(collective, HEADER_BYTES, root, semantics=PLAIN).flow
    if flow is not None or context.decisions.asks_for_native(collective):
        return flow
    choice = context.decisions.choice(collective, HEADER_BYTES, root, PLAIN)
    native_s = choice.winner.predicted_s
    plan = next((candidate for candidate in choice.candidates if candidate.build), None)
    if plan is None or native_s is None or (plan.predicted_s or 0.0) >= 2 * native_s:
        return None
    return share_of(plan.build, HEADER_BYTES, context.rank)


def gather_heads(context: Context, flow: Dataflow, head: memoryview) -> Heads:
    """The heads of all ranks' objects, on every rank; ``flow`` is from `heads_flow`."""
    heads = Heads(n_ranks := context.model.grid.n_ranks)
    if again := context.fast_path.get(_HEADS):
        again(context.comm, head, heads.view)
        return heads
    move(context, flow, head, heads.view)
    context.repeat(
        _HEADS,
        flow,
        lambda: blank_memory(flow, n_ranks * HEADER_BYTES),
        _never_of_another_form,
        given=Form(1, HEADER_BYTES),
        output=Form(2, n_ranks * HEADER_BYTES, n_blocks=n_ranks),
    )
    return heads


_HEADS = ("heads of allgather",)


def _never_of_another_form(*args: object) -> None:
    raise AssertionError("heads are of one length")


def in_turn(context: Context) -> tuple[int, ...]:
    """The other ranks in the order in which a root serves them."""
    return tuple(serving_ranks(context.model, context.rank, 0, in_turn=True))
