"""Bands: ranges of tags in which non-blocking and persistent calls run beside each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_

from mpi4py import MPI

from gridcoll.engine.counting import CountingTransport, Sent
from gridcoll.engine.executor import Run, Transport
from gridcoll.engine.progress import Job, progress
from gridcoll.engine.transport import MPITransport

N_BANDS = 64
"""Programs of one communicator that may run at the same time: the first is for blocking calls."""

N_AT_ONCE = 15
"""Most non-blocking calls under way at the same time; further ones wait for their turn."""

Begin = Callable[[Transport], tuple[Run, Callable[[], None]]]
"""Returns the run, and a function to call at its end."""


class Bands:
    """Bands of a communicator's own tags, each for one call at a time.

    Non-blocking calls take the first `N_AT_ONCE` in turn, as all ranks start them in the same
    order. Persistent calls may start in any order, so that each has its own band as long as it
    lives.
    """

    def __init__(self, comm: MPI.Intracomm, bands: Sequence[MPITransport]) -> None:
        self._comm = comm
        self._sent = Sent(comm.Get_size())
        transports = [CountingTransport(each, self._sent) for each in bands]
        self._at_once = transports[:N_AT_ONCE]
        self._turn = itertools.cycle(self._at_once)
        self._own = transports[N_AT_ONCE:]
        self._free = (1 << len(self._own)) - 1

    @property
    def in_use(self) -> bool:
        """Whether persistent requests hold bands, so that the communicator must stay."""
        return self._free != (1 << len(self._own)) - 1

    def start(self, begin: Begin) -> MPI.Request:
        """Run what ``begin`` gives for the transport that it is told, once."""
        transport = next(self._turn)
        return progress().start(Job(transport, lambda: begin(transport)))

    def claim(self, call: str) -> int | None:
        """A band for a persistent call. Collective.

        None where ranks differ in the text ``call``, or no band is free on all of them.
        """
        rows: list[tuple[str, int]] = self._comm.allgather((call, self._free))
        free = reduce(and_, (bands for _, bands in rows))
        if not free or any(text != call for text, _ in rows):
            return None
        lowest = free & -free
        self._free &= ~lowest
        return lowest.bit_length() - 1

    def release(self, band: int) -> None:
        """Let another call have ``band``."""
        self._free |= 1 << band

    def prepare(self, band: int, begin: Begin, free: Callable[[], None]) -> MPI.Prequest:
        """Run what ``begin`` gives at each start; call ``free`` when the request is freed."""
        transport = self._own[band]

        def release() -> None:
            self.release(band)
            free()

        return progress().prepare(Job(transport, lambda: begin(transport)), release)

    def rows(self, rank: int) -> list[tuple[int, int, int, int]]:
        """What was sent; see `Sent.rows`."""
        return self._sent.rows(rank)

    def drain(self) -> None:
        """Wait until nothing is under way."""
        progress().drain([*self._at_once, *self._own])
