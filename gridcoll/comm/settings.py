"""Settings of a communicator: keywords override MPI hints, and hints override the environment.

`gridcoll.variables` documents every name. This module also computes the version of gridcoll: ranks
make the same choices only if they run the same version.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from gridcoll import release
from gridcoll.errors import UsageError, nearly
from gridcoll.measure.cache.folder import NOWHERE, Places, find_places
from gridcoll.plan import REGISTRIES
from gridcoll.plan.registry import check_forced
from gridcoll.topology.clustering import DEFAULT_TOLERANCE
from gridcoll.variables import PREFIX, VARIABLES, override

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Settings:
    """The settings, validated."""

    grid_file: str = ""
    """If empty, the grid is measured."""
    places: Places = NOWHERE
    """Where measurements are stored for later jobs."""
    check: bool = False
    force: str = ""
    """``""``, ``"grid"`` or ``"native"``."""
    tolerance: float = DEFAULT_TOLERANCE
    algorithms: Mapping[str, str] = field(default_factory=dict)
    """Forced algorithm by collective."""
    reproducible: bool = False
    """Whether reductions combine in the same order for all plans, roots and grids."""
    learn: bool = True
    """Whether the choices for later calls depend on observed times."""
    log_decisions: bool = False
    """Whether rank 0 logs changes of decisions."""

    def __post_init__(self) -> None:
        if self.force not in ("", "grid", "native"):
            raise UsageError(f"GRIDCOLL_FORCE: must be grid or native, got {self.force!r}")
        if not 0 <= self.tolerance < 10:
            raise UsageError(f"GRIDCOLL_TOLERANCE: must be in [0, 10), got {self.tolerance}")
        for collective, name in self.algorithms.items():
            check_forced(collective, name)

    def text(self) -> str:
        """Return all settings on one line; if ranks differ in it, the job is misconfigured.

        The line tells only whether there is a grid file, and nothing about the cache: only rank 0
        opens them, and their paths differ if sites have different directories.
        """
        forced = " ".join(f"{k}={v}" for k, v in sorted(self.algorithms.items()))
        return (
            f"grid={_given(self.grid_file)}; check={self.check}; force={self.force or 'none'}; "
            f"tolerance={self.tolerance}; reproducible={self.reproducible}; learn={self.learn}; "
            f"algorithms {forced or 'none'}"
        )


def _given(path: str) -> str:
    return "given" if path else "none"


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings in ``environment`` (default ``os.environ``). Raises `UsageError`."""
    env = os.environ if environment is None else environment
    for each in VARIABLES.values():
        if each.flag:
            _flag(env, each.name)
    tolerance = env.get("GRIDCOLL_TOLERANCE", str(DEFAULT_TOLERANCE))
    try:
        parsed = float(tolerance)
    except ValueError:
        raise UsageError(f"GRIDCOLL_TOLERANCE: must be a number, got {tolerance!r}") from None
    return Settings(
        grid_file=env.get("GRIDCOLL_GRID", ""),
        places=find_places(env),
        check=_flag(env, "GRIDCOLL_CHECK"),
        force=env.get("GRIDCOLL_FORCE", ""),
        tolerance=parsed,
        algorithms={
            collective: env[variable]
            for collective in REGISTRIES
            if env.get(variable := f"GRIDCOLL_{collective.upper()}")
        },
        reproducible=_flag(env, "GRIDCOLL_REPRODUCIBLE"),
        learn=_one_of(env, "GRIDCOLL_LEARN", ("on", "off")) != "off",
        log_decisions=_one_of(env, "GRIDCOLL_LOG", ("decisions",)) == "decisions",
    )


def misspelt(environment: Mapping[str, str]) -> str:
    """Return a text about variables that look like misspelt settings; empty if there are none."""
    known = [name.removeprefix(PREFIX) for name in VARIABLES if "<" not in name]
    known += [collective.upper() for collective in REGISTRIES]
    found = []
    for name in sorted(environment):
        bare = name.removeprefix(PREFIX)
        if bare != name and bare not in known:
            near = nearly(bare, known)[:1]
            found += [f"{name} is no setting; {PREFIX}{each} is" for each in near]
    return ", and ".join(found)


def _one_of(env: Mapping[str, str], name: str, known: Sequence[str]) -> str:
    value = env.get(name, "")
    if value and value not in known:
        raise UsageError(f"{name}: must be {' or '.join(known)}, got {value!r}")
    return value


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "0")
    if value not in ("", "0", "1"):
        raise UsageError(f"{name}: must be 0 or 1, got {value!r}")
    return value == "1"


HINT = "gridcoll_"
"""Prefix of our keys in an `MPI.Info`."""

OF_THE_PROCESS = ("engine", "quiet", "stats", "trace")
"""Settings of the whole process, which can be set only in its environment."""

NAMES = {
    name.removeprefix(PREFIX).lower(): variable
    for name, variable in VARIABLES.items()
    if variable.option and "<" not in name
    if name.removeprefix(PREFIX).lower() not in OF_THE_PROCESS
}
"""Settings that each communicator may have, by their names as keywords and hints."""


class Keywords(TypedDict, total=False):
    """Keyword arguments of `GridComm`; each overrides the environment variable of that name.

    ``algorithms`` maps collectives to names, as ``{"bcast": "ecef"}``. ``info`` has hints: the key
    for the setting ``check`` is ``gridcoll_check``, and for the broadcast algorithm
    ``gridcoll_bcast``.
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
    """Return ``environment`` (default ``os.environ``) overridden by hints and ``keywords``.

    Raises `UsageError` for a name that no setting has.
    """
    variables = dict(os.environ if environment is None else environment)
    rest: dict[str, object] = dict(keywords)
    info, algorithms = rest.pop("info", None), rest.pop("algorithms", None) or {}
    if info is not None:
        if not hasattr(info, "Get"):
            raise UsageError(f"info: must be an MPI.Info, got {info!r}")
        variables = override(variables, _hints(info))  # type: ignore[arg-type]
    own: dict[str, str] = {}
    for name, value in rest.items():
        if name not in NAMES:
            known = ", ".join(Keywords.__annotations__)
            raise UsageError(f"GridComm: unknown keyword {name!r}; known are {known}")
        if value is not None:
            own[f"{PREFIX}{name.upper()}"] = _text(name, value)
    if not isinstance(algorithms, Mapping):
        raise UsageError(f"algorithms: must map collectives to names, got {algorithms!r}")
    for collective, algorithm in algorithms.items():
        _check_collective("algorithms", collective)
        own[f"{PREFIX}{collective.upper()}"] = str(algorithm)
    return override(variables, own)


def _hints(info: MPI.Info) -> dict[str, str]:
    found = {}
    for key in info.keys():  # noqa: SIM118 - an Info is not iterable
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
    """Return ``value`` as it would be written in the environment."""
    is_path = isinstance(value, (str, os.PathLike))
    if name in ("cache", "keep") and not is_path:
        raise UsageError(f"{name}: must be a directory or 'off', got {value!r}")
    if isinstance(value, bool):
        no, yes = ("off", "on") if NAMES[name].values == "on|off" else ("0", "1")
        return yes if value else no
    if name == "grid" and not is_path:
        # Its text may be long, as that of a `GridModel`, which has a keyword of its own.
        kind = type(value).__name__
        raise UsageError(f"grid: must be a path or the name of a grid, got a {kind}; see model=")
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


_SUBPACKAGES = ("topology", "model", "schedule", "plan", "engine", "comm")
"""The subpackages whose code decides what a call does, and in which messages."""


def digest_sources(package: str) -> str:
    """Return a digest of all Python sources in `_SUBPACKAGES` of the directory ``package``.

    It takes 3 ms for 163 files.
    """
    digest = 0
    for subpackage in _SUBPACKAGES:
        for folder, subfolders, names in os.walk(Path(package) / subpackage):
            subfolders.sort()
            for name in sorted(names):
                if name.endswith(".py"):
                    with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - fast
                        digest = zlib.crc32(file.read(), zlib.crc32(name.encode(), digest))
    return f"{digest:08x}"


VERSION = f"{release.__version__}, sources {digest_sources(str(Path(__file__).parents[1]))}"
"""Version and digest, on one line. Computed on import, while the files are those that are
imported."""
