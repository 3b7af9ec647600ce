"""``gridcoll study``: rerun the papers' simulations."""

from __future__ import annotations

import importlib

import click

from gridcoll.study import STUDIES
from gridcoll.study.contents import CONTENTS, PAPERS, Item


class _Studies(click.Group):
    """Imports the module of a study only when it is run, not the libraries of all studies."""

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
        for paper, title in PAPERS.items():
            with formatter.section(f"Paper {paper}, {title}"):
                formatter.write_dl([_line(item) for item in CONTENTS if item.paper == paper])


def _line(item: Item) -> tuple[str, str]:
    how = f"gridcoll {item.command}" if item.command else "none"
    remark = f" ({item.remark})" if item.remark else ""
    return item.name, f"{item.shows}: {how}{remark}"


@click.group(cls=_Studies)
def command() -> None:
    """Rerun the papers' simulations and figures.

    Each command prints our results beside the paper's. It draws into the file that --plot names, or
    into the directory that --output names if it has no --plot.
    """
