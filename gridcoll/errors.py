"""All exceptions that gridcoll raises.

Messages name the place, the rule and the value, in that order.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LEAST_SIMILARITY = 0.8
"""Names of at least this similarity (`SequenceMatcher.ratio`) differ by one or two typing errors.
"""


def nearly(name: str, known: Iterable[str]) -> list[str]:
    """Return the ``known`` names that may have been meant by ``name``, the most similar first."""
    return difflib.get_close_matches(name, list(known), cutoff=LEAST_SIMILARITY)


def listed(name: str, known: Iterable[str], prefix: str = "") -> str:
    """Return the ``known`` names as a list, and the one that may have been meant by ``name``.

    Each is shown with a ``prefix``, which does not count as a similarity.
    """
    names = list(known)
    near = nearly(name, names)[:1]
    shown = ", ".join(f"{prefix}{each}" for each in names)
    return shown + "".join(f"; did you mean {prefix}{each}?" for each in near)


class GridcollError(Exception):
    """Base of every error raised by gridcoll."""


class UsageError(GridcollError, ValueError):
    """An argument is invalid, such as an unknown name or a value out of range."""


class FileError(GridcollError, ValueError):
    """A file cannot be read or written, or its content is inconsistent or does not fit the job."""


class DisagreementError(GridcollError, RuntimeError):
    """Ranks of one communicator disagree; raised on all of its ranks."""


class PlanError(GridcollError, RuntimeError):
    """A plan is wrong. This is a bug in gridcoll that users should never see."""


class TestbedError(GridcollError, RuntimeError):
    """The emulated grid could not be started or reached, or did not behave as configured."""

    __test__ = False  # the name starts with "Test", and pytest collects by name
