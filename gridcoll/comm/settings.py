"""Settings from the environment; `gridcoll.variables` documents every name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from gridcoll.errors import UsageError
from gridcoll.plan import REGISTRIES
from gridcoll.plan.registry import check_forced
from gridcoll.topology.clustering import DEFAULT_TOLERANCE


@dataclass(frozen=True)
class Settings:
    """What the environment says; validated.

    Attributes
    ----------
    grid_file : str
        Empty: measure.
    keep : str
        Where what is measured is kept, a file or a directory with one per set of hosts; read
        instead of measuring where it was kept already.
    check : bool
    force : str
        ``""``, ``"grid"`` or ``"native"``.
    tolerance : float
    tolerance_is_set : bool
        Whether the environment says so; else a model that was measured with another is as good.
    algorithms : mapping of str to str
        Forced algorithm by collective.
    reproducible : bool
        Reductions combine in one order, whatever plan, root and grid.
    """

    grid_file: str = ""
    keep: str = ""
    check: bool = False
    force: str = ""
    tolerance: float = DEFAULT_TOLERANCE
    algorithms: Mapping[str, str] = field(default_factory=dict)
    reproducible: bool = False
    tolerance_is_set: bool = False

    def __post_init__(self) -> None:
        if self.grid_file and self.keep:
            raise UsageError(
                "GRIDCOLL_KEEP: not beside GRIDCOLL_GRID, which says that nothing is measured; got "
                f"{self.keep!r} and {self.grid_file!r}"
            )
        if self.keep.endswith(".toml"):
            raise UsageError(
                "GRIDCOLL_KEEP: .toml files are declared grids; a model's ends in .json, "
                f"got {self.keep!r}"
            )
        if self.force not in ("", "grid", "native"):
            raise UsageError(f"GRIDCOLL_FORCE: must be grid or native, got {self.force!r}")
        if not 0 <= self.tolerance < 10:
            raise UsageError(f"GRIDCOLL_TOLERANCE: must be in [0, 10), got {self.tolerance}")
        for collective, name in self.algorithms.items():
            check_forced(collective, name)

    def text(self) -> str:
        """All settings on one line: equal on all ranks, or the job is misconfigured.

        Of files only whether there are any: rank 0 alone opens them, and where sites have them in
        directories of their own, their paths differ.
        """
        forced = " ".join(f"{k}={v}" for k, v in sorted(self.algorithms.items()))
        return (
            f"grid={_given(self.grid_file)} keep={_given(self.keep)} check={self.check} "
            f"force={self.force} tolerance={self.tolerance} set={self.tolerance_is_set} "
            f"reproducible={self.reproducible} {forced}"
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
        keep=env.get("GRIDCOLL_KEEP", ""),
        check=_flag(env, "GRIDCOLL_CHECK"),
        force=env.get("GRIDCOLL_FORCE", ""),
        tolerance=parsed,
        algorithms={
            collective: env[variable]
            for collective in REGISTRIES
            if env.get(variable := f"GRIDCOLL_{collective.upper()}")
        },
        reproducible=_flag(env, "GRIDCOLL_REPRODUCIBLE"),
        tolerance_is_set="GRIDCOLL_TOLERANCE" in env,
    )


def _flag(env: Mapping[str, str], name: str) -> bool:
    value = env.get(name, "0")
    if value not in ("", "0", "1"):
        raise UsageError(f"{name}: must be 0 or 1, got {value!r}")
    return value == "1"
