"""What tells a waiting rank that a message may have come: the sockets of its process."""

from __future__ import annotations

import contextlib
import select
import time
from functools import cache
from pathlib import Path

OPEN_FILES = Path("/proc/self/fd")

FIRST_LOOK_AGAIN_S = 20e-3
LAST_LOOK_AGAIN_S = 1.0


class SocketWatch:
    """A descriptor that is readable while any socket that was open at the last look is.

    Nothing is read from the sockets. They are the MPI library's or others': a readable one
    says that a message may have come, no more. Where messages come another way, the descriptor is
    never readable for them. Without epoll, `descriptor` is -1.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll() if hasattr(select, "epoll") and OPEN_FILES.exists() else None
        self.descriptor = -1 if self._epoll is None else self._epoll.fileno()
        self._looked_s = 0.0
        self._pause_s = FIRST_LOOK_AGAIN_S

    def look(self) -> None:
        """Take in sockets opened since the last look; less and less often while there are none."""
        now = time.monotonic()
        if self._epoll is None or now - self._looked_s < self._pause_s:
            return
        n_new = 0
        for path in OPEN_FILES.iterdir():
            with contextlib.suppress(OSError):  # known already, or gone
                if path.is_socket():
                    self._epoll.register(int(path.name), select.EPOLLIN)
                    n_new += 1
        self._pause_s = FIRST_LOOK_AGAIN_S if n_new else min(2 * self._pause_s, LAST_LOOK_AGAIN_S)
        self._looked_s = now


@cache
def watch() -> SocketWatch:
    """This process's."""
    return SocketWatch()
