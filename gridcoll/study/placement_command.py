"""``gridcoll study placement``: Tables 1 to 3 of paper 004."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from gridcoll.placement import SEARCHES
from gridcoll.study.options import (
    JSON,
    OUTPUT,
    PLOTS,
    SEED,
    prepare_output,
    progress_bar,
    table_console,
    write_tables,
)
from gridcoll.study.placement import (
    CASE_KINDS,
    LATENCIES,
    LEVEL,
    CaseKind,
    Row,
    find_kind,
    run_cases,
)
from gridcoll.study.plots import draw_bars


@click.command()
@click.option(
    "--case",
    "names",
    multiple=True,
    help=f"One of {', '.join(CASE_KINDS)}, repeatedly; by default all.",
)
@click.option("--cases", type=int, help="How many of each; by default the paper's numbers.")
@click.option(
    "--elements", type=click.IntRange(1), help="Size of the mesh, in place of each case's own."
)
@click.option(
    "--latencies", type=click.Choice(list(LATENCIES)), default=LEVEL, show_default=True,
    help="One per world, country and city, or one per branch: the longest on the way, or all.",
)  # fmt: skip
@SEED
@OUTPUT
@PLOTS
@JSON
def command(
    names: tuple[str, ...],
    cases: int | None,
    elements: int | None,
    latencies: str,
    seed: int,
    output: Path | None,
    plots: str,
    as_json: bool,
) -> None:
    """Compare the searches for clusters on random grids: failures, errors, times.

    A search fails where another one finds better. The paper's numbers stand beside ours. Drawn
    evenly, one random subset of 12 clusters fails in 1000 of 1000 cases and the best of a thousand
    in 783; of 8 clusters in 996 and 20.
    """
    kinds = [find_kind(name) for name in names or CASE_KINDS]
    prepare_output(output, draws=True)
    data: list[dict[str, Any]] = []
    for kind in kinds:
        n_cases = kind.n_cases if cases is None else cases
        rows = run_cases(
            kind, n_cases, seed, elements,
            lambda loop, k=kind: _track(loop, k),  # type: ignore[misc]
            latencies,
        )  # fmt: skip
        records = [_record(kind, n_cases, elements or kind.n_elements, row) for row in rows]
        data += records
        if not as_json:
            table_console().print(_table(kind, n_cases, elements or kind.n_elements, rows))
        if output is not None:
            write_tables(output, f"placement-table-{kind.table}", records)
            _draw(kind, records, output / f"paper-004-table-{kind.table}.{plots}")
    if as_json:
        click.echo(json.dumps(data, indent=1))


def _track(loop: Iterable[int], kind: CaseKind) -> Iterator[int]:
    cases = list(loop)
    with progress_bar() as bar:
        task = bar.add_task(kind.name, total=len(cases))
        for case in cases:
            yield case
            bar.advance(task)


def _record(kind: CaseKind, n_cases: int, n_elements: int, row: Row) -> dict[str, Any]:
    paper = kind.paper.get(row.search)
    return {
        "case": kind.name,
        "table": kind.table,
        "n_cases": n_cases,
        "n_elements": n_elements,
        "search": row.search,
        "fail_permille": row.fail_permille,
        "paper_fail_permille": None if paper is None else paper.fail_permille,
        "error_min_percent": row.error_percent[0],
        "error_avg_percent": row.error_percent[1],
        "error_max_percent": row.error_percent[2],
        "time_min_ms": row.time_ms[0],
        "time_avg_ms": row.time_ms[1],
        "time_max_ms": row.time_ms[2],
    }


def _draw(kind: CaseKind, records: Sequence[dict[str, Any]], path: Path) -> None:
    bars = {
        row["search"]: {"ours": row["fail_permille"], "paper": row["paper_fail_permille"]}
        for row in records
    }
    draw_bars(f"Paper 004, Table {kind.table}: {kind.name}", "failures (‰)", bars, path)


def _table(kind: CaseKind, n_cases: int, n_elements: int, rows: Sequence[Row]) -> Table:
    table = Table(
        "search", "fail ‰", "paper", "error % min/avg/max", "paper", "CPU ms min/avg/max", "paper",
        title=f"Table {kind.table}, {kind.name}: {n_cases} cases, {n_elements} elements",
    )  # fmt: skip
    for row in rows:
        paper = kind.paper.get(row.search)
        table.add_row(
            f"{row.search} ({SEARCHES[row.search].label})",
            f"{row.fail_permille:.4g}",
            "" if paper is None else f"{paper.fail_permille:g}",
            " / ".join(f"{value:.2f}" for value in row.error_percent),
            "" if paper is None else _triple(paper.error_percent, "ε"),
            " / ".join(f"{value:.2f}" for value in row.time_ms),
            "" if paper is None else _triple(paper.time_ms, "-"),
        )
    return table


def _triple(values: Sequence[float | None], missing: str) -> str:
    return " / ".join(missing if value is None else f"{value:g}" for value in values)
