"""Commands whose options had other names once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click


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
