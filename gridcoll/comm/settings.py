"""Settings of a communicator: keywords override MPI hints, and hints override the environment.

`gridcoll.variables` documents every name. This module also computes the version of gridcoll: ranks
make the same choices only if they run the same version.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from msgspec import Struct, field

from gridcoll import release
from gridcoll.errors import UsageError, listed, nearly
from gridcoll.measure.cache.folder import NOWHERE, Places, find_places
from gridcoll.plan import REGISTRIES
from gridcoll.plan.registry import check_forced
from gridcoll.topology.clustering import DEFAULT_TOLERANCE
from gridcoll.variables import PREFIX, VARIABLES, Written, name_of, override

if TYPE_CHECKING:
    from mpi4py import MPI


class Settings(Struct, frozen=True):
    """The settings; `read_settings` validates them."""

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
    """Return the settings in ``environment`` (default ``os.environ``).

    Raises `UsageError`, which names the variable, or what the user wrote instead (see `Written`).
    """
    env = os.environ if environment is None else environment
    for each in VARIABLES.values():
        if each.flag:
            _flag(env, each.name)
    return Settings(
        grid_file=str(env.get("GRIDCOLL_GRID", "")),
        places=find_places(env),
        check=_flag(env, "GRIDCOLL_CHECK"),
        force=_one_of(env, "GRIDCOLL_FORCE", ("grid", "native")),
        tolerance=_tolerance(env),
        algorithms=_algorithms(env),
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
    value = str(env.get(name, ""))
    if value and value not in known:
        raise UsageError(f"{name_of(name, env)}: must be {' or '.join(known)}, got {value!r}")
    return value


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "0")
    if value not in ("", "0", "1"):
        raise UsageError(f"{name_of(name, env)}: must be 0 or 1, got {value!r}")
    return value == "1"


def _tolerance(env: Mapping[str, str]) -> float:
    name, text = name_of("GRIDCOLL_TOLERANCE", env), env.get("GRIDCOLL_TOLERANCE")
    try:
        tolerance = DEFAULT_TOLERANCE if text is None else float(text)
    except ValueError:
        raise UsageError(f"{name}: must be a number, got {text!r}") from None
    if not 0 <= tolerance < 10:
        raise UsageError(f"{name}: must be in [0, 10), got {tolerance}")
    return tolerance


def _algorithms(env: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for collective in REGISTRIES:
        variable = f"{PREFIX}{collective.upper()}"
        if name := env.get(variable):
            try:
                check_forced(collective, name)
            except UsageError as error:
                raise UsageError(f"{name_of(variable, env)}: {error}") from None
            found[collective] = str(name)
    return found


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
            known = listed(name, Keywords.__annotations__)
            raise UsageError(f"GridComm: unknown keyword {name!r}; known are {known}")
        if value is not None:
            own[f"{PREFIX}{name.upper()}"] = Written(_text(name, value), name)
    if not isinstance(algorithms, Mapping):
        raise UsageError(f"algorithms: must map collectives to names, got {algorithms!r}")
    for collective, algorithm in algorithms.items():
        if collective not in REGISTRIES:
            known = listed(str(collective), REGISTRIES)
            raise UsageError(f"algorithms {collective!r}: known are {known}")
        own[f"{PREFIX}{collective.upper()}"] = Written(str(algorithm), "algorithms")
    return override(variables, own)


def _hints(info: MPI.Info) -> dict[str, str]:
    found: dict[str, str] = {}
    for key in info.keys():  # noqa: SIM118 - an Info is not iterable
        if not key.startswith(HINT):
            continue
        name = key.removeprefix(HINT)
        if name not in NAMES and name not in REGISTRIES:
            known = listed(name, (*NAMES, *REGISTRIES), HINT)
            raise UsageError(f"hint {key!r}: known are {known}")
        found[f"{PREFIX}{name.upper()}"] = Written(info.Get(key) or "", key)
    return found


_SWITCHES = {"0|1": ("0", "1"), "on|off": ("off", "on")}
"""By the values of settings that are on or off: the texts for False and True."""


def _text(name: str, value: object) -> str:
    """Return ``value`` as it would be written in the environment."""
    is_path = isinstance(value, (str, os.PathLike))
    if name in ("cache", "keep") and not is_path:
        raise UsageError(f"{name}: must be a directory or 'off', got {value!r}")
    switch = _SWITCHES.get(NAMES[name].values)
    if switch and isinstance(value, bool):
        return switch[value]
    if switch and str(value) not in ("", *switch):
        raise UsageError(f"{name}: must be True or False, got {value!r}")
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
