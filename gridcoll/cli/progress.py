"""Progress of long work: bars on a terminal; elsewhere a line per stage, printed as it begins."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Stages:
    """Shows progress when called as ``progress(what, done, of)``; a context manager for the work.

    ``counts`` holds the number of steps of each stage. With ``silent``, steps are counted but not
    shown; with ``terminal_only``, they are shown only on a terminal. With ``force_terminal``,
    standard error is taken for a terminal, as when a launcher passes it on to one.
    """

    def __init__(
        self, *, silent: bool = False, terminal_only: bool = False, force_terminal: bool = False
    ) -> None:
        self._console = Console(stderr=True, quiet=silent, force_terminal=force_terminal or None)
        if terminal_only and not self._console.is_terminal:
            self._console.quiet = True
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self.counts: dict[str, int] = {}
        self._began_s = time.monotonic()

    def __enter__(self) -> Stages:
        if self._console.is_terminal and not self._console.quiet:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, what: str, done: int, of: int) -> None:
        new = what not in self.counts
        self.counts[what] = of
        if self._bars is not None:
            if new:
                self._tasks[what] = self._bars.add_task(what, total=of)
            self._bars.update(self._tasks[what], completed=done, total=of)
        elif new:
            after_s = time.monotonic() - self._began_s
            after = f" (after {after_s:.0f} s)" if after_s >= 1 else ""
            self._console.print(f"gridcoll: {what} …{after}", highlight=False)
