"""``gridcoll study optimum``: how close the heuristics and `best` come to the optimum.

It measures how close `best` comes within a budget of time, and how long `optimal` takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from rich.table import Table

from gridcoll.schedule import HEURISTICS, Batch, warm_up
from gridcoll.schedule.anytime import optimal, solve
from gridcoll.schedule.greedy import SEVEN
from gridcoll.schedule.instance import Floats, Instance
from gridcoll.study.comparison import Setting, chunk_size
from gridcoll.study.options import (
    BUSY,
    JSON,
    OUTPUT,
    OVERLAP,
    RANGES,
    SEED,
    make_accounting,
    parse_counts,
    parse_seconds,
    prepare_output,
    progress_bar,
    report,
    table_console,
    write_tables,
)
from gridcoll.study.parameters import FILLINGS, PARAMETERS


class Nearness(Struct, frozen=True):
    """How close a method came to the optimum on the instances of one size."""

    n_clusters: int
    method: str
    """``best of the seven``, ``best`` or ``optimal``."""
    budget_s: float | None
    n_instances: int
    gap: float
    """Mean of makespan / bound - 1, where the bound is the highest that any run has proven. This is
    at least the gap to the optimum, and equal to it if the optimum is proven."""
    own_gap: float
    """The same with the bound that this method proved within its budget; 0 for the seven."""
    worst_gap: float
    proven: float
    """The fraction of instances in which the method met its own bound."""
    median_s: float
    longest_s: float
    """Time taken."""


class _Runs:
    """Makespans, bounds and times of one method over the instances."""

    def __init__(self) -> None:
        self.makespan: list[float] = []
        self.bound: list[float] = []
        self.seconds: list[float] = []
        self.proven: list[bool] = []

    def score(
        self, n_clusters: int, method: str, budget_s: float | None, bound: Floats
    ) -> Nearness:
        own_bound = np.array(self.bound)
        makespan = np.array(self.makespan)
        gap = makespan / bound - 1
        own = float((makespan / own_bound - 1).mean()) if own_bound.all() else 0.0
        return Nearness(
            n_clusters, method, budget_s, len(gap), float(gap.mean()), own, float(gap.max()),
            sum(self.proven) / len(gap), float(np.median(self.seconds)), max(self.seconds),
        )  # fmt: skip


def measure_nearness(
    setting: Setting,
    n_clusters: int,
    budgets_s: Sequence[float],
    *,
    exact: bool = False,
    accelerate: bool | None = None,
    clock: Callable[[], float] = time.perf_counter,
    on_progress: Callable[[], None] = lambda: None,
) -> list[Nearness]:
    """Run the seven, `best` with each budget, and with ``exact`` `optimal`, on the same instances.

    Budgets and times are by ``clock``; on a busy machine, `time.process_time` is the fair one. An
    `Instance` caches lists of its matrices; they are made before a time is taken.
    """
    methods: dict[tuple[str, float | None], _Runs] = {("best of the seven", None): _Runs()}
    methods.update({("best", budget): _Runs() for budget in budgets_s})
    if exact:
        methods[("optimal", None)] = _Runs()
    for k in range(setting.n_iterations):
        size = chunk_size(n_clusters)
        if k % size == 0:
            batch = setting.chunk(n_clusters, k // size)
        for (method, budget), runs in methods.items():
            instance = batch.instance(k % size)
            instance.cost_rows, instance.busy_rows, instance.internals  # noqa: B018
            begin = clock()
            makespan, bound, proven = _run(method, instance, budget, accelerate, clock)
            runs.seconds.append(clock() - begin)
            runs.makespan.append(makespan)
            runs.bound.append(bound)
            runs.proven.append(proven)
        on_progress()
    bound = np.max([runs.bound for runs in methods.values()], axis=0)
    return [
        runs.score(n_clusters, method, budget, bound) for (method, budget), runs in methods.items()
    ]


def _run(
    method: str,
    instance: Instance,
    budget_s: float | None,
    accelerate: bool | None,
    clock: Callable[[], float],
) -> tuple[float, float, bool]:
    """Return makespan, bound, and whether they meet."""
    if method == "best of the seven":
        batch = Batch.of(instance)
        times = [HEURISTICS[name].pick_batch(batch).makespan_s[0] for name in SEVEN]
        return float(min(times)), 0.0, False
    if method == "optimal":
        found = optimal(instance, accelerate=accelerate)
    else:
        found = solve(instance, budget_s=budget_s, accelerate=accelerate, clock=clock)
    return found.makespan_s, found.lower_bound_s, found.is_optimal


@click.command()
@click.option(
    "--clusters",
    callback=parse_counts,
    default="10,20,50",
    show_default=True,
    help="Numbers of clusters: single ones and ranges with an optional step.",
)
@click.option(
    "--budgets", callback=parse_seconds, default="0.01,0.1,1", show_default=True,
    help="Time budgets of best, in seconds.",
)  # fmt: skip
@click.option(
    "--instances", type=click.IntRange(1), default=100, show_default=True,
    help="How many grids are drawn for each number of clusters.",
)  # fmt: skip
@click.option("--exact", is_flag=True, help="Run optimal as well (meant for up to 12 clusters).")
@click.option(
    "--accelerate/--plain", default=None,
    help="Use numba, or plain Python; default: numba if installed.",
)  # fmt: skip
@click.option(
    "--cpu-time",
    is_flag=True,
    help="Count processor time instead of elapsed time, as on busy machines.",
)
@RANGES
@click.option(
    "--filling", type=click.Choice(list(FILLINGS)), default="independent", show_default=True,
    help="How links are drawn.",
)  # fmt: skip
@BUSY
@OVERLAP
@SEED
@OUTPUT
@JSON
def command(
    clusters: tuple[int, ...],
    budgets: tuple[float, ...],
    instances: int,
    exact: bool,
    accelerate: bool | None,
    cpu_time: bool,
    parameters: str,
    filling: str,
    busy: str,
    internal_start: str,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure the gap between heuristics and the optimum, and the time it takes to close it."""
    prepare_output(output)
    if accelerate is not False:
        accelerate = warm_up() or accelerate
    setting = Setting(
        PARAMETERS[parameters], filling, accounting=make_accounting(busy, internal_start),
        n_iterations=instances, seed=seed,
    )  # fmt: skip
    rows: list[Nearness] = []
    with progress_bar() as bar:
        task = bar.add_task("instances", total=instances * len(clusters))
        for n_clusters in clusters:
            bar.update(task, description=f"{n_clusters} clusters")
            rows += measure_nearness(
                setting, n_clusters, budgets, exact=exact, accelerate=accelerate,
                clock=time.process_time if cpu_time else time.perf_counter,
                on_progress=lambda: bar.advance(task),
            )  # fmt: skip
    data = [asdict(row) for row in rows]
    report(data, None, as_json, lambda: _print(rows))
    if output is not None:
        write_tables(output, "optimum", data)


def _print(rows: Sequence[Nearness]) -> None:
    table = Table(title="Gap to the best bound proven by any of the runs")
    for heading in ("clusters", "method", "budget", "mean gap %", "worst %", "own bound %",
                    "proven %", "median ms", "longest ms"):  # fmt: skip
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for row in rows:
        unbounded = row.method == "best of the seven"
        table.add_row(
            str(row.n_clusters),
            row.method,
            "" if row.budget_s is None else f"{row.budget_s:g} s",
            f"{row.gap * 100:.3f}",
            f"{row.worst_gap * 100:.2f}",
            "" if unbounded else f"{row.own_gap * 100:.3f}",
            "" if unbounded else f"{row.proven * 100:.1f}",
            f"{row.median_s * 1e3:.2f}",
            f"{row.longest_s * 1e3:.1f}",
        )
    table_console().print(table)
