"""``gridcoll study fillings``: Figure 4 of paper 000, with every way to fill the matrices."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import click
from msgspec import Struct
from msgspec.structs import asdict
from rich.table import Table

from gridcoll.schedule.greedy import SEVEN
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
from gridcoll.study.parameters import ECEF_FAMILY, FILLINGS
from gridcoll.study.plots import draw_panels

Scores = Mapping[tuple[int, str], Score]
"""By number of clusters and heuristic."""

ECEF_LAT = "ecef-la-max-t"
FEW, MANY = 10, 50
"""Numbers of clusters."""


class Claim(Struct, frozen=True):
    """A claim of the paper in our words. ``holds`` needs the counts 3 to `FEW`, and `MANY`."""

    number: int
    figure: str
    says: str
    holds: Callable[[Scores], bool]


def by_key(scores: Sequence[Score]) -> Scores:
    """Scores by number of clusters and heuristic."""
    return {(score.n_clusters, score.heuristic): score for score in scores}


def _mean(scores: Scores, n: int, name: str) -> float:
    return scores[n, name].mean_s


def _hits(scores: Scores, n: int, name: str) -> float:
    rate = scores[n, name].hit_rate
    return 0.0 if rate is None else rate


def _counts(scores: Scores, least: int = 3) -> list[int]:
    return sorted({n for n, _ in scores if n >= least})


def _flat_is_slowest(scores: Scores) -> bool:
    return all(
        max(SEVEN, key=lambda name: _mean(scores, n, name)) == "flat" for n in _counts(scores)
    )


def _bottom_up_before_fef(scores: Scores) -> bool:
    return all(_mean(scores, n, "bottom-up") < _mean(scores, n, "fef") for n in _counts(scores))


def _family_leads(scores: Scores) -> bool:
    few = [n for n in _counts(scores) if n <= FEW]
    return all(
        min(_mean(scores, n, name) for name in ECEF_FAMILY) <= _mean(scores, n, other)
        for n in few
        for other in ("flat", "fef", "bottom-up")
    )


def _two_are_unfit(scores: Scores) -> bool:
    least = min(_mean(scores, MANY, name) for name in SEVEN)
    return all(_mean(scores, MANY, name) > 1.5 * least for name in ("flat", "fef"))


def _number_hardly_matters(scores: Scores) -> bool:
    return all(_mean(scores, MANY, name) < 1.2 * _mean(scores, FEW, name) for name in ECEF_FAMILY)


def _too_close_to_tell(scores: Scores) -> bool:
    for n in _counts(scores, FEW):
        family = [_mean(scores, n, name) for name in ECEF_FAMILY]
        deviation = scores[n, "ecef"].deviation_s / scores[n, "ecef"].n_iterations ** 0.5
        if max(family) - min(family) > 4 * deviation:
            return False
    return True


def _hit_rates_fall(scores: Scores) -> bool:
    return all(_hits(scores, MANY, name) < _hits(scores, FEW, name) for name in ("ecef", "ecef-la"))


def _lat_keeps_its_rate(scores: Scores) -> bool:
    return all(0.35 <= _hits(scores, n, ECEF_LAT) <= 0.55 for n in _counts(scores, FEW))


def _lat_is_fastest_of_many(scores: Scores) -> bool:
    return all(_mean(scores, MANY, ECEF_LAT) <= _mean(scores, MANY, name) for name in SEVEN)


def _mixed_pays(scores: Scores) -> bool:
    few = min(("ecef", "ecef-la"), key=lambda name: _mean(scores, FEW, name))
    return _mean(scores, FEW, few) <= _mean(scores, FEW, ECEF_LAT) and _lat_is_fastest_of_many(
        scores
    )


CLAIMS = (
    Claim(1, "1", "flat is the slowest", _flat_is_slowest),
    Claim(2, "1", "BottomUp beats FEF", _bottom_up_before_fef),
    Claim(3, "1", "the ECEF family is the best", _family_leads),
    Claim(4, "2", "flat and FEF are unfit for many clusters", _two_are_unfit),
    Claim(5, "3", "the number of clusters hardly matters to the ECEF family",
          _number_hardly_matters),
    Claim(6, "3", "the family's averages are too close to tell apart (4 standard errors)",
          _too_close_to_tell),
    Claim(7, "4", "the hit rates of ECEF and ECEF-LA fall from 10 to 50 clusters",
          _hit_rates_fall),
    Claim(8, "4", "ECEF-LAT keeps a hit rate of about 45 % (35 to 55 % from 10 clusters on)",
          _lat_keeps_its_rate),
    Claim(9, "3", "ECEF-LAT has the smallest mean at 50 clusters", _lat_is_fastest_of_many),
    Claim(10, "4", "ECEF or ECEF-LA for few clusters, ECEF-LAT for many", _mixed_pays),
)  # fmt: skip
"""The numbers are those of ``benchmarks/studies/CLAIMS.md``."""


PAPER_LAT_PERCENT = 45.0


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
    """Show hit rates of the ECEF family by how links are drawn, beside paper 000's Figure 4.

    The paper gives the range of the gaps, but not whether each link, each pair or each cluster
    draws its own. The command also shows which of the paper's ten claims hold with each filling.
    Claims that depend on two close figures need the default number of iterations, which takes about
    four minutes.
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
            hit_rates(filling, [s for s in found if s.heuristic in ECEF_FAMILY])
            for filling, found in scores.items()
        ]
        draw_panels(
            "Paper 000, Figure 4 by filling (the paper: ECEF-LAT constant at about 45 %)",
            panels, plot, level=PAPER_LAT_PERCENT,
        )  # fmt: skip
    if as_json:
        click.echo(json.dumps({"verdicts": verdicts, "scores": rows}, indent=1))
    else:
        _print(scores, verdicts)


def _print(scores: dict[str, list[Score]], verdicts: dict[str, list[bool]]) -> None:
    console = table_console()
    rates = Table("hit rate %", *FILLINGS, "paper 000", title="Figure 4, side by side")
    in_paper = {"ecef": "falls", "ecef-la": "falls", "ecef-la-max-t": "about 45, constant"}
    for name in ECEF_FAMILY:
        for n in (FEW, MANY):
            cells = [
                f"{100 * (by_key(found)[n, name].hit_rate or 0):.0f}" for found in scores.values()
            ]
            rates.add_row(f"{name}, {n} clusters", *cells, in_paper.get(name, ""))
    console.print(rates)
    claims = Table("claim", *FILLINGS, title="Which claims of paper 000 hold")
    for row, claim in enumerate(CLAIMS):
        cells = ["holds" if found[row] else "no" for found in verdicts.values()]
        claims.add_row(f"{claim.number} (Figure {claim.figure}): {claim.says}", *cells)
    claims.add_row("together", *(f"{sum(found)} of {len(CLAIMS)}" for found in verdicts.values()))
    console.print(claims)
