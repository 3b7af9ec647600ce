"""Messages over MPI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

from gridcoll.engine.executor import TransferError
from gridcoll.engine.memory import Pieces, Typed


class MPITransport:
    """Messages of one program at a time, on a private communicator.

    Programs with different ``tags`` may run at the same time. ``ranks[i]`` is the rank in ``comm``
    of the plan's rank ``i``; by default they are the same.
    """

    def __init__(
        self, comm: MPI.Intracomm, tags: range | None = None, ranks: Sequence[int] | None = None
    ) -> None:
        self._comm = comm
        tags = range(n_tags()) if tags is None else tags
        # Messages are numbered by peer (`Dataflow.tags`), and those of a lane keep their order. Two
        # messages with the same tag are this many messages apart, and never pending together.
        self.first_tag, self.n_tags = tags.start, len(tags)
        self.ranks = None if ranks is None else np.array(ranks, np.int64)

    @property
    def handle(self) -> int:
        """The handle of the communicator."""
        return MPI._handleof(self._comm)

    def isend(self, view: memoryview | Pieces | Typed, peer: int, tag: int) -> MPI.Request:
        return self._start(self._comm.Isend, view, peer, tag)

    def irecv(self, view: memoryview | Pieces | Typed, peer: int, tag: int) -> MPI.Request:
        request = self._start(self._comm.Irecv, view, peer, tag)
        return _DataRequest(request) if view.nbytes else request

    def iprobe(self, peer: int, tag: int) -> bool:
        """Whether a message can be received."""
        return bool(self._comm.Iprobe(self._peer_rank(peer), self.first_tag + tag % self.n_tags))

    def _peer_rank(self, peer: int) -> int:
        return peer if self.ranks is None else int(self.ranks[peer])

    def _start(
        self,
        transfer: Callable[[Any, int, int], MPI.Request],
        view: memoryview | Pieces | Typed,
        peer: int,
        tag: int,
    ) -> MPI.Request:
        tag, peer = self.first_tag + tag % self.n_tags, self._peer_rank(peer)
        if isinstance(view, Pieces):
            with _as_message(view) as memory:
                return transfer(memory, peer, tag)
        if isinstance(view, Typed):
            return transfer(view.spec, peer, tag)
        return transfer((view, MPI.BYTE), peer, tag)

    def test_some(self, requests: list[Any]) -> Sequence[int]:
        statuses: list[MPI.Status] = []
        try:
            ended = MPI.Request.Testsome(requests, statuses) or []
        except MPI.Exception as error:
            raise _test_separately(requests, error) from error
        empty = [
            place
            for place, status in zip(ended, statuses, strict=False)
            if isinstance(requests[place], _DataRequest) and not status.Get_count(MPI.BYTE)
        ]
        if empty:
            raise TransferError(ended, MPI.Exception(MPI.ERR_TRUNCATE), empty)
        return ended


class _DataRequest(MPI.Request):
    """A receive that expects data. An empty message means that its sender has no valid data."""


@contextmanager
def _as_message(pieces: Pieces) -> Iterator[tuple[Any, int, MPI.Datatype]]:
    """Yield ``pieces`` as an MPI message, not copied. MPI keeps the type while it is in use."""
    lengths = [len(view) for view in pieces.views]
    kind = MPI.BYTE.Create_hindexed(lengths, [MPI.Get_address(view) for view in pieces.views])
    try:
        yield MPI.BOTTOM, 1, kind.Commit()
    finally:
        kind.Free()


def _test_separately(requests: list[Any], error: MPI.Exception) -> TransferError:
    """Find which requests ended after a test of all of them raised ``error``, and why."""
    # MPICH has freed the failed requests, and only their statuses have the error class. With our
    # arguments it can only be truncation. Open MPI keeps them and reports the error again.
    in_status = error.Get_error_class() == MPI.ERR_IN_STATUS
    ended, cause = [], MPI.Exception(MPI.ERR_TRUNCATE) if in_status else error
    for place, request in enumerate(requests):
        try:
            has_ended = request == MPI.REQUEST_NULL or request.Test()
        except MPI.Exception as request_error:
            has_ended, cause = True, request_error
        if has_ended:
            ended.append(place)
    return TransferError(ended, cause)


def n_tags() -> int:
    """Return the number of tags that messages may have."""
    # From COMM_WORLD, because Open MPI 5 lacks the attribute on communicators made by Create.
    largest: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767
    return largest + 1
