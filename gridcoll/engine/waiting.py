"""Waiting that lasts as long as a WAN latency must not burn a core."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

SPIN_S = 40e-6
"""How long to poll without pause: about what a message inside a cluster takes."""

FIRST_PAUSE_S = 5e-6
LONGEST_PAUSE_S = 400e-6


class PoliteWait:
    """Paces a polling loop: spin, then yield, then sleep for longer and longer.

    Call the object after a poll that found nothing, and `reset` after one that found something.
    The longest pause bounds what waiting adds to a message that comes after a long silence.
    """

    __slots__ = ("_longest_pause_s", "_pause_s", "_since", "_spin_s")

    def __init__(self, spin_s: float = SPIN_S, longest_pause_s: float = LONGEST_PAUSE_S) -> None:
        self._since = 0.0
        self._pause_s = FIRST_PAUSE_S
        self._spin_s = spin_s
        self._longest_pause_s = longest_pause_s

    def reset(self) -> None:
        self._since = 0.0
        self._pause_s = FIRST_PAUSE_S

    def __call__(self) -> None:
        now = time.monotonic()
        if not self._since:
            self._since = now
        if now - self._since < self._spin_s:
            os.sched_yield()
            return
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 1.5, self._longest_pause_s)


def wait_politely(poll: Callable[[], bool], wait: PoliteWait | None = None) -> None:
    """Call ``poll`` until it returns true, pausing politely in between."""
    wait = wait or PoliteWait()
    while not poll():
        wait()


def wait_for_all(comm: MPI.Intracomm) -> None:
    """Wait politely until every rank is here. Collective.

    A blocking call right after it is short: ranks that were early do not spin, on cores that those
    still at work may need.
    """
    wait_politely(comm.Ibarrier().Test)
