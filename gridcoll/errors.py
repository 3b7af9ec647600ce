"""Every error gridcoll raises, by whose mistake it is.

Messages name the place, the rule and the value, in that order.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

NEARLY = 0.8
"""Names with so large a part in common (`SequenceMatcher.ratio`) differ by a slip or two."""


def nearly(name: str, known: Iterable[str]) -> list[str]:
    """Those of the ``known`` names that ``name`` may have been meant for; the nearest first."""
    return difflib.get_close_matches(name, list(known), cutoff=NEARLY)


class GridcollError(Exception):
    """Base of every error raised by gridcoll."""


class UsageError(GridcollError, ValueError):
    """An invalid argument: an unknown name, a value out of range."""


class FileError(GridcollError, ValueError):
    """A file cannot be read, or what it says does not hold together or does not fit the job."""


class DisagreementError(GridcollError, RuntimeError):
    """Ranks of one communicator do not agree; raised on every rank alike."""


class PlanError(GridcollError, RuntimeError):
    """A plan is wrong. Users should never see this: it is a fault of gridcoll."""


class TestbedError(GridcollError, RuntimeError):
    """The emulated grid could not be brought up, reached, or did not behave as configured."""

    __test__ = False  # the name starts with "Test", and pytest collects by name
