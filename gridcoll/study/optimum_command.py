"""``gridcoll study optimum``: how near the heuristics and `best` come to the optimum."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from gridcoll.schedule import warm_up
from gridcoll.study.comparison import Setting
from gridcoll.study.optimum import Nearness, measure_nearness
from gridcoll.study.options import (
    BUSY,
    JSON,
    OUTPUT,
    OVERLAP,
    RANGES,
    SEED,
    make_accounting,
    parse_counts,
    parse_seconds,
    prepare_output,
    progress_bar,
    report,
    table_console,
    write_tables,
)
from gridcoll.study.parameters import FILLINGS, PARAMETERS


@click.command()
@click.option(
    "--clusters",
    callback=parse_counts,
    default="10,20,50",
    show_default=True,
    help="Numbers of clusters: single ones and ranges with an optional step.",
)
@click.option(
    "--budgets", callback=parse_seconds, default="0.01,0.1,1", show_default=True,
    help="Seconds that best may take.",
)  # fmt: skip
@click.option(
    "--instances", type=click.IntRange(1), default=100, show_default=True,
    help="How many grids are drawn for each number of clusters.",
)  # fmt: skip
@click.option("--exact", is_flag=True, help="Run optimal as well (meant for up to 12 clusters).")
@click.option(
    "--accelerate/--plain", default=None,
    help="With numba, or in plain Python; by default numba where installed.",
)  # fmt: skip
@click.option(
    "--cpu-time", is_flag=True, help="Count processor time, not elapsed time: for busy machines."
)
@RANGES
@click.option(
    "--filling", type=click.Choice(list(FILLINGS)), default="independent", show_default=True,
    help="How links are drawn.",
)  # fmt: skip
@BUSY
@OVERLAP
@SEED
@OUTPUT
@JSON
def command(
    clusters: tuple[int, ...],
    budgets: tuple[float, ...],
    instances: int,
    exact: bool,
    accelerate: bool | None,
    cpu_time: bool,
    parameters: str,
    filling: str,
    busy: str,
    internal_start: str,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure the gap to the optimum, and the time it takes to close it."""
    prepare_output(output)
    if accelerate is not False:
        accelerate = warm_up() or accelerate
    setting = Setting(
        PARAMETERS[parameters], filling, accounting=make_accounting(busy, internal_start),
        n_iterations=instances, seed=seed,
    )  # fmt: skip
    rows: list[Nearness] = []
    with progress_bar() as bar:
        task = bar.add_task("instances", total=instances * len(clusters))
        for n_clusters in clusters:
            bar.update(task, description=f"{n_clusters} clusters")
            rows += measure_nearness(
                setting, n_clusters, budgets, exact=exact, accelerate=accelerate,
                clock=time.process_time if cpu_time else time.perf_counter,
                on_progress=lambda: bar.advance(task),
            )  # fmt: skip
    data = [asdict(row) for row in rows]
    report(data, None, as_json, lambda: _print(rows))
    if output is not None:
        write_tables(output, "optimum", data)


def _print(rows: Sequence[Nearness]) -> None:
    table = Table(title="Gap to the best bound proven by any of the runs")
    for heading in ("clusters", "method", "budget", "mean gap %", "worst %", "own bound %",
                    "proven %", "median ms", "longest ms"):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        unbounded = row.method == "best of the seven"
        table.add_row(
            str(row.n_clusters),
            row.method,
            "" if row.budget_s is None else f"{row.budget_s:g} s",
            f"{row.gap * 100:.3f}",
            f"{row.worst_gap * 100:.2f}",
            "" if unbounded else f"{row.own_gap * 100:.3f}",
            "" if unbounded else f"{row.proven * 100:.1f}",
            f"{row.median_s * 1e3:.2f}",
            f"{row.longest_s * 1e3:.1f}",
        )
    table_console().print(table)
