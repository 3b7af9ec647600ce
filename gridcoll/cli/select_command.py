"""``gridcoll select``: which clusters of a grid to run a problem on."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from gridcoll.cli.gridfiles import find_gridfile
from gridcoll.cli.gridmap import stdout_console
from gridcoll.cli.options import GRID, JSON
from gridcoll.cli.placement_grid import load_placement_grid, plan_allreduce_price
from gridcoll.cli.selection_report import selection_data, show_selection
from gridcoll.errors import UsageError
from gridcoll.files import write_atomically
from gridcoll.placement.allreduce import FORMS, PLAN, AllreducePrice
from gridcoll.placement.configurations import draw_configurations
from gridcoll.placement.correction import correct_by_run, read_run
from gridcoll.placement.cost import IterationCost, Prediction
from gridcoll.placement.problem import Problem, ProblemFile, read_problem
from gridcoll.placement.resources import Resources
from gridcoll.placement.searches import DEFAULT_SEARCH, SEARCHES
from gridcoll.placement.selection import select
from gridcoll.topology.hostfile import FORMATS, format_use


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option("--grid", help=GRID)
@click.option("--search", default=DEFAULT_SEARCH, help=f"one of {', '.join(SEARCHES)}")
@click.option("--seed", default=0, help="seed of what is drawn: by searches that do")
@click.option("--elements", type=int, help="size of the mesh, in place of the problem's")
@click.option("--allreduce", "form", help=f"{', '.join(FORMS)} or {PLAN}, for the problem's")
@click.option("--correct", type=click.Path(path_type=Path), help="a run's times and faces (.json)")
@JSON
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="draw into this file: the times around the choice",
)
@click.option("--hostfile", type=click.Path(path_type=Path), help="write the chosen hosts here")
@click.option("--mpi", "kind", help=f"whose launcher, for --hostfile: {', '.join(FORMATS)}")
def command(
    problem: Path,
    grid: str | None,
    search: str,
    seed: int,
    elements: int | None,
    form: str | None,
    correct: Path | None,
    as_json: bool,
    plot: Path | None,
    hostfile: Path | None,
    kind: str | None,
) -> None:
    """Choose the clusters that minimise the time of an iteration of PROBLEM (a TOML file)."""
    if (hostfile is None) != (kind is None):
        raise UsageError("--hostfile and --mpi: give both or neither")
    if kind is not None and kind not in FORMATS:
        raise UsageError(f"--mpi {kind!r}: unknown; known are {', '.join(FORMATS)}")
    stated = read_problem(problem)
    where = load_placement_grid(_grid_path(stated, problem, grid))
    adapted = _adapt(stated.problem, elements, form)
    price = plan_allreduce_price(where) if adapted.allreduce.form == PLAN else None
    if correct is not None:
        adapted = _corrected(adapted, where.resources, correct, price)
    cost = IterationCost(adapted, where.resources, price)
    selection = select(cost, search, seed)
    others = _other_forms(cost, search, seed)
    if as_json:
        click.echo(json.dumps(selection_data(cost, selection, others), indent=2))
    else:
        show_selection(stdout_console(), cost, selection, others)
    if plot is not None:
        draw_configurations([(cost, selection.best.clusters)], plot)
    if hostfile is not None and kind is not None:
        hosts = where.hosts(selection.best.clusters)
        write_atomically(hostfile, FORMATS[kind].format_hosts(hosts))
        click.echo(f"use: {format_use(kind, str(hostfile), len(hosts))}", err=True)


def _grid_path(stated: ProblemFile, problem: Path, grid: str | None) -> Path:
    if grid is not None:
        return find_gridfile(grid)
    if stated.grid is None:
        raise UsageError(f"problem file {problem}: grid: not given; name one with --grid")
    return stated.grid


def _adapt(problem: Problem, elements: int | None, form: str | None) -> Problem:
    if elements is not None:
        problem = msgspec.structs.replace(problem, n_elements=elements)
    if form is not None:
        allreduce = msgspec.structs.replace(problem.allreduce, form=form)
        problem = msgspec.structs.replace(problem, allreduce=allreduce)
    return problem


def _corrected(
    problem: Problem, resources: Resources, path: Path, price: AllreducePrice | None
) -> Problem:
    """With the betas of a run, of which stderr says what changed."""
    found = correct_by_run(problem, resources, read_run(path), price)
    update = found.problem.update
    measured = "" if found.measured_s is None else f", measured {1e3 * found.measured_s:.1f} ms"
    click.echo(
        f"corrected by {path}: beta_host {update.beta_host:.4g}, beta_cluster "
        f"{update.beta_cluster:.4g}; predicted {1e3 * found.predicted_s:.1f} ms{measured}, "
        f"now {1e3 * found.corrected_s:.1f} ms",
        err=True,
    )
    return found.problem


def _other_forms(cost: IterationCost, search: str, seed: int) -> dict[str, Prediction]:
    """What would be chosen were the ALLREDUCE priced otherwise."""
    return {
        form: select(
            IterationCost(_adapt(cost.problem, None, form), cost.resources), search, seed
        ).best
        for form in FORMS
        if form != cost.problem.allreduce.form
    }
