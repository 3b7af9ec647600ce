"""The commands, one file each; a command is loaded when it is used."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from gridcoll.cli.voice import report
from gridcoll.errors import GridcollError

T = TypeVar("T")


def main() -> None:
    """Entry point of ``gridcoll`` and ``python -m gridcoll``.

    A `GridcollError` is printed as a message, without a traceback unless ``GRIDCOLL_DEBUG`` is set.
    """
    if sys.argv[1:2] == ["run"]:
        # Do not import click or other libraries here: the application decides what is imported,
        # and when. Errors of the application itself are not reported by gridcoll.
        from gridcoll.cli.run_options import prepare_run

        start = _report_errors(lambda: prepare_run(sys.argv[2:]))
        start()
    else:
        from gridcoll.cli.group import group

        _report_errors(lambda: group(prog_name="gridcoll"))


def _report_errors(step: Callable[[], T]) -> T:
    try:
        return step()
    except GridcollError as error:
        report(error)
        sys.exit(2)
