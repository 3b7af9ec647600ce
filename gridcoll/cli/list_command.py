"""``gridcoll list``: all names that options and settings take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import click

from gridcoll.cli.options import JSON
from gridcoll.errors import UsageError

Entry = dict[str, str]

PASSED_THROUGH: tuple[Entry, ...] = (
    {
        "name": "Scan, Exscan",
        "good_for": "always the MPI library's own: a prefix waits for every rank before it",
        "source": "the MPI library",
    },
)
"""Collectives without plans: every communicator passes them on to the MPI library unchanged."""


def catalogue() -> dict[str, list[Entry]]:
    """Return the entries of all registries by section. Each has ``name`` and ``good_for``."""
    from gridcoll.model.closed_forms import CLOSED_FORMS
    from gridcoll.placement import SEARCHES
    from gridcoll.plan import REGISTRIES
    from gridcoll.schedule import HEURISTICS
    from gridcoll.schedule.trees import SHAPES
    from gridcoll.study import STUDIES
    from gridcoll.variables import VARIABLES

    sections = {
        f"{collective} algorithms": _entries(registry) + _natives(collective)
        for collective, registry in REGISTRIES.items()
    }
    sections["passed through"] = [dict(entry) for entry in PASSED_THROUGH]
    sections["heuristics"] = _entries(HEURISTICS)
    sections["tree shapes"] = _entries(SHAPES)
    sections["closed forms"] = _entries(CLOSED_FORMS)
    sections["searches"] = _entries(SEARCHES)
    sections["studies"] = _entries(STUDIES)
    sections["settings"] = [
        {"name": v.name, "values": v.values, "good_for": v.good_for} for v in VARIABLES.values()
    ]
    return sections


def _natives(collective: str) -> list[Entry]:
    from gridcoll.plan.natives import NATIVES, natives_of

    found = (NATIVES[name] for name in natives_of(collective))
    return [{"name": n.name, "good_for": n.good_for, "source": n.source} for n in found]


def _entries(registry: Mapping[str, Any]) -> list[Entry]:
    fields = ("name", "label", "formula", "good_for", "source")
    return [
        {field: getattr(entry, field) for field in fields if hasattr(entry, field)}
        for entry in registry.values()
    ]


@click.command()
@click.argument("section", required=False)
@JSON
def command(section: str | None, as_json: bool) -> None:
    """List algorithms, heuristics, shapes, closed forms, searches, studies and settings by name.

    SECTION is a word in the title of a section, for example bcast, heuristics or settings.
    """
    sections = catalogue()
    if section:
        found = {title: rows for title, rows in sections.items() if section in title.split()}
        if not found:
            raise UsageError(f"section {section!r}: known are {', '.join(sections)}")
        sections = found
    if as_json:
        click.echo(json.dumps(sections, indent=2, ensure_ascii=False))
        return
    _print(sections.items())


def _print(sections: Iterable[tuple[str, list[Entry]]]) -> None:
    from rich.table import Table

    from gridcoll.cli.gridmap import stdout_console

    console = stdout_console()
    for title, rows in sections:
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in rows[0]:
            style = "cyan" if column == "name" else ""
            table.add_column(column.replace("_", " "), style=style, no_wrap=column == "name")
        for row in rows:
            table.add_row(*row.values())
        console.print(table)
