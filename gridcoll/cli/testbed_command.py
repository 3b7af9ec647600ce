"""``gridcoll testbed``: a real multi-host grid on this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from gridcoll.errors import UsageError


def find_gridfile(name: str) -> Path:
    """The grid file at path ``name``, else the named grid of ``hostfiles/``."""
    if Path(name).is_file():
        return Path(name)
    package = Path(__file__).resolve().parent.parent
    folders = (Path("hostfiles"), package.parent / "hostfiles", package / "hostfiles")
    for folder in folders:
        path = folder / f"{name}.toml"
        if path.is_file():
            return path
    known = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    raise UsageError(
        f"grid {name!r}: no such file, and no named grid; known are {', '.join(known) or 'none'}"
    )


@click.group()
def command() -> None:
    """Emulate a grid on this machine: network namespaces, shaped links, real MPI (needs root)."""


@command.command()
@click.argument("grid")
@click.option("--mpi", help="mpich, openmpi or impi; default: the current environment's")
@click.option("-n", "--ranks", type=int, help="ranks to start; default: every slot")
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND...")
def run(grid: str, mpi: str | None, ranks: int | None, argv: tuple[str, ...]) -> None:
    """Bring GRID up, run COMMAND with one rank per host, take everything down."""
    from gridcoll.testbed.run import Interrupted, Job, interruptible, run_job
    from gridcoll.testbed.testbed import Testbed

    try:
        with interruptible(), Testbed.up(find_gridfile(grid)) as testbed:
            code = run_job(Job(testbed, mpi, ranks), argv)
    except Interrupted as interrupted:
        code = 128 + interrupted.number
    sys.exit(code)
