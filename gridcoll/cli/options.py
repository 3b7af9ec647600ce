"""Options that several commands have. One name has one meaning, and begins its help alike."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import click

from gridcoll.cli.completion import algorithms

Command = Callable[..., None]

GRID = "declared grid (.toml) or measured model (.json), or the name of one"
SIZES = "bytes, as 8,64K,1M"

ALGORITHM = click.option(
    "--algorithm",
    default="",
    shell_complete=algorithms,
    help="this algorithm, whether it is the fastest or not",
)
JSON = click.option("--json", "as_json", is_flag=True, help="print JSON, for scripts")
ROOT = click.option("--root", default=0, show_default=True, help="the root: a rank")


def takes_grid(*, required: bool) -> Callable[[Command], Command]:
    """Let a command take its grid as an argument, or by ``--grid`` as other commands do."""

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
    """A command that takes options by their former names as well, for one release.

    ``renamed`` maps a former name to today's, which alone is in the help text.
    """

    def __init__(self, *args: Any, renamed: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.renamed = renamed

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, after the former names were replaced; what follows ``--`` is not ours."""
        end = args.index("--") if "--" in args else len(args)
        mine = [self._with_new_name(arg) for arg in args[:end]]
        return super().parse_args(ctx, [*mine, *args[end:]])

    def _with_new_name(self, arg: str) -> str:
        name, equals, value = arg.partition("=")
        return self.renamed.get(name, name) + equals + value
