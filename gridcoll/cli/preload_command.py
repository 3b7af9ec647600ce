"""``gridcoll preload``: the environment variables for programs that are not Python."""

from __future__ import annotations

import shlex

import click

from gridcoll.launch.preload import LIBRARY
from gridcoll.launch.programs import preload_settings


@click.command()
@click.option("--path", "only_path", is_flag=True, help="Print only the library's path.")
def command(only_path: bool) -> None:
    """Print the shell lines that put gridcoll in front of MPI in C, C++ and Fortran programs.

    Use it as eval "$(gridcoll preload)" before srun or mpiexec.
    """
    settings = preload_settings()
    if only_path:
        click.echo(LIBRARY)
        return
    for name, value in settings.items():
        click.echo(f"export {name}={shlex.quote(value)}")
