"""``gridcoll run`` as an entry in the list of commands; `gridcoll.cli.main` runs it itself."""

from __future__ import annotations

import click

from gridcoll.cli.completion import RunCommand, value_or_file
from gridcoll.cli.run_options import prepare_run


@click.command(
    cls=RunCommand,
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, shell_complete=value_or_file)
def command(argv: tuple[str, ...]) -> None:
    """Run an unmodified MPI program with grid-aware collectives."""
    prepare_run(argv)()
