"""``gridcoll study heuristics``."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """Compare the broadcast heuristics on random grids."""
