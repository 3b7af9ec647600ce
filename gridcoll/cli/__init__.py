"""The commands: one file each, loaded when asked for."""

from __future__ import annotations

import importlib
import os
import sys

import click

from gridcoll.errors import GridcollError

COMMANDS: tuple[str, ...] = ("bench", "hostfile", "select", "study", "testbed")


class _Commands(click.Group):
    """Imports ``gridcoll.cli.NAME`` and takes its ``command``, so that ``run`` starts lean."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gridcoll.cli.{cmd_name}_command")
        command: click.Command = module.command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gridcoll")
def _group() -> None:
    """Grid-aware MPI collectives: measure the network, then run collectives that fit it."""


def main() -> None:
    """Entry point of ``gridcoll`` and ``python -m gridcoll``.

    A `GridcollError` is a message for the user, not a traceback, unless ``GRIDCOLL_DEBUG`` is set.
    """
    try:
        _group(prog_name="gridcoll")
    except GridcollError as error:
        if os.environ.get("GRIDCOLL_DEBUG"):
            raise
        click.echo(f"gridcoll: {type(error).__name__}: {error}", err=True)
        sys.exit(2)
