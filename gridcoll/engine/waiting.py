"""Polite waiting: a wait as long as a WAN latency must not burn a core."""

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
"""How long to poll without pause: about what a message inside a cluster takes."""

FIRST_PAUSE_S = 10e-6  # asked for: a sleep lasts some 60 us longer on a stock Linux
LONGEST_PAUSE_S = 10e-3
WAITS_PER_PAUSE = 100


@cache
def polls_at_once() -> int:
    """Polls between pauses. Open MPI looks at its sockets in every eighth call only."""
    from mpi4py import MPI

    return 8 if MPI.get_vendor()[0] == "Open MPI" else 1


class PoliteWait:
    """Paces a polling loop: spin first, then sleep a hundredth of the time waited so far.

    So waiting adds about a percent to the time of a message, and it costs a tenth of a core while
    a WAN latency goes by and next to nothing while a rank is late.

    Call the object after a poll that found nothing, and `reset` after one that found something.
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
    """Holds back exceptions of signal handlers, as `KeyboardInterrupt`, while transfers are under
    way.

    Transfers use their buffers, and may match later calls, until they end. So the first exception
    waits for the end, as it would in a blocking call of the MPI library. A second one is raised at
    once; then ``kept``, the buffers in use, is never freed, and the communicator cannot be used any
    more.
    """

    __slots__ = ("_held", "_kept")

    abandoned: ClassVar[list[object]] = []

    def __init__(self, kept: object) -> None:
        self._kept = kept
        self._held: BaseException | None = None

    def back(self, step: Callable[..., T], *args: object) -> T | None:
        """What ``step`` returns; None if it was interrupted. It must not raise anything itself."""
        try:
            return step(*args)
        except BaseException as error:
            if self._held is not None:
                self.abandoned.append(self._kept)
                raise
            self._held = error
            return None

    def release(self) -> None:
        """Raise what was held back; to be called when everything has ended."""
        if self._held is not None:
            raise self._held


def wait_politely(
    poll: Callable[[], bool], wait: PoliteWait | None = None, kept: object = None
) -> None:
    """Call ``poll`` until it returns true, pausing politely in between.

    Exceptions of signal handlers are raised after that: see `Hold`, also for ``kept``.
    """
    wait, hold = wait or PoliteWait(), Hold((poll, kept))
    while not any(poll() for _ in range(polls_at_once())):
        hold.back(wait)
    hold.release()


def wait_for_all(comm: MPI.Intracomm) -> None:
    """Wait politely until every rank is here. Collective.

    A blocking call after it is short: early ranks do not spin on cores that late ranks need.
    """
    wait_politely(comm.Ibarrier().Test)
