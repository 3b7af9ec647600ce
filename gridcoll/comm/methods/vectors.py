"""When ranks exchange the counts of `Alltoallv` and `Alltoallw`.

An exchange costs about a latency of the longest link; the grid decides whether it can pay at all.
Where it can, ranks exchange counts at every call as long as that leads to a faster way now and
then. After some calls without gain, more and more calls are made without an exchange. The next
exchange also carries each rank's largest call in between: if it was larger than any without gain,
ranks exchange at every call again. All this depends on exchanged values only, so ranks never
disagree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from mpi4py import MPI

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
"""Calls, or counts whose plan is kept, per communicator."""

_K = TypeVar("_K")
_V = TypeVar("_V")


class _Latest(OrderedDict[_K, _V]):
    """The last `N_KEPT` that were used."""

    def __getitem__(self, key: _K) -> _V:
        self.move_to_end(key)
        return super().__getitem__(key)

    def __setitem__(self, key: _K, value: _V) -> None:
        super().__setitem__(key, value)
        if len(self) > N_KEPT:
            del self[next(iter(self))]


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
    """A communicator's last calls of `Alltoallw`: their counts, displacements and datatypes.

    Reading a block of a derived type takes several calls of MPI, and an application that uses such
    types makes them once. So what was read is kept, and a call like one before only looks at where
    its buffers begin.
    """

    def __init__(self) -> None:
        self._kept: _Latest[_Key, TypedCall] = _Latest()

    def find(self, sendbuf: Any, recvbuf: Any) -> TypedCall | None:
        """A call with these arguments, placed where they are; None if they must be read."""
        source, into = _take_apart(sendbuf), _take_apart(recvbuf)
        if source is None or into is None:
            return None
        key = source.key + into.key
        if key not in self._kept:
            return None
        found = self._kept[key]
        if found.handles != _handles(found.types):
            del self._kept[key]
            return None
        begins = _begins(source, into)
        if begins is None:
            return None
        found.prepared.move(*begins)
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


PATIENCE = 4
"""After so many exchanges in a row without gain, some calls are made without one."""

MOST_WITHOUT = 64
"""Most calls in a row without an exchange, which then costs 1/65 of a latency per call."""

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
        self._n_quiet = self._n_without = self._missed = self._idle = 0
        self._kept: _Latest[bytes, Dataflow | None] = _Latest()
        self._direct: _Latest[_Direct, Dataflow] = _Latest()
        self.typed_calls = TypedCalls()

    @property
    def tells(self) -> bool:
        """Whether ranks exchange counts at the next call."""
        return self._may_gain and self._n_without == 0

    def direct(
        self, out: tuple[int, ...], into: tuple[int, ...], *, own_message: bool = False
    ) -> Dataflow:
        """This rank's share of the direct exchange of so many bytes to and from each rank.

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

    def note(self, n_bytes: int) -> None:
        """Enter a call without an exchange, with so many bytes from this rank."""
        if self._n_without:
            self._n_without -= 1
            self._missed = max(self._missed, n_bytes)

    def flow(self, context: Context, sizes: tuple[list[int], list[int]] | None) -> Dataflow | None:
        """This rank's share of a plan that is faster than the direct way; None if there is none.
        Collective.

        ``sizes`` are the bytes to and from each rank; None where this rank's arguments are wrong.
        Then, and where the two ends of a block differ, nothing is planned on any rank.
        """
        n = context.model.grid.n_ranks
        out, into = sizes or ([-1] * n, [-1] * n)
        told = _tell(context, np.array([*out, *into, self._missed], np.int64))
        counts, missed = told[:, :n], int(told[:, -1].max())
        self._missed = 0
        fits = bool((counts >= 0).all()) and np.array_equal(counts.T, told[:, n:-1])
        flow = self._planned(context, counts) if fits else None
        largest = int(counts.sum(axis=1).max())
        if flow is not None or missed > self._idle or self._forced:
            self._n_quiet = 0
        else:
            self._n_quiet += 1
            self._n_without = min(1 << max(self._n_quiet - PATIENCE, 0), MOST_WITHOUT)
            self._n_without -= self._n_quiet < PATIENCE
        self._idle = max(self._idle, largest) if flow is None else self._idle
        return flow

    def _planned(self, context: Context, counts: Counts) -> Dataflow | None:
        key = counts.tobytes()
        if key in self._kept:
            return self._kept[key]
        winner = choose_unequal(context.model, counts, self._forced).winner
        flow = None
        if winner.name != "direct" and winner.build is not None:
            flow = dataflow(winner.build(0).programs[context.rank])
        self._kept[key] = flow
        return flow


def _tell(context: Context, row: Counts) -> Counts:
    """Every rank's ``row``, on all; in one crossing where a plan does it. Collective."""
    n = context.model.grid.n_ranks
    told = np.empty((n, len(row)), np.int64)
    flow = context.decisions.decide("allgather", row.nbytes, 0, semantics=PLAIN).flow
    if flow is None:
        context.comm.Allgather(row, told)
    else:
        move(context, flow, row.data.cast("B"), told.reshape(-1).data.cast("B"))
    return told
