"""When ranks exchange the counts of `Alltoallv` and `Alltoallw`.

An exchange costs about a latency of the longest link; whether it can pay at all depends on the
grid. If it can, ranks exchange counts at every call as long as this sometimes leads to a faster
plan. After some calls without gain, more and more calls are made without an exchange. The next
exchange also carries each rank's largest call in between: if that was larger than all calls without
gain, ranks exchange at every call again. All this depends only on exchanged values, so ranks never
disagree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI
from msgspec import Struct

from gridcoll.comm.arguments.blocks import address_in_memory
from gridcoll.comm.context import Context
from gridcoll.comm.decisions import PLAIN, Decisions
from gridcoll.comm.methods.moving import move
from gridcoll.engine.compiled import Prepared
from gridcoll.engine.memory import Part, PartedMemory
from gridcoll.plan import Dataflow, dataflow
from gridcoll.plan.alltoall.direct import far_order, farthest_first_peers
from gridcoll.plan.alltoall.unequal import Counts
from gridcoll.plan.alltoall.unequal_choice import can_gain, choose_unequal, unequal_method
from gridcoll.plan.alltoall.vector import vector_program

N_KEPT = 16
"""Most calls, and most counts, whose plans are kept per communicator."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class _Latest(OrderedDict[_K, _V]):
    """A mapping that keeps the `N_KEPT` entries that were used last."""

    def __getitem__(self, key: _K) -> _V:
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        if len(self) > N_KEPT:
            del self[next(iter(self))]


_Key = tuple[object, ...]


class _Spec(NamedTuple):
    """A parsed buffer argument. ``key`` is all of it but the buffer; types count by identity."""

    buffer: Any
    types: Sequence[Any]
    key: _Key


class TypedCall(Struct, frozen=True):
    """This rank's part of a call of `Alltoallw`.

    ``types`` are the caller's datatypes. They are referenced so that no other object gets their
    identity. If a handle differs from ``handles``, the datatype was freed.
    """

    flow: Dataflow
    prepared: Prepared
    n_bytes: int
    types: tuple[MPI.Datatype, ...]
    handles: tuple[int, ...]


class TypedCalls:
    """A communicator's last calls of `Alltoallw`: their counts, displacements and datatypes.

    Reading a block of a derived type takes several MPI calls, and an application that uses such
    types creates them once. Therefore what was read is kept, and for a call like an earlier one
    only the addresses of its buffers are read.
    """

    def __init__(self) -> None:
        self._kept: _Latest[_Key, TypedCall] = _Latest()

    def find(self, sendbuf: Any, recvbuf: Any) -> TypedCall | None:
        """Return a call with these arguments, moved to their addresses; None if none is known."""
        source, into = _parse(sendbuf), _parse(recvbuf)
        if source is None or into is None:
            return None
        key = source.key + into.key
        if key not in self._kept:
            return None
        found = self._kept[key]
        if found.handles != _handles(found.types):
            del self._kept[key]
            return None
        addresses = _addresses(source, into)
        if addresses is None:
            return None
        found.prepared.move(*addresses)
        return found

    def keep(
        self,
        context: Context,
        flow: Dataflow,
        parts: tuple[Sequence[Part], Sequence[Part]],
        sendbuf: Any,
        recvbuf: Any,
    ) -> None:
        """Keep a call that ran ``flow`` on these parts, if the C engine runs it."""
        source, into = _parse(sendbuf), _parse(recvbuf)
        if source is None or into is None or (addresses := _addresses(source, into)) is None:
            return
        memory = PartedMemory(parts[1], parts[0], begins=addresses)
        prepared = context.prepare(flow, memory)
        if prepared is None:
            return
        types = (*source.types, *into.types)
        n_bytes = sum(map(len, parts[0]))
        call = TypedCall(flow, prepared, n_bytes, types, _handles(types))
        self._kept[source.key + into.key] = call


def _parse(spec: Any) -> _Spec | None:
    """Parse a buffer argument; return None if it has no list of types, or not mpi4py's form."""
    if not isinstance(spec, list | tuple) or not 2 <= len(spec) <= 4:
        return None
    buffer, *layout, types = spec
    try:
        if len(layout) == 1:
            counts, displs = layout[0]
        else:
            counts, displs = layout or ((), ())
        return _Spec(buffer, types, (tuple(counts), tuple(displs), *map(id, types)))
    except (TypeError, ValueError):
        return None


def _handles(types: Sequence[MPI.Datatype]) -> tuple[int, ...]:
    return tuple(datatype.handle for datatype in types)


def _addresses(source: _Spec, into: _Spec) -> tuple[int, int] | None:
    """Return the addresses of both buffers; None if the CPU cannot read, or write, one of them."""
    try:
        from_address = address_in_memory(source.buffer, writable=False)
        into_address = address_in_memory(into.buffer, writable=True)
    except (BufferError, TypeError, ValueError):
        return None
    return None if from_address is None or into_address is None else (from_address, into_address)


PATIENCE = 4
"""After this many exchanges in a row without gain, some calls are made without an exchange."""

MOST_SKIPPED = 64
"""Most calls in a row without an exchange, so that exchanges cost 1/65 of a latency per call."""

_Direct = tuple[tuple[int, ...], tuple[int, ...], bool]


class Vectors:
    """The counts of one communicator's calls."""

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions
        self._forced = unequal_method(decisions.settings.algorithms.get("alltoall", ""))
        self._may_gain = decisions.model.n_clusters > 1 and (
            self._forced not in ("", "direct")
            or (not self._forced and not decisions.settings.force and can_gain(decisions.model))
        )
        # Exchanges in a row without gain, calls to make without an exchange, and the bytes that a
        # rank sent in the largest call without an exchange, and in the largest one without gain.
        self._n_useless = self._n_to_skip = self._skipped_bytes = self._useless_bytes = 0
        self._kept: _Latest[bytes, Dataflow | None] = _Latest()
        self._direct: _Latest[_Direct, Dataflow] = _Latest()
        self.typed_calls = TypedCalls()

    @property
    def shares_counts(self) -> bool:
        """Whether ranks exchange counts at the next call."""
        return self._may_gain and self._n_to_skip == 0

    def direct(
        self, out: tuple[int, ...], into: tuple[int, ...], *, own_message: bool = False
    ) -> Dataflow:
        """Return this rank's part of a direct exchange; ``out`` and ``into`` are bytes by rank.

        With ``own_message``, its own block is a message, too.
        """
        key = out, into, own_message
        if key in self._direct:
            return self._direct[key]
        rank, model = self.decisions.rank, self.decisions.model
        clusters = [cluster.ranks for cluster in model.grid.clusters]
        peers = farthest_first_peers(clusters, far_order(model), rank)
        flow = self._direct[key] = dataflow(
            vector_program(rank, out, into, peers, own_message=own_message)
        )
        return flow

    def count_call(self, n_bytes: int) -> None:
        """Count a call without an exchange, with ``n_bytes`` from this rank."""
        if self._n_to_skip:
            self._n_to_skip -= 1
            self._skipped_bytes = max(self._skipped_bytes, n_bytes)

    def flow(self, context: Context, sizes: tuple[list[int], list[int]] | None) -> Dataflow | None:
        """Return this rank's part of a plan that is faster than a direct exchange; None if none is.
        Collective.

        ``sizes`` are the bytes to and from each rank; None if this rank's arguments are invalid.
        Then, and if sender and receiver of a block have different sizes, no rank uses a plan.
        """
        n = context.model.grid.n_ranks
        out, into = sizes or ([-1] * n, [-1] * n)
        rows = _gather_rows(context, np.array([*out, *into, self._skipped_bytes], np.int64))
        counts, skipped_bytes = rows[:, :n], int(rows[:, -1].max())
        self._skipped_bytes = 0
        fits = bool((counts >= 0).all()) and np.array_equal(counts.T, rows[:, n:-1])
        flow = self._planned(context, counts) if fits else None
        largest = int(counts.sum(axis=1).max())
        if flow is not None or skipped_bytes > self._useless_bytes or self._forced:
            self._n_useless = 0
        else:
            self._n_useless += 1
            self._n_to_skip = min(1 << max(self._n_useless - PATIENCE, 0), MOST_SKIPPED)
            self._n_to_skip -= self._n_useless < PATIENCE
        self._useless_bytes = (
            max(self._useless_bytes, largest) if flow is None else self._useless_bytes
        )
        return flow

    def _planned(self, context: Context, counts: Counts) -> Dataflow | None:
        key = counts.tobytes()
        if key in self._kept:
            return self._kept[key]
        winner = choose_unequal(context.decisions.planning_model, counts, self._forced).winner
        flow = None
        if winner.name != "direct" and winner.build is not None:
            flow = dataflow(winner.build(0).programs[context.rank])
        self._kept[key] = flow
        return flow


def _gather_rows(context: Context, row: Counts) -> Counts:
    """Return every rank's ``row``, on all ranks. Collective.

    It takes one crossing of the grid if a plan does it.
    """
    n = context.model.grid.n_ranks
    rows = np.empty((n, len(row)), np.int64)
    flow = context.decisions.decide("allgather", row.nbytes, 0, semantics=PLAIN).flow
    if flow is None:
        context.comm.Allgather(row, rows)
    else:
        move(context, flow, row.data.cast("B"), rows.reshape(-1).data.cast("B"))
    return rows
