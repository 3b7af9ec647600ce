"""Options that several commands share.

An option name has one meaning in all commands, and its help begins with the same words in each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from gridcoll.cli.completion import algorithms

Command = Callable[..., None]

GRID = "declared grid (.toml) or measured model (.json), or the name of one"
SIZES = "bytes, for example 8,64K,1M"

ALGORITHM = click.option(
    "--algorithm",
    default="",
    shell_complete=algorithms,
    help="use this algorithm, even if it is not the fastest",
)
JSON = click.option("--json", "as_json", is_flag=True, help="print JSON, for scripts")
ROOT = click.option("--root", default=0, show_default=True, help="the root: a rank")


def takes_grid(*, required: bool) -> Callable[[Command], Command]:
    """Let a command take its grid as an argument, or by ``--grid`` like other commands."""

    def decorate(command: Command) -> Command:
        @click.argument("grid", required=False)
        @click.option("--grid", "grid_by_name", help=f"{GRID}; the same as GRID")
        @functools.wraps(command)
        def taking(grid: str | None, grid_by_name: str | None, **rest: Any) -> None:
            if grid and grid_by_name:
                raise click.UsageError("GRID and --grid are the same: give one of them")
            if required and not (grid or grid_by_name):
                raise click.UsageError("Missing argument 'GRID', or option '--grid'.")
            command(grid=grid or grid_by_name, **rest)

        return taking

    return decorate


class RenamedOptions(click.Command):
    """A command that also accepts former names of its options, for one release.

    ``renamed`` maps each former name to the present one. The help shows present names only.
    """

    def __init__(self, *args: Any, renamed: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.renamed = renamed

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Replace former names, then parse as click does. Arguments after ``--`` are kept."""
        end = args.index("--") if "--" in args else len(args)
        own_args = [self._with_present_name(arg) for arg in args[:end]]
        return super().parse_args(ctx, [*own_args, *args[end:]])

    def _with_present_name(self, arg: str) -> str:
        name, equals, value = arg.partition("=")
        return self.renamed.get(name, name) + equals + value
