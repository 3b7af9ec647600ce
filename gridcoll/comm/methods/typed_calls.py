"""Calls of `Alltoallw` that were made before: of the same counts, displacements and datatypes.

Reading a block of a derived type takes several calls of MPI, and an application that uses such
types makes them once. So what was read is kept, and a call like one before only looks at where its
buffers begin.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mpi4py import MPI

from gridcoll.comm.arguments.blocks import address_in_memory
from gridcoll.comm.context import Context
from gridcoll.engine.compiled import Prepared
from gridcoll.engine.memory import Part, PartedMemory
from gridcoll.plan import Dataflow

N_KEPT = 16
"""Calls that are kept, per communicator."""

_Key = tuple[object, ...]


class _Spec(NamedTuple):
    """An argument, taken apart. ``key`` is all of it but the buffer, its types by identity."""

    buffer: Any
    types: Sequence[Any]
    key: _Key


@dataclass(frozen=True)
class TypedCall:
    """This rank's share of such a call.

    ``types`` are the caller's, which must not make room for others with their identity; ``handles``
    tell those that were freed.
    """

    flow: Dataflow
    prepared: Prepared
    n_bytes: int
    types: tuple[MPI.Datatype, ...]
    handles: tuple[int, ...]


class TypedCalls:
    """The last ones of a communicator."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, TypedCall] = OrderedDict()

    def find(self, sendbuf: Any, recvbuf: Any) -> TypedCall | None:
        """A call with these arguments, placed where they are; None if they must be read."""
        source, into = _take_apart(sendbuf), _take_apart(recvbuf)
        if source is None or into is None:
            return None
        key = source.key + into.key
        found = self._kept.get(key)
        if found is None:
            return None
        if found.handles != _handles(found.types):
            del self._kept[key]
            return None
        begins = _begins(source, into)
        if begins is None:
            return None
        found.prepared.move(*begins)
        self._kept.move_to_end(key)
        return found

    def keep(
        self,
        context: Context,
        flow: Dataflow,
        parts: tuple[Sequence[Part], Sequence[Part]],
        sendbuf: Any,
        recvbuf: Any,
    ) -> None:
        """Keep a call that ran ``flow`` on these parts, if the engine in C runs it."""
        source, into = _take_apart(sendbuf), _take_apart(recvbuf)
        if source is None or into is None or (begins := _begins(source, into)) is None:
            return
        memory = PartedMemory(parts[1], parts[0], begins=begins)
        prepared = context.prepare(flow, memory)
        if prepared is None:
            return
        types = (*source.types, *into.types)
        n_bytes = sum(map(len, parts[0]))
        call = TypedCall(flow, prepared, n_bytes, types, _handles(types))
        self._kept[source.key + into.key] = call
        if len(self._kept) > N_KEPT:
            self._kept.popitem(last=False)


def _take_apart(spec: Any) -> _Spec | None:
    """None for what has no list of types, or one that is not mpi4py's form."""
    if not isinstance(spec, list | tuple) or not 2 <= len(spec) <= 4:
        return None
    buffer, *places, types = spec
    try:
        if len(places) == 1:
            counts, displs = places[0]
        else:
            counts, displs = places or ((), ())
        return _Spec(buffer, types, (tuple(counts), tuple(displs), *map(id, types)))
    except (TypeError, ValueError):
        return None


def _handles(types: Sequence[MPI.Datatype]) -> tuple[int, ...]:
    return tuple(datatype.handle for datatype in types)


def _begins(source: _Spec, into: _Spec) -> tuple[int, int] | None:
    """Where both buffers begin; None where the CPU does not reach them, or must not."""
    try:
        given = address_in_memory(source.buffer, writable=False)
        place = address_in_memory(into.buffer, writable=True)
    except (BufferError, TypeError, ValueError):
        return None
    return None if given is None or place is None else (given, place)
