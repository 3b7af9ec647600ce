"""``gridcoll explain``: what a call would do on a grid, and why; without MPI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from gridcoll.errors import UsageError

if TYPE_CHECKING:
    from gridcoll.model import GridModel
    from gridcoll.plan import Candidate, Choice, Plan
    from gridcoll.plan.timeline import Timeline


@click.command()
@click.argument("collective")
@click.option("--grid", required=True, help="declared grid (.toml), measured model (.json) or name")
@click.option("--bytes", "sizes", required=True, help="size, as 64K; several as 8,1K,64K,1M")
@click.option("--root", default=0, show_default=True, help="the root rank")
@click.option("--algorithm", default="", help="explain this one, whether it is the fastest or not")
@click.option("--all", "everything", is_flag=True, help="also those that come to the same plan")
@click.option("--gantt", is_flag=True, help="simulate the plan and chart it")
@click.option("--png", type=click.Path(dir_okay=False), help="chart it into this file")
@click.option("--svg", type=click.Path(dir_okay=False), help="chart it into this file")
@click.option("--json", "as_json", is_flag=True, help="for scripts")
def command(
    collective: str,
    grid: str,
    sizes: str,
    root: int,
    algorithm: str,
    everything: bool,
    gantt: bool,
    png: str | None,
    svg: str | None,
    as_json: bool,
) -> None:
    """List the ways to do COLLECTIVE on a grid, with predicted times; name the winner and why.

    Where native times were measured (gridcoll discover), the MPI library's own is among them.
    """
    from gridcoll.cli.models import load_model
    from gridcoll.plan import choose
    from gridcoll.topology.units import parse_size_bytes

    model = load_model(grid)
    n_bytes = [parse_size_bytes(text) for text in sizes.split(",")]
    choices = [choose(collective, model, size, root, forced=algorithm) for size in n_bytes]
    simulated = None
    if gantt or png or svg:
        if len(choices) > 1:
            raise UsageError(f"--bytes {sizes}: a chart shows one size")
        simulated = _simulate(choices[0], model)
        _draw(*simulated, model, {"png": png, "svg": svg})
    if as_json:
        data = [choice.to_dict() for choice in choices]
        if simulated:
            data[0]["simulated_s"] = simulated[1].makespan_s
        click.echo(json.dumps(data[0] if len(data) == 1 else data, indent=2))
    elif len(choices) > 1:
        _print_sizes(choices)
    else:
        _print_choice(choices[0], merged=not everything)
        if simulated:
            _print_chart(*simulated, model)


def _simulate(choice: Choice, model: GridModel) -> tuple[Plan, Timeline]:
    """The winner's plan, or where native wins the fastest plan's, with its timeline."""
    from gridcoll.plan.price import price_plan

    plans: list[Candidate] = [choice.winner, *choice.candidates]
    build = next((candidate.build for candidate in plans if candidate.build), None)
    if build is None:
        raise UsageError(f"{choice.collective}: there is no plan to chart, only the native one")
    plan = build(choice.n_bytes)
    return plan, price_plan(plan, model)


def _draw(plan: Plan, timeline: Timeline, model: GridModel, paths: dict[str, str | None]) -> None:
    for kind, path in paths.items():
        if path:
            from gridcoll.pictures import write_picture
            from gridcoll.plan.gantt import draw_gantt

            write_picture(draw_gantt(plan, timeline, model.grid), path, kind)


def _print_choice(choice: Choice, merged: bool) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from gridcoll.cli.gridmap import stdout_console
    from gridcoll.plan.choice_text import headline, rows_of

    table = Table()
    table.add_column("predicted", justify="right", no_wrap=True)
    table.add_column("algorithm", style="cyan")
    table.add_column("how")
    rows = rows_of(choice, merged=merged)
    stored = any(row.stored for row in rows)
    if stored:
        table.add_column("store and forward", justify="right")
    for row in rows:
        cells = [row.predicted, ", ".join(row.names), row.label, *([row.stored] if stored else [])]
        table.add_row(*cells, style="bold" if row.won else "")
    console: Console = stdout_console()
    console.print(Text(headline(choice), "bold"))
    console.print(table)


def _print_sizes(choices: list[Choice]) -> None:
    from rich.table import Table

    from gridcoll.cli.gridmap import stdout_console
    from gridcoll.plan.choice_text import rows_of
    from gridcoll.topology.units import format_size

    table = Table("bytes", "predicted", "algorithm", "how", "why")
    for choice in choices:
        row = next(row for row in rows_of(choice, merged=False) if row.won)
        size = format_size(choice.n_bytes)
        table.add_row(size, row.predicted, choice.winner.name, row.label, choice.reason)
    stdout_console().print(table)


def _print_chart(plan: Plan, timeline: Timeline, model: GridModel) -> None:
    from gridcoll.cli.gridmap import stdout_console
    from gridcoll.plan.gantt import gantt_text
    from gridcoll.topology.units import format_duration

    console = stdout_console()
    console.print(f"\n{plan.label}: {format_duration(timeline.makespan_s)} simulated")
    console.print(gantt_text(plan, timeline, model.grid))
