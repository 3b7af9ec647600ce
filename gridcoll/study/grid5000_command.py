"""``gridcoll study grid5000``: Figure 5 of paper 000."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
import numpy as np
from rich.table import Table

from gridcoll.schedule import HEURISTICS
from gridcoll.schedule.greedy import SEVEN
from gridcoll.study.grid5000 import (
    CLUSTERS,
    INSIDE,
    MEGABYTE,
    Calibration,
    grid_instance,
    unaware_binomial_s,
    variants,
)
from gridcoll.study.options import (
    BUSY,
    JSON,
    OUTPUT,
    OVERLAP,
    PLOTS,
    make_accounting,
    prepare_output,
    table_console,
    write_csv,
    write_tables,
)
from gridcoll.study.plots import Figure, draw_bars, draw_figure
from gridcoll.topology.units import parse_rate_bytes_per_s, parse_size_bytes

UNAWARE = "Binomial, grid-unaware"
PAPER_MEGABYTES = 4.0
PAPER_RATIO = 6.0
ECEF_FAMILY = ("ecef", "ecef-la", "ecef-la-min-t", "ecef-la-max-t")


@click.command()
@click.option("--window", default="64 KiB", show_default=True, help="TCP window of a flow.")
@click.option(
    "--local-rate", default="67.2 Mbit/s", show_default=True, help="Between machines of a site."
)
@click.option(
    "--inside", type=click.Choice(INSIDE), default="binomial", show_default=True,
    help="What a cluster does inside: paper 000's tree, or the best of paper 002's Table 1.",
)  # fmt: skip
@click.option("--variants", "all_variants", is_flag=True, help="4 MB, every reading of the papers.")
@click.option("--root", type=click.IntRange(0, len(CLUSTERS) - 1), default=0, show_default=True,
              help="The root: a cluster.")  # fmt: skip
@click.option(
    "--largest", type=click.FloatRange(0, min_open=True), default=4.0, show_default=True,
    help="Largest message in MB (10⁶ bytes).",
)  # fmt: skip
@click.option(
    "--points", type=click.IntRange(1), default=16, show_default=True, help="How many sizes."
)
@BUSY
@OVERLAP
@OUTPUT
@PLOTS
@JSON
def command(
    window: str,
    local_rate: str,
    inside: str,
    all_variants: bool,
    root: int,
    largest: float,
    points: int,
    busy: str,
    internal_start: str,
    output: Path | None,
    plots: str,
    as_json: bool,
) -> None:
    """Predict a broadcast on the 88 machines of the papers, by message size.

    The papers print latencies only; gaps are m / min(local rate, window / round trip). Paper 000
    says of 4 MB: the ECEF family takes less than 3 s, flat almost six times as long, longer than
    the grid-unaware binomial tree.
    """
    if all_variants:
        _variants(output, plots, as_json)
        return
    calibration = Calibration(float(parse_size_bytes(window)), parse_rate_bytes_per_s(local_rate))
    accounting = make_accounting(busy, internal_start)
    prepare_output(output, draws=True)
    rows = []
    for n_bytes in np.linspace(0, largest * MEGABYTE, points + 1)[1:]:
        instance = grid_instance(float(n_bytes), calibration, root, accounting, inside)
        row: dict[str, object] = {"megabytes": round(float(n_bytes) / MEGABYTE, 6)}
        for name in (*SEVEN, "best"):
            row[HEURISTICS[name].label] = HEURISTICS[name].pick(instance).makespan_s
        row[UNAWARE] = unaware_binomial_s(float(n_bytes), calibration, root)
        rows.append(row)
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        _print(rows, root)
        if largest == PAPER_MEGABYTES:
            _compare(rows[-1])
    if output is not None:
        write_tables(output, "grid5000", rows)
        draw_figure(_figure(rows, root), output / f"paper-000-figure-5.{plots}")


def _compare(row: dict[str, object]) -> None:
    """The last row beside what the paper's text says of it."""
    times = {key: float(str(value)) for key, value in row.items()}
    family = [times[HEURISTICS[name].label] for name in ECEF_FAMILY]
    flat = times[HEURISTICS["flat"].label]
    table = Table("4 MB", "ours", "paper 000, §7", title="Beside the paper")
    table.add_row("slowest of the ECEF family (s)", f"{max(family):.2f}", "< 3")
    table.add_row("flat, times the ECEF family", f"{flat / max(family):.2f}", "almost 6")
    table.add_row("flat over grid-unaware binomial", f"{flat / times[UNAWARE]:.2f}", "> 1")
    table_console().print(table)


def _variants(output: Path | None, plots: str, as_json: bool) -> None:
    prepare_output(output, draws=True)
    every = variants()
    rows = [{**asdict(found), "flat_over_ecef": found.flat_over_ecef} for found in every]
    if output is not None:
        write_csv(output / "grid5000-variants.csv", rows)
        bars = {
            f"{found.inside}, {found.window}, {found.local_rate}, {CLUSTERS[found.root]}": {
                "flat / ECEF": found.flat_over_ecef,
                "flat / grid-unaware binomial": found.flat_s / found.unaware_s,
            }
            for found in every
        }
        draw_bars(
            "Paper 000, Figure 5, 4 MB, every reading (the paper: flat almost 6 times ECEF)",
            "times as long", bars, output / f"paper-000-figure-5-variants.{plots}",
            level=PAPER_RATIO,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    table = Table(title="4 MB (s); the paper: ECEF < 3 s, flat almost 6 times as long")
    for heading in ("inside", "window", "local rate", "from", "Flat", "ECEF", "Best", UNAWARE,
                    "Flat / ECEF"):  # fmt: skip
        table.add_column(heading)
    for found in every:
        table.add_row(
            found.inside, found.window, found.local_rate, CLUSTERS[found.root],
            f"{found.flat_s:.2f}", f"{found.ecef_s:.2f}", f"{found.best_s:.2f}",
            f"{found.unaware_s:.2f}", f"{found.flat_over_ecef:.2f}",
        )  # fmt: skip
    table_console().print(table)


def _print(rows: list[dict[str, object]], root: int) -> None:
    table = Table(title=f"Predicted broadcast from {CLUSTERS[root]} (s)")
    for key in rows[0]:
        table.add_column("MB" if key == "megabytes" else key, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.2f}" for value in row.values()))
    table_console().print(table)


def _figure(rows: list[dict[str, object]], root: int) -> Figure:
    sizes = [float(str(row["megabytes"])) for row in rows]
    lines = {
        key: (sizes, [float(str(row[key])) for row in rows])
        for key in rows[0]
        if key != "megabytes"
    }
    title = f"Paper 000, Figure 5: 88 machines, broadcast from {CLUSTERS[root]}, predicted"
    return Figure(title, "message size (MB)", "time (s)", lines)
