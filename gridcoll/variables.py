"""All environment variables that gridcoll reads. This module needs neither MPI nor NumPy."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

PREFIX = "GRIDCOLL_"


class Variable(Struct, frozen=True):
    """An environment variable.

    ``values`` describes its possible values, for people. ``option`` says whether ``gridcoll run``
    has an option of that name.
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
        "GRIDCOLL_GRID", "FILE", "declared grid (.toml) or measured model (.json): do not measure"
    ),
    Variable(
        "GRIDCOLL_CACHE",
        "DIR|off",
        "directory for measurements of hosts and links; ~/.cache/gridcoll if unset",
    ),
    Variable("GRIDCOLL_KEEP", "DIR|off", "the same as GRIDCOLL_CACHE"),
    Variable(
        "GRIDCOLL_SITE_CACHE",
        "DIR",
        "a second cache, which is only read: one that an administrator provides",
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
    Variable("GRIDCOLL_FORCE", "grid|native", "never the MPI library's own collectives, or always"),
    Variable("GRIDCOLL_TOLERANCE", "ρ", "how much latencies in a cluster may differ; 0.3 if unset"),
    Variable(
        "GRIDCOLL_<COLLECTIVE>",
        "NAME",
        "take this algorithm, as GRIDCOLL_BCAST=ecef-la-max-t or GRIDCOLL_ALLTOALL=native-v",
    ),
    Variable(
        "GRIDCOLL_REPRODUCIBLE",
        "0|1",
        "floating-point reductions with the same bits from every plan, root and grid",
    ),
    Variable("GRIDCOLL_LEARN", "on|off", "whether gridcoll learns from calls for later calls"),
    Variable("GRIDCOLL_LOG", "decisions", "rank 0 logs which decisions change, when and why"),
    Variable(
        "GRIDCOLL_TRACE",
        "DIR",
        "ranks write there what they decided and sent, for gridcoll report DIR",
    ),
    Variable(
        "GRIDCOLL_ENGINE", "python|compiled", "which engine runs plans; compiled where it was built"
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
        "set by gridcoll run: Python's library, for programs that are not Python",
        option=False,
    ),
    Variable(
        "GRIDCOLL_PYTHON",
        "FILE",
        "set by gridcoll run: the Python whose packages they use",
        option=False,
    ),
    Variable(
        "GRIDCOLL_PRELOAD_LATER",
        "0|1",
        "set by gridcoll run --preload: Python says when the library is to start",
        option=False,
    ),
    Variable(
        "GRIDCOLL_DEBUG", "0|1", "commands show a traceback for users' mistakes, too", option=False
    ),
)

VARIABLES: dict[str, Variable] = {entry.name: entry for entry in _ENTRIES}


class Written(str):
    """A value of a setting that knows the ``name`` under which the user wrote it.

    That is the name of a keyword, of a hint or of an option, for messages about the value.
    """

    name: str

    def __new__(cls, value: str, name: str) -> Written:
        new = super().__new__(cls, value)
        new.name = name
        return new


def name_of(variable: str, environment: Mapping[str, str]) -> str:
    """Return the name under which the user wrote the value of ``variable``."""
    value = environment.get(variable)
    return value.name if isinstance(value, Written) else variable


def override(lower: Mapping[str, str], upper: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of ``lower``, replaced by those of ``upper`` where both have one.

    ``GRIDCOLL_KEEP`` is another name of ``GRIDCOLL_CACHE``, so either of them replaces both.
    """
    merged = dict(lower)
    names = ("GRIDCOLL_CACHE", "GRIDCOLL_KEEP")
    if any(name in upper for name in names):
        for name in names:
            merged.pop(name, None)
    return merged | dict(upper)
