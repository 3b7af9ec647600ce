"""``gridcoll select``: which clusters of a grid to run a problem on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from rich.console import Console
from rich.table import Table

from gridcoll.cli.gridfiles import find_gridfile
from gridcoll.cli.gridmap import stdout_console
from gridcoll.cli.placement_grid import load_placement_grid, plan_allreduce_price
from gridcoll.errors import FileError, UsageError
from gridcoll.placement.allreduce import FORMS, PLAN
from gridcoll.placement.configurations import draw_configurations
from gridcoll.placement.cost import IterationCost
from gridcoll.placement.prediction import Prediction
from gridcoll.placement.problem import Problem, ProblemFile, read_problem
from gridcoll.placement.searches import DEFAULT_SEARCH, SEARCHES
from gridcoll.placement.selection import Selection, select
from gridcoll.topology.hostfile import FORMATS, format_use
from gridcoll.topology.units import format_duration


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option("--grid", help="declared grid (.toml), measured model (.json) or name")
@click.option("--search", default=DEFAULT_SEARCH, help=f"one of {', '.join(SEARCHES)}")
@click.option("--seed", default=0, help="of the searches that draw")
@click.option("--elements", type=int, help="size of the mesh, in place of the problem's")
@click.option("--allreduce", "form", help=f"{', '.join(FORMS)} or {PLAN}, for the problem's")
@click.option("--json", "as_json", is_flag=True, help="for scripts")
@click.option("--plot", type=click.Path(path_type=Path), help="draw the times around the choice")
@click.option("--hostfile", type=click.Path(path_type=Path), help="write the chosen hosts here")
@click.option("--mpi", "kind", help=f"format of the hostfile: one of {', '.join(FORMATS)}")
def command(
    problem: Path,
    grid: str | None,
    search: str,
    seed: int,
    elements: int | None,
    form: str | None,
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
    cost = IterationCost(adapted, where.resources, price)
    selection = select(cost, search, seed)
    others = _other_forms(cost, search, seed)
    if as_json:
        click.echo(json.dumps(_as_data(cost, selection, others), indent=2))
    else:
        _show(stdout_console(), cost, selection, others)
    if plot is not None:
        draw_configurations([(cost, selection.best.clusters)], plot)
    if hostfile is not None and kind is not None:
        hosts = where.hosts(selection.best.clusters)
        _write_hostfile(hostfile, FORMATS[kind].format_hosts(hosts))
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


def _other_forms(cost: IterationCost, search: str, seed: int) -> dict[str, Prediction]:
    """What would be chosen were the ALLREDUCE priced otherwise."""
    return {
        form: select(
            IterationCost(_adapt(cost.problem, None, form), cost.resources), search, seed
        ).best
        for form in FORMS
        if form != cost.problem.allreduce.form
    }


def _write_hostfile(path: Path, text: str) -> None:
    """Not atomically: ``/dev/stdout`` must stay what it is."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(f"hostfile {path}: {error}") from None


def _names(cost: IterationCost, clusters: tuple[int, ...]) -> list[str]:
    return [cost.resources.names[i] for i in clusters]


def _as_data(
    cost: IterationCost, selection: Selection, others: dict[str, Prediction]
) -> dict[str, Any]:
    return {
        "problem": cost.problem.name,
        "n_elements": cost.problem.n_elements,
        "grid": cost.resources.grid_name,
        "search": selection.search,
        "proven": selection.proven,
        "n_evaluated": selection.n_evaluated,
        "best": _prediction_data(cost, selection.best),
        "runner_up": selection.runner_up and _prediction_data(cost, selection.runner_up),
        "runner_up_exact": selection.runner_up_exact,
        "changes": [
            {
                "cluster": cost.resources.names[change.cluster],
                "kind": change.kind,
                "iteration_s": None if change.lacks_memory else change.iteration_s,
                "gain_s": None if change.lacks_memory else change.gain_s,
                "lacks_memory": change.lacks_memory,
            }
            for change in selection.changes
        ],
        "other_allreduce_forms": {
            form: _prediction_data(cost, prediction) for form, prediction in others.items()
        },
    }


def _prediction_data(cost: IterationCost, prediction: Prediction) -> dict[str, Any]:
    phases = [phase.name for phase in cost.problem.phases]
    return {
        "clusters": _names(cost, prediction.clusters),
        "n_hosts": prediction.n_hosts,
        "iteration_s": prediction.iteration_s,
        "compute_s": prediction.compute_s,
        "communication_s": prediction.communication_s,
        "phases_s": [
            {"name": name, "s": time_s}
            for name, time_s in zip(phases, prediction.phase_s, strict=True)
        ],
        "update_s": prediction.update_s,
        "update_latency_s": prediction.latency_s,
        "update_inter_s": prediction.inter_s,
        "update_intra_s": prediction.intra_s,
        "allreduce_s": prediction.allreduce_s,
        "elements_per_host": list(prediction.elements_per_host),
    }


def _show(
    console: Console, cost: IterationCost, selection: Selection, others: dict[str, Prediction]
) -> None:
    best = selection.best
    proof = "proven optimal" if selection.proven else "not proven optimal"
    console.print(
        f"[bold]{', '.join(_names(cost, best.clusters))}[/bold]: "
        f"{len(best.clusters)} of {cost.n_clusters} clusters, {best.n_hosts} hosts, "
        f"{cost.problem.n_elements} elements"
    )
    console.print(f"found by {selection.search} ({proof}, {selection.n_evaluated} evaluations)")
    console.print(_parts_table(cost, best))
    if selection.runner_up is not None:
        kind = "of all subsets" if selection.runner_up_exact else "of those one cluster away"
        console.print(f"runner-up ({kind}): {_summary(cost, selection.runner_up, best)}")
    for form, other in others.items():
        console.print(f"with ALLREDUCE priced as {form}: {_summary(cost, other, best)}")
    console.print(_changes_table(cost, selection))


def _parts_table(cost: IterationCost, best: Prediction) -> Table:
    update, allreduce = cost.problem.update, cost.problem.allreduce
    table = Table("part of an iteration", "predicted", "of which")
    for phase, time_s in zip(cost.problem.phases, best.phase_s, strict=True):
        table.add_row(f"computation {phase.name!r}", format_duration(time_s), "")
    table.add_row(
        f"{update.count} UPDATEs of {format_duration(best.update_s)}, {update.mode}",
        format_duration(update.count * best.update_s),
        f"each {format_duration(best.latency_s)} latency, {format_duration(best.inter_s)} between "
        f"clusters, {format_duration(best.intra_s)} between hosts",
    )
    table.add_row(
        f"{allreduce.count} ALLREDUCEs ({allreduce.form})",
        format_duration(allreduce.count * best.allreduce_s),
        f"each {format_duration(best.allreduce_s)}",
    )
    table.add_row("[bold]iteration[/bold]", format_duration(best.iteration_s), "")
    return table


def _summary(cost: IterationCost, other: Prediction, best: Prediction) -> str:
    same = other.clusters == best.clusters
    names = "the same clusters" if same else ", ".join(_names(cost, other.clusters))
    percent = 100.0 * (other.iteration_s / best.iteration_s - 1.0)
    return f"{names}, {format_duration(other.iteration_s)} ({percent:+.3g} %)"


def _changes_table(cost: IterationCost, selection: Selection) -> Table:
    table = Table("one change", "iteration", "gain (+) or cost (-)")
    for change in sorted(selection.changes, key=lambda change: (-change.gain_s, change.cluster)):
        sign = "+" if change.kind == "add" else "-"
        name = f"{sign} {cost.resources.names[change.cluster]}"
        if change.lacks_memory:
            table.add_row(name, "not enough memory", "")
            continue
        gain = np.sign(change.gain_s)
        text = format_duration(abs(change.gain_s))
        table.add_row(
            name, format_duration(change.iteration_s), f"{'+' if gain > 0 else '-'} {text}"
        )
    return table
