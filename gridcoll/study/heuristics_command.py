"""``gridcoll study heuristics``: Figures 1-4 of paper 000 and Figure 4 of paper 002."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click
from msgspec.structs import asdict
from rich.table import Table

from gridcoll.schedule import HEURISTICS, warm_up
from gridcoll.schedule.greedy import SEVEN
from gridcoll.study.comparison import Score, Setting, compare
from gridcoll.study.options import (
    BUSY,
    ITERATIONS,
    JSON,
    OUTPUT,
    OVERLAP,
    PLOTS,
    RANGES,
    SEED,
    make_accounting,
    parse_counts,
    parse_duration_range,
    parse_rate_range,
    prepare_output,
    progress_bar,
    report,
    table_console,
    write_tables,
)
from gridcoll.study.parameters import FILLINGS, INTERNALS, PARAMETERS, Range, change_parameters
from gridcoll.study.plots import Figure, draw_figure
from gridcoll.topology.units import parse_size_bytes

GREEDY = tuple(name for name in HEURISTICS if name not in ("optimal", "best"))


@click.command()
@RANGES
@click.option(
    "--clusters",
    callback=parse_counts,
    default="2-10,15-50:5",
    show_default=True,
    help="Numbers of clusters: single ones and ranges with an optional step.",
)
@ITERATIONS
@click.option(
    "--heuristic",
    "names",
    type=click.Choice(GREEDY),
    multiple=True,
    help="A heuristic to compare; may be repeated; default: the papers' seven.",
)
@click.option(
    "--filling",
    type=click.Choice(list(FILLINGS)),
    default="independent",
    show_default=True,
    help="How links are drawn; "
    + "; ".join(f"{f.name}: {f.good_for}" for f in FILLINGS.values())
    + ". The papers do not say which. per-cluster agrees with most of what paper 000 prints; the "
    "default assumes least (see gridcoll study fillings).",
)
@click.option("--sizes", "size", help="Bytes, for example 4MB; with --rate, they give the gaps.")
@click.option(
    "--latency", callback=parse_duration_range, help="One way, a range as '1 ms - 15 ms'."
)
@click.option("--gap", callback=parse_duration_range, help="Range of g, as '100 ms - 600 ms'.")
@click.option(
    "--rate", callback=parse_rate_range, help="Rate of a link, as '1 MB/s - 9 MB/s'; not --gap."
)
@click.option(
    "--internal-time", "inside", callback=parse_duration_range, help="Range of T, as '20 ms - 3 s'."
)
@click.option(
    "--internal",
    type=click.Choice(INTERNALS),
    default="given",
    show_default=True,
    help="T drawn from its range, or predicted for drawn clusters.",
)
@click.option(
    "--references",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Number of instances on which best is run, too.",
)
@BUSY
@OVERLAP
@SEED
@OUTPUT
@PLOTS
@JSON
def command(
    parameters: str,
    clusters: tuple[int, ...],
    iterations: int,
    names: tuple[str, ...],
    filling: str,
    size: str | None,
    latency: Range | None,
    gap: Range | None,
    rate: Range | None,
    inside: Range | None,
    internal: str,
    references: int,
    busy: str,
    internal_start: str,
    seed: int,
    output: Path | None,
    plots: str,
    as_json: bool,
) -> None:
    """Compare the broadcast heuristics on random grids: mean makespan and hit rate."""
    setting = Setting(
        change_parameters(
            PARAMETERS[parameters], latency, gap, rate, inside,
            None if size is None else parse_size_bytes(size),
        ), filling, internal, make_accounting(busy, internal_start),
        iterations, min(references, iterations), seed=seed,
    )  # fmt: skip
    prepare_output(output, draws=True)
    if references:
        warm_up()
    scores: list[Score] = []
    with progress_bar() as bar:
        task = bar.add_task("instances", total=iterations * len(clusters))
        for n_clusters in clusters:
            bar.update(task, description=f"{n_clusters} clusters")
            scores += compare(
                setting, n_clusters, names or SEVEN, lambda n_done: bar.advance(task, n_done)
            )
    rows = [asdict(score) for score in scores]
    report(rows, None, as_json, lambda: _print(scores))
    if output is not None:
        write_tables(output, parameters, rows)
        for name, figure in figures(scores, parameters).items():
            draw_figure(figure, output / f"{name}.{plots}")


def _labels(scores: Sequence[Score]) -> list[str]:
    return list(dict.fromkeys(score.label for score in scores))


def _print(scores: Sequence[Score]) -> None:
    console = table_console()
    found = {(score.n_clusters, score.label): score for score in scores}
    labels = _labels(scores)
    counts = list(dict.fromkeys(score.n_clusters for score in scores))
    cells: dict[str, Callable[[Score], str]] = {
        "Mean makespan (ms)": lambda s: f"{s.mean_s * 1e3:.0f}",
        "Hit rate (%)": lambda s: "" if s.hit_rate is None else f"{s.hit_rate * 100:.1f}",
    }
    if any(score.excess is not None for score in scores):
        cells["Above best (%)"] = lambda s: f"{(s.excess or 0) * 100:.2f}"
        cells["As good as best (%)"] = lambda s: f"{(s.as_good or 0) * 100:.1f}"
    for title, cell in cells.items():
        table = Table("clusters", *labels, title=title)
        for n in counts:
            table.add_row(str(n), *(cell(found[n, label]) for label in labels))
        console.print(table)
    for score in scores:
        if score.proven is not None and score.proven < 1:
            console.print(
                f"best, {score.n_clusters} clusters: {score.proven:.1%} of "
                f"{score.n_iterations} proven optimal"
            )


def figures(scores: Sequence[Score], parameters: str) -> dict[str, Figure]:
    """Return the papers' figures, as far as the scores cover them."""
    ecef = ("ECEF", "ECEF-LA", "ECEF-LAt", "ECEF-LAT", "Best")
    few = [score for score in scores if score.n_clusters <= 10]
    if parameters == "adaptive":
        return {
            "paper-002-figure-4a": _makespans("Paper 002, Figure 4a: up to 10 clusters", few),
            "paper-002-figure-4b": _makespans("Paper 002, Figure 4b: up to 50 clusters", scores),
        }
    close = [score for score in scores if score.label in ecef]
    return {
        "paper-000-figure-1": _makespans("Paper 000, Figure 1: up to 10 clusters", few),
        "paper-000-figure-2": _makespans("Paper 000, Figure 2: up to 50 clusters", scores),
        "paper-000-figure-3": _makespans(
            "Paper 000, Figure 3: ECEF and look-aheads", close, y_from_zero=False
        ),
        "paper-000-figure-4": hit_rates("Paper 000, Figure 4: hit rates", close),
    }


def _makespans(title: str, scores: Sequence[Score], y_from_zero: bool = True) -> Figure:
    lines = {}
    for label in _labels(scores):
        own = [score for score in scores if score.label == label]
        lines[label] = ([s.n_clusters for s in own], [s.mean_s for s in own])
    return Figure(title, "clusters", "mean makespan (s)", lines, y_from_zero)


def hit_rates(title: str, scores: Sequence[Score]) -> Figure:
    """Return a figure with a line of hit rates for each heuristic."""
    lines = {}
    for label in _labels(scores):
        own = [s for s in scores if s.label == label and s.hit_rate is not None]
        if own:
            lines[label] = ([s.n_clusters for s in own], [100 * (s.hit_rate or 0) for s in own])
    return Figure(title, "clusters", "hit rate (%)", lines)
