"""A time limit, checked alike on all ranks."""

from __future__ import annotations

import math
import time

from mpi4py import MPI

from gridcoll.errors import GridcollError
from gridcoll.measure.clusters import Progress


class OutOfTimeError(GridcollError):
    """The budget does not allow for another step; raised on all ranks at once."""


class Budget:
    """Reports to ``progress``, and raises `OutOfTimeError` on all ranks by rank 0's clock.

    It raises before a step that would end too late if it took as long as the one before. Called by
    all ranks; collective if there is a limit.
    """

    def __init__(self, comm: MPI.Intracomm, seconds: float, progress: Progress) -> None:
        self._comm = comm
        self._progress = progress
        self._limited = seconds < math.inf
        self._ends_s = time.monotonic() + seconds
        self._what = ""
        self._stepped_s = 0.0

    def __call__(self, what: str, done: int, of: int) -> None:
        self._progress(what, done, of)
        now_s = time.monotonic()
        last_s = now_s - self._stepped_s if what == self._what else 0.0
        self._what = what
        if done < of:
            self.check(last_s)
        self._stepped_s = time.monotonic()

    def check(self, needed_s: float = 0.0) -> None:
        """Raise unless so many seconds are left."""
        if not self._limited:
            return
        left_s = self._ends_s - time.monotonic()
        if self._comm.bcast(left_s <= needed_s, 0):
            raise OutOfTimeError("the time budget is spent")
