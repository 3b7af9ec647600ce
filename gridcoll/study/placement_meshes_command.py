"""``gridcoll study placement-meshes``: Table 5 and Figure 2 of paper 004."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.table import Table

from gridcoll.errors import UsageError
from gridcoll.placement import (
    IterationCost,
    Prediction,
    Resources,
    Selection,
    predict,
    read_problem,
    select,
)
from gridcoll.placement.configurations import draw_configurations
from gridcoll.study.options import JSON, table_console, whole_numbers
from gridcoll.topology import read_gridfile

PAPER = {
    588_245: (17, 17, 0, 3),
    2_480_674: (71, 53, 27, 13),
    5_135_732: (148, 78, 29, 15),
    100_000_000: (2879, 765, 114, 25),
    1_000_000_000: (28796, 7256, 751, 25),
}
"""Table 5: the time on Orsay, on the grid and of communication (ms), and the number of clusters."""

TABLE_5 = "588245,2480674,5135732,100000000,1000000000"


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option(
    "--elements", default=TABLE_5, show_default=True, help="Size of the mesh; several by commas."
)
@click.option("--alone", help="A site to compare with: the same mesh on all of its clusters.")
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="Draw into this file: the times around each choice.",
)
@JSON
def command(
    problem: Path, elements: str, alone: str | None, plot: Path | None, as_json: bool
) -> None:
    """Choose clusters for PROBLEM (a TOML file that names its grid) at several mesh sizes."""
    problem_file = read_problem(problem)
    if problem_file.grid is None:
        raise UsageError(f"problem file {problem}: grid: not given")
    resources = Resources.from_spec(read_gridfile(problem_file.grid))
    site = _clusters_of(resources, alone)
    chosen = []
    for n_elements in whole_numbers("--elements", elements):
        resized = msgspec.structs.replace(problem_file.problem, n_elements=n_elements)
        cost = IterationCost(resized, resources)
        chosen.append((cost, select(cost), predict(cost, site) if site else None))
    if as_json:
        click.echo(json.dumps([_record(*entry) for entry in chosen], indent=1))
    else:
        table_console().print(_table(chosen, alone, PAPER if elements == TABLE_5 else {}))
    if plot is not None:
        draw_configurations([(cost, s.best.clusters) for cost, s, _ in chosen], plot)


def _clusters_of(resources: Resources, site: str | None) -> tuple[int, ...]:
    if site is None:
        return ()
    members = tuple(i for i, name in enumerate(resources.sites) if name == site)
    if not members:
        known = ", ".join(dict.fromkeys(resources.sites))
        raise UsageError(f"--alone {site!r}: unknown site; the grid has {known}")
    return members


def _sites(cost: IterationCost, clusters: tuple[int, ...]) -> str:
    """Return the clusters as the paper writes them: each site with its number of clusters."""
    chosen = [cost.resources.sites[i] or cost.resources.names[i] for i in clusters]
    return ", ".join(f"{site} ({chosen.count(site)})" for site in dict.fromkeys(chosen))


def _record(cost: IterationCost, selection: Selection, site: Prediction | None) -> dict[str, Any]:
    best = selection.best
    return {
        "n_elements": cost.problem.n_elements,
        "alone_iteration_s": None if site is None else site.iteration_s,
        "iteration_s": best.iteration_s,
        "communication_s": best.communication_s,
        "n_clusters": len(best.clusters),
        "clusters": [cost.resources.names[i] for i in best.clusters],
        "proven": selection.proven,
    }


def _table(
    chosen: list[tuple[IterationCost, Selection, Prediction | None]],
    alone: str | None,
    paper_rows: Mapping[int, tuple[int, ...]],
) -> Table:
    """Return our results, with the paper's in brackets if it has the same mesh."""
    table = Table("elements", title="In brackets: paper 004, Table 5" if paper_rows else None)
    if alone is not None:
        table.add_column(f"on {alone} (ms)", justify="right")
    for title in ("on the grid (ms)", "communication (ms)", "clusters"):
        table.add_column(title, justify="right")
    table.add_column("selected")
    for cost, selection, site in chosen:
        best = selection.best
        everything = len(best.clusters) == cost.n_clusters
        paper = [f" ({value})" for value in paper_rows.get(cost.problem.n_elements, ())] or [""] * 4
        table.add_row(
            f"{cost.problem.n_elements:,}",
            *([] if site is None else [f"{1e3 * site.iteration_s:.0f}{paper[0]}"]),
            f"{1e3 * best.iteration_s:.0f}{paper[1]}",
            f"{1e3 * best.communication_s:.0f}{paper[2]}",
            f"{len(best.clusters)}{paper[3]}",
            "all" if everything else _sites(cost, best.clusters),
        )
    return table
