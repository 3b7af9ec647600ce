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

    Programs with different ``tags`` may run at the same time. ``ranks`` are the ranks in ``comm``
    of those of the plan; by default the same.
    """

    def __init__(
        self, comm: MPI.Intracomm, tags: range | None = None, ranks: Sequence[int] | None = None
    ) -> None:
        self._comm = comm
        tags = range(n_tags()) if tags is None else tags
        # Messages are numbered by peer (`Dataflow.tags`), and those of a lane keep their order: two
        # with one tag would have to be all these tags apart and yet under way together.
        self.first_tag, self.n_tags = tags.start, len(tags)
        self.ranks = None if ranks is None else np.array(ranks, np.int64)

    @property
    def handle(self) -> int:
        """The communicator's."""
        return MPI._handleof(self._comm)

    def isend(self, view: memoryview | Pieces | Typed, peer: int, tag: int) -> MPI.Request:
        return self._start(self._comm.Isend, view, peer, tag)

    def irecv(self, view: memoryview | Pieces | Typed, peer: int, tag: int) -> MPI.Request:
        request = self._start(self._comm.Irecv, view, peer, tag)
        return _Data(request) if view.nbytes else request

    def iprobe(self, peer: int, tag: int) -> bool:
        """Whether a message is there to be received."""
        return bool(self._comm.Iprobe(self._place(peer), self.first_tag + tag % self.n_tags))

    def _place(self, peer: int) -> int:
        return peer if self.ranks is None else int(self.ranks[peer])

    def _start(
        self,
        transfer: Callable[[Any, int, int], MPI.Request],
        view: memoryview | Pieces | Typed,
        peer: int,
        tag: int,
    ) -> MPI.Request:
        tag, peer = self.first_tag + tag % self.n_tags, self._place(peer)
        if isinstance(view, Pieces):
            with _in_place(view) as memory:
                return transfer(memory, peer, tag)
        if isinstance(view, Typed):
            return transfer(view.spec, peer, tag)
        return transfer((view, MPI.BYTE), peer, tag)

    def test_some(self, requests: list[Any]) -> Sequence[int]:
        statuses: list[MPI.Status] = []
        try:
            ended = MPI.Request.Testsome(requests, statuses) or []
        except MPI.Exception as error:
            raise _one_by_one(requests, error) from error
        empty = [
            place
            for place, status in zip(ended, statuses, strict=False)
            if isinstance(requests[place], _Data) and not status.Get_count(MPI.BYTE)
        ]
        if empty:
            raise TransferError(ended, MPI.Exception(MPI.ERR_TRUNCATE), empty)
        return ended


class _Data(MPI.Request):
    """Of a receive that is to get data: a message without any says that its sender has none."""


@contextmanager
def _in_place(pieces: Pieces) -> Iterator[tuple[Any, int, MPI.Datatype]]:
    """``pieces`` as a message in MPI's form, not copied; MPI keeps the type meanwhile."""
    lengths = [len(view) for view in pieces.views]
    kind = MPI.BYTE.Create_hindexed(lengths, [MPI.Get_address(view) for view in pieces.views])
    try:
        yield MPI.BOTTOM, 1, kind.Commit()
    finally:
        kind.Free()


def _one_by_one(requests: list[Any], error: MPI.Exception) -> TransferError:
    """Which of ``requests`` ended when testing them together raised ``error``, and what failed."""
    # MPICH has freed the failed ones, and only statuses have the error class; with our arguments it
    # can only be truncation. Open MPI keeps them, and reports the error again.
    in_status = error.Get_error_class() == MPI.ERR_IN_STATUS
    ended, cause = [], MPI.Exception(MPI.ERR_TRUNCATE) if in_status else error
    for place, request in enumerate(requests):
        try:
            over = request == MPI.REQUEST_NULL or request.Test()
        except MPI.Exception as its_own:
            over, cause = True, its_own
        if over:
            ended.append(place)
    return TransferError(ended, cause)


def n_tags() -> int:
    """How many tags messages may have."""
    # Asked of the world: Open MPI 5 does not give it for communicators made by Create.
    largest: int = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) or 32767
    return largest + 1
