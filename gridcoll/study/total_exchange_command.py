"""``gridcoll study total-exchange``: Figures 4 to 6 of paper 001, by model."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gridcoll.errors import UsageError
from gridcoll.study.options import (
    JSON,
    MEASURED,
    PLOT,
    RESULT,
    prepare_plot,
    read_measured,
    show_rows,
    write_rows,
)
from gridcoll.study.plots import DASHED, Figure, draw_bars, draw_figure
from gridcoll.study.total_exchange import Sites, hindrance_for
from gridcoll.topology.units import (
    format_size,
    parse_duration_s,
    parse_rate_bytes_per_s,
    parse_size_bytes,
)

PAPER_GAINS = {"as fast": 1.0, "40 % less": 1 / 0.6, "60 % less": 2.5, "8 times": 8.0}
"""Paper 001, §5.1: up to 8 times as fast; 40 to 60 % less time with large messages."""

FIT_BYTES = 1 << 16
COMPARED = {"native": "mpi_s", "gridcoll:direct": "direct_s", "gridcoll:lg": "lg_s"}
"""What is compared, by its name in a benchmark's rows."""

LARGEST_HOSTS = 60
SPREADS = {5: 1, 6: 2}
"""By figure: hosts of the second site per host of the first."""


@click.command()
@click.option(
    "--figure", type=click.IntRange(4, 6), default=4, show_default=True, help="Figure of the paper."
)
@click.option("--sizes", help="Bytes, of a block; by default those of the figure.")
@click.option("--hindrance", type=click.FloatRange(0), default=0.0, show_default=True,
              help="h: how much flows beyond those that fill the backbone slow all.")  # fmt: skip
@click.option("--window", default="64 KiB", show_default=True, help="TCP window of a flow.")
@click.option("--latency", default="5.8 ms", show_default=True, help="One way, between the sites.")
@click.option("--backbone", default="10 Gbit/s", show_default=True, help="Its rate.")
@click.option("--fit", is_flag=True, help="Which h gives the gains that the paper prints.")
@MEASURED
@RESULT
@PLOT
@JSON
def command(
    figure: int,
    sizes: str | None,
    hindrance: float,
    window: str,
    latency: str,
    backbone: str,
    fit: bool,
    measured: tuple[Path, ...],
    output: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """LG and the direct exchange on two sites: predicted, with contention between the sites.

    Paper 001: LG up to 8 times as fast, 40 to 60 % less time for large messages; 512 KB by LG
    faster than 64 KB by the direct exchange. It prints no times.
    Files of --measured are named after the hosts, as lg-30x30.json.
    """
    prepare_plot(plot)
    base = Sites(
        latency_s=parse_duration_s(latency),
        window_bytes=float(parse_size_bytes(window)),
        backbone_bytes_per_s=parse_rate_bytes_per_s(backbone),
        hindrance=hindrance,
    )
    rows = _fit(base) if fit else _rows(figure, base, sizes)
    known = _of_figure(figure, [row for path in measured for row in _compared(path)])
    if output is not None:
        write_rows(output, [*rows, *known] if output.suffix == ".json" else rows)
    if plot is not None and fit:
        _draw_fit(rows, plot)
    elif plot is not None:
        draw_figure(_figure(figure, hindrance, rows, known), plot)
    if as_json:
        click.echo(json.dumps([*rows, *known], indent=1))
    else:
        said = "h at which LG gains what the paper prints" if fit else f"with h = {hindrance:g}"
        show_rows(f"Paper 001, Figure {figure}, predicted: {said}", rows)
        if known:
            show_rows("Measured on an emulated grid, in its time divided by the dilation", known)


def _rows(figure: int, base: Sites, text: str | None) -> list[dict[str, Any]]:
    if figure == 4:
        axis = [1 << k for k in range(0, 25, 2)]
        sites = [replace(base, n_first=a, n_second=b) for a, b in ((30, 30), (20, 40))]
    else:
        axis = [1 << 16, 1 << 19]
        counts = (2, 5, 10, 15, 20, 25, 30) if figure == 5 else (2, 5, 10, 15, 20)
        sites = [replace(base, n_first=n, n_second=n * SPREADS[figure]) for n in counts]
    if text is not None:
        axis = [parse_size_bytes(piece) for piece in text.split(",")]
    found = []
    for where in sites:
        for size in axis:
            direct_s, lg_s = where.seconds("direct", size), where.seconds("lg", size)
            found.append(
                {
                    "hosts": f"{where.n_first} + {where.n_second}",
                    "n_hosts": where.n_first + where.n_second,
                    "n_bytes": size,
                    "direct_s": direct_s,
                    "lg_s": lg_s,
                    "direct_over_lg": direct_s / lg_s,
                    "flows": where.n_flows("direct"),
                    "free_flows": where.free_flows,
                }
            )
    return found


def _fit(base: Sites) -> list[dict[str, Any]]:
    return [
        {
            "hosts": f"{where.n_first} + {where.n_second}",
            "lg": said,
            "gain": gain,
            "n_bytes": FIT_BYTES,
            "hindrance": (found := hindrance_for(where, FIT_BYTES, gain)),
            "contention": found
            and replace(where, hindrance=found).flow_contention(where.n_flows("direct")),
        }
        for where in (base, replace(base, n_first=20, n_second=40))
        for said, gain in PAPER_GAINS.items()
    ]


def _compared(path: Path) -> list[dict[str, Any]]:
    """By size: MPI's own exchange, the direct one and LG, as fast as the grid is undilated."""
    hosts = re.search(r"(\d+)x(\d+)", path.stem)
    if hosts is None:
        raise UsageError(f"--measured {path}: its name must have the hosts, as lg-30x30.json")
    n_first, n_second = int(hosts[1]), int(hosts[2])
    found: dict[int, dict[str, Any]] = {}
    for row in read_measured(path):
        slower = re.search(r"-x([\d.]+)$", row.grid)
        times = found.setdefault(row.bytes, dict.fromkeys(COMPARED.values()))
        if row.variant in COMPARED:
            times[COMPARED[row.variant]] = row.median_s / (float(slower[1]) if slower else 1.0)
    return [
        {"hosts": f"{n_first} + {n_second}", "n_hosts": n_first + n_second, "n_bytes": size,
         **times, "mpi_over_lg": _over(times["mpi_s"], times["lg_s"]),
         "direct_over_lg": _over(times["direct_s"], times["lg_s"])}
        for size, times in sorted(found.items())
    ]  # fmt: skip


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one and other else None


def _of_figure(figure: int, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that belong beside it: Figure 4 has 60 hosts, 5 and 6 have their share of each."""
    if figure == 4:
        return [row for row in rows if row["n_hosts"] == LARGEST_HOSTS]
    spread = SPREADS[figure]
    return [
        row
        for row in rows
        if row["n_hosts"] % (1 + spread) == 0
        and row["hosts"].split(" + ")[1] == str(row["n_hosts"] * spread // (1 + spread))
    ]


def _draw_fit(rows: list[dict[str, Any]], path: Path) -> None:
    bars = {
        said: {row["hosts"]: row["hindrance"] for row in rows if row["lg"] == said}
        for said in PAPER_GAINS
    }
    draw_bars("Paper 001: h at which LG gains what is claimed", "h", bars, path)


def _figure(
    number: int, hindrance: float, rows: list[dict[str, Any]], known: list[dict[str, Any]]
) -> Figure:
    title = f"Paper 001, Figure {number}, predicted (h = {hindrance:g})"
    over = "n_bytes" if number == 4 else "n_hosts"
    apart = "hosts" if number == 4 else "n_bytes"
    lines = {}
    for group in dict.fromkeys(row[apart] for row in rows):
        own = [row for row in rows if row[apart] == group]
        label = group if number == 4 else format_size(group)
        for name, key in (("direct", "direct_s"), ("LG", "lg_s")):
            lines[f"{name}, {label} {DASHED}"] = (
                [row[over] for row in own], [row[key] for row in own],
            )  # fmt: skip
        for name, key in (("MPI", "mpi_s"), ("direct", "direct_s"), ("LG", "lg_s")):
            own = sorted((row for row in known if row[apart] == group and row[key]),
                         key=lambda row: row[over])  # fmt: skip
            if own:
                lines[f"{name}, {label}, measured"] = (
                    [row[over] for row in own], [row[key] for row in own],
                )  # fmt: skip
    return Figure(title, "bytes" if number == 4 else "hosts", "time (s)", lines, log=True)
