"""All environment variables that gridcoll reads. This module needs neither MPI nor NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

PREFIX = "GRIDCOLL_"


@dataclass(frozen=True)
class Variable:
    """An environment variable.

    ``values`` describes its values to users; ``option`` says whether ``gridcoll run`` has an option
    of that name.
    """

    name: str
    values: str
    good_for: str
    option: bool = True

    @property
    def flag(self) -> bool:
        """Whether its value is only on or off, so that its option takes no value."""
        return self.values == "0|1"


_ENTRIES = (
    Variable(
        "GRIDCOLL_GRID",
        "FILE",
        "declared grid (.toml) or measured model (.json): use it instead of measuring",
    ),
    Variable(
        "GRIDCOLL_CACHE",
        "DIR|off",
        "where to keep what is known about hosts and links; default: ~/.cache/gridcoll",
    ),
    Variable("GRIDCOLL_KEEP", "DIR|off", "the same as GRIDCOLL_CACHE"),
    Variable(
        "GRIDCOLL_SITE_CACHE",
        "DIR",
        "a second cache, provided by an administrator; it is only read",
        option=False,
    ),
    Variable(
        "GRIDCOLL_QUIET",
        "0|1",
        "print nothing at the start; GRIDCOLL_QUIET=0: print even without a terminal",
    ),
    Variable(
        "GRIDCOLL_CHECK",
        "0|1",
        "compare operation, root, bytes and types across ranks before each call",
    ),
    Variable(
        "GRIDCOLL_FORCE", "grid|native", "never use the MPI library's own collectives, or always"
    ),
    Variable(
        "GRIDCOLL_TOLERANCE", "ρ", "how much latencies within a cluster may differ; default: 0.3"
    ),
    Variable(
        "GRIDCOLL_<COLLECTIVE>",
        "NAME",
        "use this algorithm, as in GRIDCOLL_BCAST=ecef-la-max-t or GRIDCOLL_ALLTOALL=native-v",
    ),
    Variable(
        "GRIDCOLL_REPRODUCIBLE",
        "0|1",
        "floating-point reductions with the same bits from every plan, root and grid",
    ),
    Variable("GRIDCOLL_LEARN", "on|off", "whether the times of calls may change later decisions"),
    Variable("GRIDCOLL_LOG", "decisions", "rank 0 prints which decisions change, when and why"),
    Variable(
        "GRIDCOLL_TRACE",
        "DIR",
        "where ranks write what they decided and sent, for gridcoll report DIR",
    ),
    Variable(
        "GRIDCOLL_ENGINE",
        "python|compiled",
        "which engine runs plans; default: compiled, if it was built",
    ),
    Variable(
        "GRIDCOLL_STATS",
        "0|1",
        "programs that are not Python: print at the end how many calls ran as plans",
    ),
    Variable(
        "GRIDCOLL_VENVS", "DIRECTORY", "testbed: virtual environments by MPI name", option=False
    ),
    Variable(
        "GRIDCOLL_LIBPYTHON",
        "FILE",
        "set by gridcoll run: Python's shared library, for programs that are not Python",
        option=False,
    ),
    Variable(
        "GRIDCOLL_PYTHON",
        "FILE",
        "set by gridcoll run: the Python whose packages such programs use",
        option=False,
    ),
    Variable(
        "GRIDCOLL_PRELOAD_LATER",
        "0|1",
        "set by gridcoll run --preload: Python tells the library when to start",
        option=False,
    ),
    Variable(
        "GRIDCOLL_DEBUG", "0|1", "commands: print a traceback for users' mistakes", option=False
    ),
)

VARIABLES: dict[str, Variable] = {entry.name: entry for entry in _ENTRIES}


def over(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """Return the settings ``lower``, replaced by those in ``upper``.

    ``GRIDCOLL_KEEP`` is another name of ``GRIDCOLL_CACHE``, so either replaces both.
    """
    merged = dict(lower)
    names = ("GRIDCOLL_CACHE", "GRIDCOLL_KEEP")
    if any(name in upper for name in names):
        for name in names:
            merged.pop(name, None)
    return merged | dict(upper)
