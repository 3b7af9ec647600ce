"""``gridcoll study fillings``: Figure 4 of paper 000 with every filling of the matrices."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from gridcoll.study.claims_000 import CLAIMS, FAMILY, FEW, MANY, by_key
from gridcoll.study.comparison import Score, Setting, compare
from gridcoll.study.heuristics_command import hit_rates
from gridcoll.study.options import (
    BUSY,
    ITERATIONS,
    JSON,
    OVERLAP,
    PLOT,
    RESULT,
    SEED,
    make_accounting,
    parse_counts,
    prepare_plot,
    progress_bar,
    table_console,
    write_rows,
)
from gridcoll.study.parameters import FILLINGS
from gridcoll.study.plots import draw_panels

PAPER_LATE_PERCENT = 45.0


@click.command()
@click.option(
    "--clusters", callback=parse_counts, default="3-10,15-50:5", show_default=True,
    help="Numbers of clusters, with 10 and 50 among them.",
)  # fmt: skip
@ITERATIONS
@BUSY
@OVERLAP
@SEED
@RESULT
@PLOT
@JSON
def command(
    clusters: tuple[int, ...],
    iterations: int,
    busy: str,
    internal_start: str,
    seed: int,
    output: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Hit rates of the ECEF family by how random links are filled, beside paper 000's Figure 4.

    The paper gives the range of the gaps, not whether each link, each pair or each cluster draws
    its own. Also says which of its ten claims hold with each filling.
    """
    if not {FEW, MANY} <= set(clusters):
        raise click.BadParameter(f"--clusters: {FEW} and {MANY} must be among them")
    prepare_plot(plot)
    accounting = make_accounting(busy, internal_start)
    scores: dict[str, list[Score]] = {}
    with progress_bar() as bar:
        task = bar.add_task("instances", total=iterations * len(clusters) * len(FILLINGS))
        for filling in FILLINGS:
            setting = Setting(
                filling=filling, accounting=accounting, n_iterations=iterations, seed=seed
            )
            scores[filling] = [
                score
                for n in clusters
                for score in compare(setting, n, on_progress=lambda done: bar.advance(task, done))
            ]
    verdicts = {
        filling: [claim.holds(by_key(found)) for claim in CLAIMS]
        for filling, found in scores.items()
    }
    rows = [
        {"filling": filling, **asdict(score)} for filling, all_ in scores.items() for score in all_
    ]
    if output is not None:
        write_rows(output, rows)
    if plot is not None:
        panels = [
            hit_rates(filling, [s for s in found if s.heuristic in FAMILY])
            for filling, found in scores.items()
        ]
        draw_panels(
            "Paper 000, Figure 4 by filling (the paper: ECEF-LAT constant at about 45 %)",
            panels, plot, level=PAPER_LATE_PERCENT,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps({"verdicts": verdicts, "scores": rows}, indent=1))
    else:
        _print(scores, verdicts)


def _print(scores: dict[str, list[Score]], verdicts: dict[str, list[bool]]) -> None:
    console = table_console()
    rates = Table("hit rate %", *FILLINGS, "paper 000", title="Figure 4, side by side")
    said = {"ecef": "falls", "ecef-la": "falls", "ecef-la-max-t": "about 45, constant"}
    for name in FAMILY:
        for n in (FEW, MANY):
            cells = [
                f"{100 * (by_key(found)[n, name].hit_rate or 0):.0f}" for found in scores.values()
            ]
            rates.add_row(f"{name}, {n} clusters", *cells, said.get(name, ""))
    console.print(rates)
    claims = Table("claim", *FILLINGS, title="Which claims of paper 000 hold")
    for row, claim in enumerate(CLAIMS):
        cells = ["holds" if found[row] else "no" for found in verdicts.values()]
        claims.add_row(f"{claim.number} (Figure {claim.figure}): {claim.says}", *cells)
    claims.add_row("together", *(f"{sum(found)} of {len(CLAIMS)}" for found in verdicts.values()))
    console.print(claims)
