"""``gridcoll study one-cluster``: the tables and figures of papers 002 and 003 inside a cluster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from gridcoll.errors import UsageError
from gridcoll.model.plogp import PLogP
from gridcoll.model.storage import read_model
from gridcoll.study.one_cluster import (
    FIGURES,
    FigureOf003,
    FormRow,
    alltoall_rows,
    broadcast_rows,
    points,
    scatter_rows,
    sizes_to,
    stand_in_link,
)
from gridcoll.study.options import (
    JSON,
    MEASURED,
    PLOT,
    RESULT,
    prepare_plot,
    read_measured,
    report,
    show_rows,
    table_console,
)
from gridcoll.study.plots import Figure, draw_bars, draw_figure
from gridcoll.topology.units import (
    format_duration,
    format_size,
    parse_duration_s,
    parse_rate_bytes_per_s,
    parse_size_bytes,
)

Measured = dict[tuple[str, str], list[tuple[int | None, int, float]]]
"""Processes (None: as many as the figure has), bytes and seconds by collective and algorithm."""


@click.command()
@click.option("--table", type=click.Choice(["1", "2", "3"]), help="Of paper 003; 1 is also 002's.")
@click.option("--figure", type=click.IntRange(1, 11), help="Figure of the paper: 003.")
@click.option("--sizes", help="Bytes, as 1K,64K,1M.")
@click.option(
    "--ranks", type=click.IntRange(2),
    help="How many ranks; default: 24 in a table, and as in the paper in a figure.",
)  # fmt: skip
@click.option(
    "--model", type=click.Path(path_type=Path), help="A measured model (.json): its first cluster."
)
@click.option("--latency", default="50 us", show_default=True, help="One way, without --model.")
@click.option(
    "--rate", default="1 Gbit/s", show_default=True, help="Rate of a link, without --model."
)
@MEASURED
@RESULT
@PLOT
@JSON
def command(
    table: str | None,
    figure: int | None,
    sizes: str | None,
    ranks: int | None,
    model: Path | None,
    latency: str,
    rate: str,
    measured: tuple[Path, ...],
    output: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Models of collectives inside one cluster, by pLogP: paper 003's Tables 1-3, Figures 1-11.

    A table has the paper's formula beside what our plan of that name is priced at; a figure the
    model, and what was measured where rows are given. The paper prints no times.
    """
    if (table is None) == (figure is None):
        raise UsageError("--table and --figure: give one of them")
    prepare_plot(plot)
    link = _link(model, latency, rate)
    if table is not None:
        axis = _sizes(sizes, [1 << 10, 1 << 16, 1 << 20])
        rows_of_table = _table_rows(table, link, ranks or 24, axis)
        if plot is not None:
            _draw_table(table, ranks or 24, rows_of_table, plot)
        report(
            [asdict(row) for row in rows_of_table], output, as_json,
            lambda: _show_table(table, ranks or 24, axis, rows_of_table),
        )  # fmt: skip
        return
    if figure is None or figure == 1:
        drawn, rows = _plogp(link, _sizes(sizes, sizes_to(1 << 20)))
    else:
        found = FIGURES[figure]
        if ranks is not None:
            found = replace(found, ranks=(ranks,), title=f"{found.title} ({ranks} processes)")
        axis = _sizes(sizes, sizes_to(found.most_bytes))
        drawn, rows = _curves(found, link, axis, _read_measured(measured))
    if plot is not None:
        draw_figure(drawn, plot)
    report(rows, output, as_json, lambda: show_rows(drawn.title, rows))


def _link(model: Path | None, latency: str, rate: str) -> PLogP:
    if model is not None:
        return read_model(model).link(0, 0)
    return stand_in_link(parse_duration_s(latency), parse_rate_bytes_per_s(rate))


def _sizes(text: str | None, default: list[int]) -> list[int]:
    return default if text is None else [parse_size_bytes(piece) for piece in text.split(",")]


def _table_rows(table: str, link: PLogP, ranks: int, sizes: Sequence[int]) -> list[FormRow]:
    rows_of = {"1": broadcast_rows, "2": scatter_rows, "3": alltoall_rows}[table]
    return [row for size in sizes for row in rows_of(link, ranks, size)]


def _draw_table(table: str, ranks: int, rows: Sequence[FormRow], path: Path) -> None:
    """The paper's formula beside our plan, for each line and size."""
    bars = {
        f"{row.strategy}, {format_size(row.n_bytes)}": {
            "formula": 1e3 * row.formula_s,
            "our plan": None if row.plan_s is None else 1e3 * row.plan_s,
        }
        for row in rows
    }
    draw_bars(f"Paper 003, Table {table}: {ranks} processes", "time (ms)", bars, path, log=True)


def _show_table(table: str, ranks: int, sizes: Sequence[int], rows: Sequence[FormRow]) -> None:
    for size in sizes:
        printed = Table(
            "strategy", "the paper's formula", "segment", "formula", "our plan", "holds",
            title=f"Table {table}: {ranks} processes, {format_size(size)}",
        )  # fmt: skip
        for row in rows:
            if row.n_bytes != size:
                continue
            segment = format_size(row.segment_bytes) if row.segment_bytes < size else ""
            plan = "" if row.plan_s is None else format_duration(row.plan_s)
            printed.add_row(
                row.strategy, row.formula, segment, format_duration(row.formula_s), plan, row.holds
            )
        table_console().print(printed)


def _plogp(link: PLogP, sizes: Sequence[int]) -> tuple[Figure, list[dict[str, Any]]]:
    rows = [
        {
            "n_bytes": size,
            "g_s": link.gap(size),
            "os_s": link.send_overhead(size),
            "or_s": link.recv_overhead(size),
            "latency_s": link.latency_s,
        }
        for size in sizes
    ]
    lines = {
        name: (list(sizes), [1e3 * float(row[key]) for row in rows])
        for name, key in (("g(m)", "g_s"), ("os(m)", "os_s"), ("or(m)", "or_s"))
    }
    title = f"Paper 003, Figure 1: pLogP, L = {format_duration(link.latency_s)}"
    return Figure(title, "bytes", "time (ms)", lines, log=True), rows


def _curves(
    figure: FigureOf003, link: PLogP, sizes: Sequence[int], measured: Measured
) -> tuple[Figure, list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    lines: dict[str, tuple[Sequence[float], Sequence[float]]] = {}
    for (label, n_ranks), seconds in points(figure, link, sizes).items():
        name = f"{label}, {n_ranks}" if len(figure.ranks) > 1 else label
        lines[f"{name} (model)"] = (list(sizes), [1e3 * value for value in seconds])
        rows += [
            {
                "curve": name,
                "n_ranks": n_ranks,
                "n_bytes": size,
                "model_s": value,
                "measured_s": None,
            }
            for size, value in zip(sizes, seconds, strict=True)
        ]
    for label, (curve, key) in figure.curves.items():
        if key not in measured:
            continue
        known = [
            (n, size, value)
            for said, size, value in measured[key]
            if (n := said or max(figure.ranks)) in figure.ranks
        ]
        for n_ranks in sorted({n for n, _, _ in known}):
            at = sorted((size, value) for n, size, value in known if n == n_ranks)
            several = len(figure.ranks) > 1
            name = f"{label}, {n_ranks}, measured" if several else f"{label}, measured"
            lines[name] = ([size for size, _ in at], [1e3 * value for _, value in at])
            rows += [
                {"curve": name, "n_ranks": n_ranks, "n_bytes": size,
                 "model_s": curve(link, n_ranks, size), "measured_s": value}
                for size, value in at
            ]  # fmt: skip
    title = f"Paper 003, Figure {figure.number}: {figure.title}"
    return Figure(title, "bytes", "time (ms)", lines, log=True), rows


def _read_measured(paths: Sequence[Path]) -> Measured:
    found: Measured = defaultdict(list)
    for row in (row for path in paths for row in read_measured(path)):
        key = row.collective, row.variant.removeprefix("gridcoll:")
        found[key].append((row.n_ranks, row.bytes, row.median_s))
    return found
