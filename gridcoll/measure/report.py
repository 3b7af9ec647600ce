"""What the user sees at the start of a job: one line, and progress bars if it takes long."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from gridcoll.measure.clusters import Progress, silent

_log = logging.getLogger("gridcoll")

LONG_S = 2.0
"""Seconds after which progress is shown."""

LAUNCHERS = ("mpiexec", "mpirun", "prterun", "orterun", "hydra_")
"""Prefixes of the names of launchers, which stand between a rank and the terminal."""


_open_bars: list[Callable[[], AbstractContextManager[Progress]]] = []


def show_progress_with(open_bars: Callable[[], AbstractContextManager[Progress]]) -> None:
    """Show progress with ``open_bars()``. Without this call, as in a library, none is shown."""
    _open_bars[:] = [open_bars]


class Report:
    """Writes lines and progress on one rank; see `speaks`."""

    def __init__(self, on_this_rank: bool) -> None:
        self._speaks = on_this_rank and speaks()
        self._may_warn = on_this_rank and os.environ.get("GRIDCOLL_QUIET") != "1"

    def say(self, line: str) -> None:
        """Write ``line`` on a terminal; elsewhere, log it at level INFO."""
        _log.log(logging.WARNING if self._speaks else logging.INFO, "gridcoll: %s", line)

    def warn(self, line: str) -> None:
        """Write ``line``, unless it is empty, or ``GRIDCOLL_QUIET`` is 1."""
        if line:
            _log.log(logging.WARNING if self._may_warn else logging.INFO, "gridcoll: %s", line)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """Give a function to call with progress, which is shown on a terminal after `LONG_S`."""
        if not (self._speaks and _open_bars):
            yield silent
            return
        began_s = time.monotonic()
        shown: list[Progress] = [silent]
        with ExitStack() as stack:

            def progress(what: str, done: int, of: int) -> None:
                if shown[0] is silent and time.monotonic() - began_s > LONG_S:
                    shown[0] = stack.enter_context(_open_bars[0]())
                shown[0](what, done, of)

            yield progress


def speaks() -> bool:
    """Whether to show anything. ``GRIDCOLL_QUIET``: 1 no, 0 yes, otherwise only on a terminal."""
    quiet = os.environ.get("GRIDCOLL_QUIET", "")
    return quiet == "0" or (quiet != "1" and is_on_terminal())


def is_on_terminal() -> bool:
    """Whether our standard error reaches a terminal.

    A launcher of MPI jobs reads it through a pipe. Then the launcher's own standard error decides,
    if it runs on our host.
    """
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    pid, is_launched = os.getpid(), False
    while pid > 1:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
            name = stat[stat.index("(") + 1 : stat.rindex(")")]
            parent = int(stat[stat.rindex(")") + 2 :].split()[1])
            is_launcher = name.startswith(LAUNCHERS)
            if is_launched and not is_launcher:
                return False
            is_launched |= is_launcher
            goes_to = str(Path(f"/proc/{pid}/fd/2").readlink()) if is_launcher else "pipe:"
        except (OSError, ValueError, IndexError):
            return False
        if not goes_to.startswith("pipe:"):
            return goes_to.startswith(("/dev/pts/", "/dev/tty"))
        pid = parent
    return False
