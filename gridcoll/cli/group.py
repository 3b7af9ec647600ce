"""The group of all commands; each is loaded when it is used."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import click

_SUFFIX = "_command"
COMMANDS: tuple[str, ...] = tuple(
    sorted(
        module.name.removesuffix(_SUFFIX)
        for module in pkgutil.iter_modules([str(Path(__file__).parent)])
        if module.name.endswith(_SUFFIX)
    )
)


class _Commands(click.Group):
    """Takes a command from the attribute ``command`` of ``gridcoll.cli.NAME_command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"gridcoll.cli.{cmd_name}{_SUFFIX}")
        command: click.Command = module.command
        return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="gridcoll")
def group() -> None:
    """Grid-aware MPI collectives: measure the network, then run collectives that fit it."""
