"""Settings of one communicator: keywords over MPI's hints over the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

from gridcoll.errors import UsageError
from gridcoll.plan import REGISTRIES
from gridcoll.variables import PREFIX, VARIABLES, over

if TYPE_CHECKING:
    from mpi4py import MPI

HINT = "gridcoll_"
"""Keys of an `MPI.Info` that are ours begin so."""

OF_THE_PROCESS = ("engine", "quiet", "stats", "trace")
"""Settings that hold for all communicators of a process, and can be set in its environment only."""

NAMES = {
    name.removeprefix(PREFIX).lower(): variable
    for name, variable in VARIABLES.items()
    if variable.option and "<" not in name
    if name.removeprefix(PREFIX).lower() not in OF_THE_PROCESS
}
"""Settings that a communicator may have of its own, as keywords and hints call them."""


class Keywords(TypedDict, total=False):
    """What `GridComm` takes by keyword; each is the environment variable of that name.

    ``algorithms`` maps collectives to names, as ``{"bcast": "ecef"}``. ``info`` has hints: of the
    setting ``check`` the key is ``gridcoll_check``, of an algorithm ``gridcoll_bcast``.
    """

    grid: str | os.PathLike[str]
    cache: str | os.PathLike[str]
    keep: str | os.PathLike[str]
    check: bool
    force: str
    tolerance: float
    reproducible: bool
    learn: bool
    log: str
    algorithms: Mapping[str, str]
    info: MPI.Info


def environment_with(
    keywords: Keywords, environment: Mapping[str, str] | None = None
) -> dict[str, str]:
    """``environment`` (default ``os.environ``) with what hints and ``keywords`` say instead.

    Raises `UsageError` for a name that no setting has.
    """
    said = dict(os.environ if environment is None else environment)
    rest: dict[str, object] = dict(keywords)
    info, algorithms = rest.pop("info", None), rest.pop("algorithms", None) or {}
    if info is not None:
        said = over(said, _hints(info))  # type: ignore[arg-type]
    own: dict[str, str] = {}
    for name, value in rest.items():
        if name not in NAMES:
            raise UsageError(f"GridComm: unknown keyword {name!r}; known are {', '.join(NAMES)}")
        if value is not None:
            own[f"{PREFIX}{name.upper()}"] = _text(name, value)
    if not isinstance(algorithms, Mapping):
        raise UsageError(f"algorithms: must map collectives to names, got {algorithms!r}")
    for collective, algorithm in algorithms.items():
        _check_collective("algorithms", collective)
        own[f"{PREFIX}{collective.upper()}"] = str(algorithm)
    return over(said, own)


def _hints(info: MPI.Info) -> dict[str, str]:
    found = {}
    for key in info.keys():  # noqa: SIM118 - it is no mapping without
        if not key.startswith(HINT):
            continue
        name = key.removeprefix(HINT)
        if name not in NAMES:
            _check_collective("hint", name)
        found[f"{PREFIX}{name.upper()}"] = info.Get(key) or ""
    return found


def _check_collective(place: str, name: str) -> None:
    if name not in REGISTRIES:
        known = ", ".join([*NAMES, *REGISTRIES] if place == "hint" else REGISTRIES)
        raise UsageError(f"{place} {name!r}: known are {known}")


def _text(name: str, value: object) -> str:
    """As the environment has ``value``."""
    if isinstance(value, bool):
        no, yes = ("off", "on") if NAMES[name].values == "on|off" else ("0", "1")
        return yes if value else no
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
