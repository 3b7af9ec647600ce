"""Settings from the environment; `gridcoll.variables` documents every name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gridcoll.errors import UsageError
from gridcoll.measure.cache.folder import NOWHERE, Places, find_places
from gridcoll.plan import REGISTRIES
from gridcoll.plan.registry import check_forced
from gridcoll.topology.clustering import DEFAULT_TOLERANCE


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
