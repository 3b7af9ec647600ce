"""Communicators for our own messages, which users never see."""

from __future__ import annotations

import atexit
import time
from functools import cached_property

from mpi4py import MPI

from gridcoll.comm.bands import Bands
from gridcoll.engine.counting import CountingTransport
from gridcoll.engine.transport import MPITransport
from gridcoll.engine.waiting import wait_politely

EXIT_PATIENCE_S = 1.0
"""How long the end of a job waits for duplicates under way, in case another rank is no more."""


LIBRARY, _ = MPI.get_vendor()
WAITS = LIBRARY == "Open MPI"
"""Open MPI 5.0.11 crashes or hangs where a duplicate under way meets other calls that make or free
communicators (seen with plain mpi4py), so that we have none under way there."""


class PrivateComm:
    """A communicator of the same ranks as another, for our own messages.

    `create` waits for the other ranks; `begin` does not, unless the MPI library `WAITS`: a child
    costs no more round trips than MPI's own call takes. Both are collective.
    """

    def __init__(self, comm: MPI.Intracomm, request: MPI.Request | None = None) -> None:
        self._comm = comm
        self._request = request
        if request is not None:
            _open_ending()
            _under_way[id(self)] = self

    @classmethod
    def create(cls, comm: MPI.Comm) -> PrivateComm:
        """Not a duplicate: that would call the user's attribute copy functions once more."""
        group = comm.Get_group()
        try:
            return cls(MPI.Intracomm(MPI.Intracomm.Create(MPI.Intracomm(comm), group)))
        finally:
            group.Free()

    @classmethod
    def begin(cls, comm: MPI.Comm) -> PrivateComm:
        """For a ``comm`` of ours or just made: without attributes and hints, which go along."""
        if WAITS:
            return cls.create(comm)
        return cls(*MPI.Intracomm.Idup(MPI.Intracomm(comm)))

    @property
    def comm(self) -> MPI.Intracomm:
        """The communicator; waits until it is there."""
        if self._request is not None:
            wait_politely(self._request.Test)
            self._close()
        return self._comm

    @cached_property
    def transport(self) -> CountingTransport:
        """Its messages, counted."""
        return CountingTransport(MPITransport(self.comm))

    @cached_property
    def bands(self) -> Bands:
        """Where non-blocking calls run."""
        return Bands(self.comm)

    def _close(self) -> None:
        self._request = None
        _under_way.pop(id(self), None)

    def poll(self) -> bool:
        """Whether it is there."""
        if self._request is not None and self._request.Test():
            self._close()
        return self._request is None

    def free(self) -> None:
        """Free it. Collective.

        What is under way ends first. Persistent requests that are left keep it, as they would the
        user's communicator.
        """
        if "bands" in self.__dict__:
            self.bands.drain()
            if self.bands.in_use:
                return
        self.comm.Free()


_under_way: dict[int, PrivateComm] = {}
_ending: list[int] = []


def _open_ending() -> None:
    """Once per process: whatever ends MPI, duplicates under way are completed before.

    An MPI that ends by itself does so after Python; one that is told to calls back.
    """
    if not _ending:
        _ending.append(MPI.Comm.Create_keyval(delete_fn=_finish))
        MPI.COMM_SELF.Set_attr(_ending[0], True)
        atexit.register(_finish)


def _finish(*_: object) -> None:
    limit = time.monotonic() + EXIT_PATIENCE_S
    if not MPI.Is_finalized():
        wait_politely(
            lambda: (
                all(each.poll() for each in list(_under_way.values())) or time.monotonic() > limit
            )
        )
