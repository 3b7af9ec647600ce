"""Settings: of one communicator keywords over MPI's hints over the environment.

`gridcoll.variables` documents every name. And which gridcoll this is: only ranks that run the same
one choose alike.
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
from gridcoll.variables import PREFIX, VARIABLES, over

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class Settings:
    """What the environment says; validated."""

    grid_file: str = ""
    """Empty: measure."""
    places: Places = NOWHERE
    """Where what is measured is kept for later jobs."""
    check: bool = False
    force: str = ""
    """``""``, ``"grid"`` or ``"native"``."""
    tolerance: float = DEFAULT_TOLERANCE
    algorithms: Mapping[str, str] = field(default_factory=dict)
    """Forced algorithm by collective."""
    reproducible: bool = False
    """Reductions combine in one order, whatever plan, root and grid."""
    learn: bool = True
    """Whether calls change what later ones are done by."""
    log_decisions: bool = False
    """Whether rank 0 says what changed."""

    def __post_init__(self) -> None:
        if self.force not in ("", "grid", "native"):
            raise UsageError(f"GRIDCOLL_FORCE: must be grid or native, got {self.force!r}")
        if not 0 <= self.tolerance < 10:
            raise UsageError(f"GRIDCOLL_TOLERANCE: must be in [0, 10), got {self.tolerance}")
        for collective, name in self.algorithms.items():
            check_forced(collective, name)

    def text(self) -> str:
        """All settings on one line: equal on all ranks, or the job is misconfigured.

        Of a file only whether there is any, and nothing of the cache: rank 0 alone opens them, and
        where sites have them in directories of their own, their paths differ.
        """
        forced = " ".join(f"{k}={v}" for k, v in sorted(self.algorithms.items()))
        return (
            f"grid={_given(self.grid_file)} check={self.check} "
            f"force={self.force} tolerance={self.tolerance} "
            f"reproducible={self.reproducible} learn={self.learn} {forced}"
        )


def _given(path: str) -> str:
    return "given" if path else "none"


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """The settings in ``environment`` (default ``os.environ``). Raises `UsageError`."""
    env = os.environ if environment is None else environment
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
    """Which variables are called nearly like a setting, and are none; empty if there are none."""
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
            known = ", ".join(Keywords.__annotations__)
            raise UsageError(f"GridComm: unknown keyword {name!r}; known are {known}")
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


_ROOMS = ("topology", "model", "schedule", "plan", "engine", "comm")
"""Whose code decides what a call does, and in which messages."""


def digest_sources(package: str) -> str:
    """Of all Python sources in `_ROOMS` of the directory ``package``: 163 files in 3 ms."""
    digest = 0
    for room in _ROOMS:
        for place, rooms, names in os.walk(Path(package) / room):
            rooms.sort()
            for name in sorted(names):
                if name.endswith(".py"):
                    with open(f"{place}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - faster
                        digest = zlib.crc32(file.read(), zlib.crc32(name.encode(), digest))
    return f"{digest:08x}"


VERSION = f"{release.__version__}, sources {digest_sources(str(Path(__file__).parents[1]))}"
"""On one line. Read when gridcoll is imported, while its sources are those that are imported."""
