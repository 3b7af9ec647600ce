"""Finding the grid file for a path or a name given by the user."""

from __future__ import annotations

from pathlib import Path

from gridcoll.errors import UsageError, nearly


def _folders() -> tuple[Path, ...]:
    package = Path(__file__).resolve().parent
    return Path("hostfiles"), package.parent / "hostfiles", package / "hostfiles"


def known_grids() -> list[str]:
    """Return the names of the grids in ``hostfiles/``.

    This folder is looked for in the working directory, beside the package and, for an installed
    package, inside it.
    """
    return sorted({path.stem for folder in _folders() for path in folder.glob("*.toml")})


def find_gridfile(name: str) -> Path:
    """Return the grid file at path ``name``, or else that of the grid named so.

    Raises `UsageError`, which lists the known grids, if there is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    for folder in _folders():
        named = folder / f"{name}.toml"
        if named.is_file():
            return named
    if path.is_dir():
        raise UsageError(f"grid {name!r}: a directory; gridcoll report shows what a job left in it")
    known = known_grids()
    near = nearly(path.stem, known)
    hint = (
        f"{', '.join(near)} is one" if len(near) == 1 else f"known are {', '.join(near or known)}"
    )
    raise UsageError(
        f"grid {name!r}: no such file, and no named grid; {hint if known else 'known are none'}"
    )
