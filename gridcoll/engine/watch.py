"""Watches the sockets of this process, to wake a waiting rank when a message may have come."""

from __future__ import annotations

import contextlib
import select
import time
from functools import cache
from pathlib import Path

OPEN_FILES = Path("/proc/self/fd")

SHORTEST_WAIT_S = 20e-3
LONGEST_WAIT_S = 1.0


class SocketWatch:
    """A descriptor that is readable while any known socket is readable.

    Known are the sockets that were open at the last look. Nothing is read from them. They may
    belong to the MPI library or not, so a readable one only means that a message may have come.
    Messages that do not come over sockets do not make the descriptor readable. Without epoll,
    `descriptor` is -1.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") and OPEN_FILES.exists() else None
        self.descriptor = -1 if self._epoll is None else self._epoll.fileno()
        self._looked_s = 0.0
        self._wait_s = SHORTEST_WAIT_S

    def look(self) -> None:
        """Register sockets opened since the last look. Looks get rarer while there are none."""
        now = time.monotonic()
        if self._epoll is None or now - self._looked_s < self._wait_s:
            return
        n_new = 0
        for path in OPEN_FILES.iterdir():
            with contextlib.suppress(OSError):  # registered already, or closed
                if path.is_socket():
                    self._epoll.register(int(path.name), select.EPOLLIN)
                    n_new += 1
        self._wait_s = SHORTEST_WAIT_S if n_new else min(2 * self._wait_s, LONGEST_WAIT_S)
        self._looked_s = now


@cache
def watch() -> SocketWatch:
    """Return this process's watch."""
    return SocketWatch()
