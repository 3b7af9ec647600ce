"""How a choice of clusters is shown: tables for people, plain data for scripts."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from gridcoll.placement import IterationCost, Prediction, Selection
from gridcoll.topology.units import format_duration


def _names(cost: IterationCost, clusters: tuple[int, ...]) -> list[str]:
    return [cost.resources.names[i] for i in clusters]


def selection_data(
    cost: IterationCost, selection: Selection, others: dict[str, Prediction]
) -> dict[str, Any]:
    """Everything `show_selection` shows, in seconds."""
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
