"""``gridcoll explain``: what a call would do on a grid, and why. Needs no MPI."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gridcoll.cli.options import ALGORITHM, GRID, JSON, ROOT, SIZES, RenamedOptions
from gridcoll.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gridcoll.model import GridModel
    from gridcoll.plan import Candidate, Choice, Plan
    from gridcoll.plan.alltoall.unequal import Counts
    from gridcoll.plan.cost import Timeline

UNEQUAL = "alltoallv"
"""This collective is chosen by the bytes of every block, instead of one size."""


@click.command(
    cls=RenamedOptions, renamed={"--bytes": "--sizes", "--png": "--plot", "--svg": "--plot"}
)
@click.argument("collective")
@click.option("--grid", required=True, help=GRID)
@click.option("--sizes", default="", help=SIZES)
@click.option(
    "--counts",
    metavar="FILE",
    help="for alltoallv, instead of --sizes: the bytes that each rank (one line each) sends to "
    "each rank",
)
@ROOT
@ALGORITHM
@click.option(
    "--all", "everything", is_flag=True, help="all of them: also algorithms with the same plan"
)
@click.option("--simulate", is_flag=True, help="also simulate every plan on the network")
@click.option("--gantt", is_flag=True, help="simulate the chosen plan and chart it")
@click.option(
    "--plot", multiple=True, metavar="FILE", help="draw into this file, png or svg: the chart"
)
@JSON
def command(
    collective: str,
    grid: str,
    sizes: str,
    counts: str | None,
    root: int,
    algorithm: str,
    everything: bool,
    simulate: bool,
    gantt: bool,
    plot: tuple[str, ...],
    as_json: bool,
) -> None:
    """List the algorithms for COLLECTIVE on a grid with predicted times; say which wins and why.

    The MPI library's own collective is among them if its times were measured (gridcoll discover).
    """
    from gridcoll.cli.models import load_model

    model = load_model(grid)
    if collective == "barrier":
        sizes = sizes or "1"  # a barrier has no data; calls are decided with this size
    if (collective == UNEQUAL) != (counts is not None) or bool(sizes) == (counts is not None):
        raise UsageError(f"{UNEQUAL} needs --counts FILE, every other collective --sizes")
    if counts is not None:
        choices = [_choose_unequal(model, counts, algorithm)]
    else:
        choices = _choose_sizes(model, collective, sizes, root, algorithm)
    if len(choices) > 1 and (gantt or plot):
        raise UsageError(f"--sizes {sizes}: a chart shows one size")
    times = [_simulate_all(choice, model) if simulate else {} for choice in choices]
    if plot:
        _draw(choices[0], model, plot)
    if as_json:
        data = [_data(choice, times_s) for choice, times_s in zip(choices, times, strict=True)]
        click.echo(json.dumps(data[0] if len(data) == 1 else data, indent=2))
    elif len(choices) > 1:
        _print_sizes(choices, times)
    else:
        _print_choice(choices[0], times[0], merged=not everything)
    if gantt and not as_json:
        _print_chart(choices[0], model)


def _choose_sizes(
    model: GridModel, collective: str, sizes: str, root: int, algorithm: str
) -> list[Choice]:
    from gridcoll.plan import choose
    from gridcoll.topology.units import parse_size_bytes

    n_bytes = [parse_size_bytes(text) for text in sizes.split(",")]
    return [choose(collective, model, size, root, forced=algorithm) for size in n_bytes]


def _choose_unequal(model: GridModel, path: str, algorithm: str) -> Choice:
    """Choose for the blocks in the file at ``path``.

    ``algorithm`` is a name for alltoall; it stands for an exchange of unequal blocks, as in a call.
    """
    from gridcoll.plan.alltoall.unequal_choice import choose_unequal, unequal_method
    from gridcoll.plan.registry import check_forced

    forced = unequal_method(check_forced("alltoall", algorithm)) if algorithm else ""
    return choose_unequal(model, _read_counts(path), forced)


def _read_counts(path: str | Path) -> Counts:
    """Return the (P, P) bytes in a text file: whole numbers separated by spaces or commas."""
    import numpy as np

    from gridcoll.files import read_text, unfit

    text = read_text(path, "counts")
    lines = text.replace(",", " ").splitlines()
    try:
        rows = [[int(word) for word in line.split()] for line in lines if line.strip()]
        return np.array(rows, np.int64).reshape(len(rows), -1)
    except (ValueError, OverflowError) as error:
        why = f"needs rows of whole numbers, equally long: {error}"
        raise unfit("counts", path, text, why) from None


def _simulate_all(choice: Choice, model: GridModel) -> dict[int, float]:
    """Return simulated seconds by index of the candidate. Equal plans are simulated once."""
    from gridcoll.cli.progress import Stages
    from gridcoll.plan.cost import price_plan

    times: dict[str, float] = {}
    found: dict[int, float] = {}
    with Stages(terminal_only=True) as progress:
        for index, candidate in enumerate(choice.candidates):
            progress("simulating", index, len(choice.candidates))
            if candidate.build is None:
                continue
            if candidate.label not in times:
                plan = candidate.build(choice.n_bytes)
                times[candidate.label] = price_plan(plan, model).makespan_s
            found[index] = times[candidate.label]
    return found


def _data(choice: Choice, times_s: dict[int, float]) -> dict[str, Any]:
    data = choice.to_dict()
    for index, seconds in times_s.items():
        data["candidates"][index]["simulated_s"] = seconds
    return data


def _chart(choice: Choice, model: GridModel) -> tuple[Plan, Timeline]:
    """Return the winner's plan, or the fastest plan if native wins, and its timeline."""
    from gridcoll.plan.cost import price_plan

    plans: list[Candidate] = [choice.winner, *choice.candidates]
    build = next((candidate.build for candidate in plans if candidate.build), None)
    if build is None:
        raise UsageError(f"{choice.collective}: there is no plan to chart, only the native one")
    plan = build(choice.n_bytes)
    return plan, price_plan(plan, model)


def _draw(choice: Choice, model: GridModel, paths: tuple[str, ...]) -> None:
    from gridcoll.draw.figures import write_picture
    from gridcoll.draw.gantt import draw_gantt

    plan, timeline = _chart(choice, model)
    for path in paths:
        write_picture(draw_gantt(plan, timeline, model.grid), path)


def _print_choice(choice: Choice, times_s: dict[int, float], merged: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from gridcoll.cli.gridmap import stdout_console
    from gridcoll.plan.choice import gain_of_best, headline, rows_of

    rows = rows_of(choice, merged=merged)
    table = Table()
    table.add_column("predicted", justify="right", no_wrap=True)
    if times_s:
        table.add_column("simulated", justify="right", no_wrap=True)
    table.add_column("algorithm", style="cyan")
    table.add_column("how")
    stored = any(row.store_and_forward for row in rows)
    if stored:
        table.add_column("store and forward", justify="right")
    for row in rows:
        cells = [row.predicted]
        if times_s:
            cells.append(_duration(times_s.get(row.index)))
        cells += [", ".join(row.names), row.label]
        if stored:
            cells.append(row.store_and_forward)
        table.add_row(*cells, style="bold" if row.won else "")
    console = stdout_console()
    console.print(Text(headline(choice), "bold"))
    if gain := gain_of_best(choice):
        console.print(Text(gain, "dim"))
    console.print(table)
    for line in choice.sources:
        console.print(Text(line, "dim"))


def _duration(seconds: float | None) -> str:
    from gridcoll.topology.units import format_duration

    return "" if seconds is None else format_duration(seconds)


def _print_sizes(choices: list[Choice], times: list[dict[int, float]]) -> None:
    from rich.table import Table

    from gridcoll.cli.gridmap import stdout_console
    from gridcoll.plan.choice import rows_of
    from gridcoll.topology.units import format_size

    simulated = ["simulated"] if any(times) else []
    table = Table("bytes", "predicted", *simulated, "algorithm", "how", "why")
    for choice, times_s in zip(choices, times, strict=True):
        row = next(row for row in rows_of(choice, merged=False) if row.won)
        cells = [format_size(choice.n_bytes), row.predicted]
        if simulated:
            cells.append(_duration(times_s.get(row.index)))
        table.add_row(*cells, choice.winner.name, row.label, choice.reason)
    stdout_console().print(table)


def _print_chart(choice: Choice, model: GridModel) -> None:
    from gridcoll.cli.gridmap import stdout_console
    from gridcoll.draw.gantt import gantt_text

    plan, timeline = _chart(choice, model)
    console = stdout_console()
    console.print(f"\n{plan.label}: {_duration(timeline.makespan_s)} simulated", highlight=False)
    console.print(gantt_text(plan, timeline, model.grid))
