"""``gridcoll study one-cluster``: the tables and figures of papers 002 and 003 inside a cluster.

These are the figures of paper 003 and the tables of 002 and 003, from the pLogP of one cluster.

The paper's cluster, icluster-2, had 100 machines on Gigabit Ethernet. Its pLogP is in a picture
only (Figure 1), without numbers in the text. So the default here is a stand-in: a latency of 50 µs,
1 Gbit/s, 20 µs per message. It can be replaced by any measured model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import Struct
from msgspec.structs import asdict, replace
from rich.table import Table

from gridcoll.errors import UsageError
from gridcoll.model.closed_forms import (
    ALLTOALL_BOUNDS,
    CLOSED_FORMS,
    SCATTER_COSTS,
    Call,
    with_contention_s,
)
from gridcoll.model.gridmodel import GridModel
from gridcoll.model.plogp import PLogP
from gridcoll.model.storage import read_model
from gridcoll.plan.choose import choose
from gridcoll.plan.registry import REGISTRIES
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
from gridcoll.topology.grid import Cluster, Grid, Process
from gridcoll.topology.units import (
    format_duration,
    format_size,
    parse_duration_s,
    parse_rate_bytes_per_s,
    parse_size_bytes,
)

MIN_SEGMENT_BYTES = 1
DEGREES = (2, 3, 4, 6, 8)
LONG_BYTES = 1 << 20


def stand_in_link(
    latency_s: float = 50e-6, bytes_per_s: float = 125e6, message_s: float = 20e-6
) -> PLogP:
    """Return a pLogP in which the processor is free while the wire is busy: os, or below g."""
    wire_s = LONG_BYTES / bytes_per_s
    return PLogP(
        latency_s=latency_s,
        sizes_bytes=(0, LONG_BYTES),
        gap_s=(message_s, message_s + wire_s),
        send_s=(message_s / 2, message_s / 2 + wire_s / 3),
        recv_s=(message_s / 2, message_s / 2 + wire_s / 3),
    )


def one_cluster(link: PLogP, n_ranks: int) -> GridModel:
    """Return the model of one cluster of ``n_ranks`` hosts."""
    if n_ranks < 2:
        raise UsageError(f"ranks: must be at least 2, got {n_ranks}")
    processes = tuple(Process(rank, f"host{rank}") for rank in range(n_ranks))
    return GridModel(Grid((Cluster("cluster", processes),), "one cluster"), ((link,),))


class FormRow(Struct, frozen=True):
    """A line of a table at one size: the paper's formula beside our plan of the same name.

    ``plan_s`` is the predicted time of the plan; None if no plan has this name.
    """

    table: str
    strategy: str
    formula: str
    n_ranks: int
    n_bytes: int
    segment_bytes: int
    formula_s: float
    plan_s: float | None
    holds: str


def halved_sizes(n_bytes: int) -> list[int]:
    """Return segments of ``m / 2^i`` bytes, i from 0 to log2 m (paper 003, §3)."""
    sizes = [max(n_bytes, 1)]
    while sizes[-1] > MIN_SEGMENT_BYTES:
        sizes.append(sizes[-1] // 2)
    return sizes


def best_closed_form(name: str, link: PLogP, n_ranks: int, n_bytes: int) -> tuple[float, int]:
    """Return seconds and segment of ``name`` at its best segment m / 2^i and best degree."""
    form = CLOSED_FORMS[name]
    segmented = "s)" in form.formula
    return min(
        (form.cost_s(Call(link, n_ranks, n_bytes, segment, degree)), segment)
        for segment in (halved_sizes(n_bytes) if segmented else [max(n_bytes, 1)])
        for degree in (DEGREES if name == "k-chain" else (2,))
    )


def broadcast_rows(link: PLogP, n_ranks: int, n_bytes: int) -> list[FormRow]:
    """Return Table 1 of papers 002 and 003."""
    model = one_cluster(link, n_ranks)
    found = []
    for name, form in CLOSED_FORMS.items():
        formula_s, segment = best_closed_form(name, link, n_ranks, n_bytes)
        plan_s = _plan_s("bcast", f"plain-{name}", model, n_bytes)
        found.append(
            FormRow(
                "1", name, form.formula, n_ranks, n_bytes, segment, formula_s, plan_s, form.good_for
            )
        )
    return found


def scatter_rows(link: PLogP, n_ranks: int, n_bytes: int) -> list[FormRow]:
    """Return Table 2 of paper 003."""
    model = one_cluster(link, n_ranks)
    found = []
    for name, cost in SCATTER_COSTS.items():
        exact = cost.exact_for(n_ranks)
        found.append(
            FormRow(
                "2", name, cost.formula, n_ranks, n_bytes, n_bytes,
                cost.seconds(link, n_ranks, n_bytes), _plan_s("scatter", name, model, n_bytes),
                "exact for this P" if exact else "P is no power of two: the plan takes more",
            )
        )  # fmt: skip
    return found


def alltoall_rows(link: PLogP, n_ranks: int, n_bytes: int) -> list[FormRow]:
    """Return Table 3 of paper 003 with the paper's prediction between its bounds, and ours."""
    model = one_cluster(link, n_ranks)
    plan_s = _plan_s("alltoall", "direct", model, n_bytes)
    costs = {name: bound.cost_s(link, n_ranks, n_bytes) for name, bound in ALLTOALL_BOUNDS.items()}
    remarks = {
        "paper-upper": "adds receiving to sending: up to twice ours",
        "paper-lower": "as ours where os + or < g",
        "upper": "sends and receives side by side; what a plan is priced at with γ = 1",
        "lower": "what a plan is priced at with γ = 0",
    }
    found = [
        FormRow(
            "3", name, bound.formula, n_ranks, n_bytes, n_bytes, costs[name],
            plan_s if name == "upper" else None, remarks[name],
        )
        for name, bound in ALLTOALL_BOUNDS.items()
    ]  # fmt: skip
    predicted = with_contention_s(costs["paper-lower"], costs["paper-upper"])
    found.append(
        FormRow(
            "3", "paper-predicted", "Lower + (Upper - Lower) γ, γ = 2/3", n_ranks, n_bytes,
            n_bytes, predicted, None, "γ is of the paper's network; ours measures its own",
        )
    )  # fmt: skip
    return found


def _plan_s(collective: str, name: str, model: GridModel, n_bytes: int) -> float | None:
    """Return the predicted time of the plan called ``name``, without corrections, or None."""
    if name not in REGISTRIES[collective]:
        return None
    winner = choose(collective, model, n_bytes, 0, forced=name).winner
    return winner.predicted_s if winner.name == name else None


Curve = Callable[[PLogP, int, int], float]
"""Seconds as a function of link, ranks and bytes."""


def _broadcast(name: str) -> Curve:
    return lambda link, n_ranks, n_bytes: best_closed_form(name, link, n_ranks, n_bytes)[0]


def _bound(name: str) -> Curve:
    return ALLTOALL_BOUNDS[name].cost_s


def _paper_alltoall(link: PLogP, n_ranks: int, n_bytes: int) -> float:
    lower, upper = (_bound(name)(link, n_ranks, n_bytes) for name in ("paper-lower", "paper-upper"))
    return with_contention_s(lower, upper)


class FigureOf003(Struct, frozen=True):
    """A figure over message size, for some numbers of processes.

    ``curves`` maps a label to the model and to (collective, algorithm) in the measured rows of
    `gridcoll bench`; ``most_bytes`` is the end of the axis.
    """

    number: int
    title: str
    ranks: tuple[int, ...]
    curves: Mapping[str, tuple[Curve, tuple[str, str]]]
    most_bytes: int = 1 << 20


_FLAT = (_broadcast("flat"), ("bcast", "plain-flat"))
_BINOMIAL = (_broadcast("binomial"), ("bcast", "plain-binomial"))
_PIPELINE = (_broadcast("segmented-chain"), ("bcast", "plain-segmented-chain"))
_SEGMENTED_FLAT = (_broadcast("segmented-flat"), ("bcast", "plain-segmented-flat"))
_SEGMENTED_BINOMIAL = (_broadcast("segmented-binomial"), ("bcast", "plain-segmented-binomial"))
_FLAT_SCATTER = (SCATTER_COSTS["flat"].seconds, ("scatter", "flat"))
_BINOMIAL_SCATTER = (SCATTER_COSTS["binomial"].seconds, ("scatter", "binomial"))
_MANY = (2, 4, 8, 16, 24)

FIGURES: dict[int, FigureOf003] = {
    figure.number: figure
    for figure in (
        FigureOf003(2, "segmented chain broadcast", _MANY, {"segmented chain": _PIPELINE}),
        FigureOf003(3, "binomial broadcast", _MANY, {"binomial": _BINOMIAL}),
        FigureOf003(4, "flat broadcast", _MANY, {"flat": _FLAT}),
        FigureOf003(
            5, "broadcasts among 16", (16,),
            {"flat": _FLAT, "binomial": _BINOMIAL, "segmented chain": _PIPELINE},
        ),
        FigureOf003(
            6, "small messages among 16, with the segmented variants of §3.1", (16,),
            {"flat": _FLAT, "binomial": _BINOMIAL, "segmented chain": _PIPELINE,
             "segmented flat": _SEGMENTED_FLAT, "segmented binomial": _SEGMENTED_BINOMIAL},
            1 << 14,
        ),
        FigureOf003(7, "binomial scatter", _MANY, {"binomial": _BINOMIAL_SCATTER}),
        FigureOf003(8, "flat scatter", _MANY, {"flat": _FLAT_SCATTER}),
        FigureOf003(
            9, "scatters among 24", (24,), {"flat": _FLAT_SCATTER, "binomial": _BINOMIAL_SCATTER}
        ),
        FigureOf003(
            10, "all-to-all among 24 and its bounds", (24,),
            {"paper's upper bound": (_bound("paper-upper"), ("", "")),
             "paper's lower bound": (_bound("paper-lower"), ("", "")),
             "paper, γ = 2/3": (_paper_alltoall, ("alltoall", "direct")),
             "ours, γ = 1": (_bound("upper"), ("", ""))},
        ),
        FigureOf003(
            11, "rotated and unrotated direct exchange among 24", (24,),
            {"rotated": (_bound("upper"), ("alltoall", "direct")),
             "unrotated": (_bound("upper"), ("alltoall", "direct-unrotated"))},
        ),
    )
}  # fmt: skip
"""All but Figure 1, the pLogP itself, which `_plogp` draws."""


def sizes_to(most_bytes: int) -> list[int]:
    """Return powers of two, from 64 on."""
    return [1 << k for k in range(40) if 64 <= 1 << k <= most_bytes]


def points(
    figure: FigureOf003, link: PLogP, sizes: Sequence[int]
) -> dict[tuple[str, int], list[float]]:
    """Return seconds by the model at ``sizes``, for each label and number of processes."""
    return {
        (label, n_ranks): [curve(link, n_ranks, size) for size in sizes]
        for label, (curve, _) in figure.curves.items()
        for n_ranks in figure.ranks
    }


Measured = dict[tuple[str, str], list[tuple[int | None, int, float]]]
"""Processes (None: as many as in the figure), bytes and seconds, by collective and algorithm."""


@click.command()
@click.option(
    "--table",
    type=click.Choice(["1", "2", "3"]),
    help="Table of paper 003; 1 is in paper 002, too.",
)
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
    """Show pLogP models of collectives inside one cluster: paper 003's Tables 1-3, Figures 1-11.

    A table shows the paper's formula beside the predicted time of our plan of the same name. A
    figure shows the model, and measured times if rows are given. The paper prints no times.
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
    """Draw the paper's formula beside our plan, for each line and size."""
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
            for row_ranks, size, value in measured[key]
            if (n := row_ranks or max(figure.ranks)) in figure.ranks
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
