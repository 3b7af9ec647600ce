"""Every environment variable gridcoll reads, in one place. Needs neither MPI nor NumPy."""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "GRIDCOLL_"


@dataclass(frozen=True)
class Variable:
    """One setting.

    ``values`` is what it may hold, for people; ``option`` says whether ``gridcoll run`` has an
    option of that name.
    """

    name: str
    values: str
    good_for: str
    option: bool = True

    @property
    def flag(self) -> bool:
        """Whether it is on or off, so that its option takes no value."""
        return self.values == "0|1"


_ENTRIES = (
    Variable(
        "GRIDCOLL_GRID", "FILE", "declared grid (.toml) or measured model (.json): do not measure"
    ),
    Variable(
        "GRIDCOLL_KEEP",
        "PATH",
        "measured model (.json), or a directory of them: measure once",
    ),
    Variable(
        "GRIDCOLL_CHECK",
        "0|1",
        "compare operation, root, bytes and types across ranks before each call",
    ),
    Variable("GRIDCOLL_FORCE", "grid|native", "never the MPI library's own collectives, or always"),
    Variable("GRIDCOLL_TOLERANCE", "ρ", "how unlike latencies in one cluster may be; 0.3 if unset"),
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
    Variable(
        "GRIDCOLL_ENGINE", "python|compiled", "which engine runs plans; compiled where it was built"
    ),
    Variable(
        "GRIDCOLL_VENVS", "DIRECTORY", "testbed: virtual environments by MPI name", option=False
    ),
    Variable(
        "GRIDCOLL_DEBUG", "0|1", "commands: a traceback for users' mistakes, too", option=False
    ),
)

VARIABLES: dict[str, Variable] = {entry.name: entry for entry in _ENTRIES}
