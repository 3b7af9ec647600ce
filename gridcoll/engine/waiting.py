"""Polite waiting: a wait as long as a WAN latency must not use up a core."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, ClassVar, TypeVar

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

SPIN_S = 50e-6
"""How long to poll without pause: about the time of a message inside a cluster."""

FIRST_PAUSE_S = 10e-6  # as requested; a sleep lasts about 60 us longer on a stock Linux
LONGEST_PAUSE_S = 10e-3
WAITS_PER_PAUSE = 100

EXIT_PATIENCE_S = 1.0
"""How long the end of a job waits for what is under way: another rank may be dead."""


@cache
def polls_at_once() -> int:
    """Return the number of polls between pauses. Open MPI polls sockets only in every 8th call."""
    from mpi4py import MPI

    return 8 if MPI.get_vendor()[0] == "Open MPI" else 1


class PoliteWait:
    """Paces a polling loop: spins first, then sleeps a hundredth of the time waited so far.

    Waiting adds about a percent to the time of a message. It uses a tenth of a core during a WAN
    latency, and almost nothing while a rank is late.

    Call the object after a poll without progress, and `reset` after a poll with progress.
    """

    __slots__ = ("_since", "_spin_s")

    def __init__(self, spin_s: float = SPIN_S) -> None:
        self._since = 0.0
        self._spin_s = spin_s

    def reset(self) -> None:
        self._since = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if not self._since:
            self._since = now
        waited_s = now - self._since
        if waited_s < self._spin_s:
            os.sched_yield()
        else:
            time.sleep(min(max(waited_s / WAITS_PER_PAUSE, FIRST_PAUSE_S), LONGEST_PAUSE_S))


class Hold:
    """Holds back exceptions of signal handlers, as `KeyboardInterrupt`, during transfers.

    Until transfers end, they use their buffers and may match later calls. So the first exception is
    raised at the end, as in a blocking call of the MPI library. A second one is raised at once.
    Then ``kept``, the buffers in use, is never freed, and the communicator cannot be used any more.
    """

    __slots__ = ("_held", "_kept")

    abandoned: ClassVar[list[object]] = []

    def __init__(self, kept: object) -> None:
        self._kept = kept
        self._held: BaseException | None = None

    def back(self, step: Callable[..., T], *args: object) -> T | None:
        """Return the result of ``step``, or None if a signal handler raised an exception.

        ``step`` itself must not raise.
        """
        try:
            return step(*args)
        except BaseException as error:
            if self._held is not None:
                self.abandoned.append(self._kept)
                raise
            self._held = error
            return None

    def release(self) -> None:
        """Raise the exception that was held back, if any. Call this when all transfers ended."""
        if self._held is not None:
            raise self._held


def wait_politely(
    poll: Callable[[], bool], wait: PoliteWait | None = None, kept: object = None
) -> None:
    """Call ``poll`` until it returns true, with polite pauses in between.

    Exceptions of signal handlers are raised after that. See `Hold`, also for ``kept``.
    """
    wait, hold = wait or PoliteWait(), Hold((poll, kept))
    while not any(poll() for _ in range(polls_at_once())):
        hold.back(wait)
    hold.release()


def wait_for_all(comm: MPI.Intracomm) -> None:
    """Wait politely until every rank has called this. Collective.

    The blocking call that follows is then short, and early ranks do not spin on cores that late
    ranks need.
    """
    wait_politely(comm.Ibarrier().Test)
