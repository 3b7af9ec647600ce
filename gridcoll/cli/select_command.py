"""``gridcoll select``: which clusters of a grid to run a problem on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from gridcoll.cli.gridmap import stdout_console
from gridcoll.cli.options import GRID, JSON
from gridcoll.errors import UsageError
from gridcoll.files import write_atomically
from gridcoll.gridfiles import find_gridfile
from gridcoll.model import GridModel, declared_model, read_model
from gridcoll.placement.allreduce import FORMS, PLAN, AllreducePrice
from gridcoll.placement.configurations import draw_configurations
from gridcoll.placement.correction import correct_by_run, read_run
from gridcoll.placement.cost import IterationCost, Prediction
from gridcoll.placement.problem import Problem, ProblemFile, read_problem
from gridcoll.placement.resources import Resources
from gridcoll.placement.selection import DEFAULT_SEARCH, SEARCHES, Selection, select
from gridcoll.topology.gridfile import read_gridfile
from gridcoll.topology.hostfile import FORMATS, format_use
from gridcoll.topology.units import format_duration

ALLREDUCE_BYTES = 56  # an ALLREDUCE is seven doubles at most (paper 004, §2)


class PlacementGrid(Struct, frozen=True):
    """A grid whose clusters are chosen among.

    ``rank_hosts`` holds (host, cluster) of every rank; ``model()`` is the grid's model with pLogP.
    """

    resources: Resources
    rank_hosts: tuple[tuple[str, int], ...]
    model: Callable[[], GridModel]

    def hosts(self, clusters: tuple[int, ...]) -> list[str]:
        """Return the hosts of the ranks in ``clusters``, in rank order."""
        return [host for host, cluster in self.rank_hosts if cluster in clusters]


def load_placement_grid(path: Path) -> PlacementGrid:
    """Read a declared grid (``.toml``) or a measured model. Raises `FileError`, `UsageError`."""
    if path.suffix != ".toml":
        model = read_model(path)
        places = tuple(zip(model.grid.hosts, model.grid.cluster_of, strict=True))
        return PlacementGrid(Resources.from_model(model), places, lambda: model)
    spec = read_gridfile(path)
    resources = Resources.from_spec(spec)
    places = tuple((host, spec.cluster_of_host[host]) for host in spec.rank_hosts())
    return PlacementGrid(resources, places, lambda: declared_model(spec, spec.host_order()))


def plan_allreduce_price(grid: PlacementGrid) -> AllreducePrice:
    """Return a function for the predicted time of the best allreduce plan over some clusters.

    The plan is over all ranks of these clusters. A single rank sends nothing; its time is the
    latency of its cluster, as in the paper's form.
    """
    from gridcoll.plan import choose

    model = grid.model()
    # The model may list its clusters in another order than the resources do.
    names = [cluster.name for cluster in model.grid.clusters]
    ranks_of = [
        model.grid.clusters[names.index(name)].ranks for name in grid.resources.names
    ]  # fmt: skip

    def price_s(clusters: tuple[int, ...]) -> float:
        ranks = sorted(rank for cluster in clusters for rank in ranks_of[cluster])
        if len(ranks) == 1:
            return float(grid.resources.latency_s[clusters[0], clusters[0]])
        part = model.restrict(ranks)
        predicted_s = choose(
            "allreduce", part, ALLREDUCE_BYTES, 0, grid_only=True
        ).winner.predicted_s
        return float("inf") if predicted_s is None else predicted_s

    return price_s


@click.command()
@click.argument("problem", type=click.Path(path_type=Path))
@click.option("--grid", help=GRID)
@click.option("--search", default=DEFAULT_SEARCH, help=f"search to use: {', '.join(SEARCHES)}")
@click.option("--seed", default=0, help="random seed, for searches that draw")
@click.option("--elements", type=int, help="size of the mesh, instead of the problem's")
@click.option(
    "--allreduce",
    "form",
    help=f"how an ALLREDUCE is priced, instead of the problem's: {', '.join(FORMS)} or {PLAN}",
)
@click.option(
    "--correct",
    type=click.Path(path_type=Path),
    help="correct the problem by the times and faces of a run (.json)",
)
@JSON
@click.option(
    "--plot",
    type=click.Path(path_type=Path),
    help="draw into this file: the times around the choice",
)
@click.option("--hostfile", type=click.Path(path_type=Path), help="write the chosen hosts here")
@click.option("--mpi", "kind", help=f"launcher, for --hostfile: {', '.join(FORMATS)}")
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
    problem_file = read_problem(problem)
    placement_grid = load_placement_grid(_grid_path(problem_file, problem, grid))
    adapted = _adapt(problem_file.problem, elements, form)
    price = plan_allreduce_price(placement_grid) if adapted.allreduce.form == PLAN else None
    if correct is not None:
        adapted = _corrected(adapted, placement_grid.resources, correct, price)
    cost = IterationCost(adapted, placement_grid.resources, price)
    selection = select(cost, search, seed)
    others = _other_forms(cost, search, seed)
    if as_json:
        click.echo(json.dumps(selection_data(cost, selection, others), indent=2))
    else:
        show_selection(stdout_console(), cost, selection, others)
    if plot is not None:
        draw_configurations([(cost, selection.best.clusters)], plot)
    if hostfile is not None and kind is not None:
        hosts = placement_grid.hosts(selection.best.clusters)
        write_atomically(hostfile, FORMATS[kind].format_hosts(hosts))
        click.echo(f"use: {format_use(kind, str(hostfile), len(hosts))}", err=True)


def _grid_path(problem_file: ProblemFile, problem: Path, grid: str | None) -> Path:
    if grid is not None:
        return find_gridfile(grid)
    if problem_file.grid is None:
        raise UsageError(f"problem file {problem}: grid: not given; name one with --grid")
    return problem_file.grid


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
    """Return ``problem`` with betas corrected by a run; print the change on stderr."""
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
    """Return what would be chosen with each other form of the ALLREDUCE."""
    return {
        form: select(
            IterationCost(_adapt(cost.problem, None, form), cost.resources), search, seed
        ).best
        for form in FORMS
        if form != cost.problem.allreduce.form
    }


def _names(cost: IterationCost, clusters: tuple[int, ...]) -> list[str]:
    return [cost.resources.names[i] for i in clusters]


def selection_data(
    cost: IterationCost, selection: Selection, others: dict[str, Prediction]
) -> dict[str, Any]:
    """Return everything that `show_selection` shows, as plain data; times are in seconds."""
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


def show_selection(
    console: Console, cost: IterationCost, selection: Selection, others: dict[str, Prediction]
) -> None:
    """Print the choice, its parts, the runner-up, ``others`` by ALLREDUCE form, each change."""
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
        name = f"{change.kind} {cost.resources.names[change.cluster]}"
        if change.lacks_memory:
            table.add_row(name, "not enough memory", "")
            continue
        sign = "+" if change.gain_s > 0 else "-"
        gain = f"{sign} {format_duration(abs(change.gain_s))}"
        table.add_row(name, format_duration(change.iteration_s), gain)
    return table
