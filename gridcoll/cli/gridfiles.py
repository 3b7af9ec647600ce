"""Where commands find the grid a user names."""

from __future__ import annotations

from pathlib import Path

from gridcoll.errors import UsageError


def _folders() -> tuple[Path, ...]:
    package = Path(__file__).resolve().parent.parent
    return Path("hostfiles"), package.parent / "hostfiles", package / "hostfiles"


def known_grids() -> list[str]:
    """The names of the grids in ``hostfiles/``: here, beside the package, or in it if installed."""
    return sorted({path.stem for folder in _folders() for path in folder.glob("*.toml")})


def find_gridfile(name: str) -> Path:
    """The grid file at path ``name``, else the named grid. Raises `UsageError`, listing those."""
    if Path(name).is_file():
        return Path(name)
    for folder in _folders():
        path = folder / f"{name}.toml"
        if path.is_file():
            return path
    raise UsageError(
        f"grid {name!r}: no such file, and no named grid; known are "
        f"{', '.join(known_grids()) or 'none'}"
    )
