"""``gridcoll study``: rerun the papers' simulations."""

from __future__ import annotations

import importlib

import click

from gridcoll.study import STUDIES


class _Studies(click.Group):
    """Imports a study's module when it is run, so that the others' libraries stay out."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(STUDIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in STUDIES:
            return None
        study: click.Command = importlib.import_module(STUDIES[cmd_name].module).command
        return study

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, f"{study.good_for} ({study.source})") for name, study in STUDIES.items()]
        with formatter.section("Studies"):
            formatter.write_dl(rows)


@click.group(cls=_Studies)
def command() -> None:
    """Rerun the papers' simulations and figures."""
