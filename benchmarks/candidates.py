"""Predict and measure every candidate of a choice, to see whether the chosen one was the best.

    python benchmarks/candidates.py run bcast [--grids …] [--mpis …] [--sizes …] [--algorithm …]
    python benchmarks/candidates.py table bcast     # from the rows kept in benchmarks/results
    python benchmarks/candidates.py json bcast      # one JSON object per candidate

Needs root (an emulated grid) and one virtual environment per MPI, as `make venv-all` makes them.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import asdict
from on_grids import (
    GRIDS,
    MPIS,
    Row,
    add_dilation_option,
    add_models_option,
    bench_on,
    milliseconds,
    read_rows,
    results_folder,
)
from rich.console import Console
from rich.table import Table

from gridcoll.plan.registry import canonical_name
from gridcoll.topology.units import format_size

SIZES = "8,1K,64K,1M,4M"
TOLERANCE = 0.10
"""The chosen candidate may take longer than the best measured one by at most this fraction."""


class Measured(Struct, frozen=True):
    """One candidate of one call. ``off`` is (predicted - measured) / measured."""

    grid: str
    mpi: str
    bytes: int
    candidate: str
    label: str
    predicted_s: float | None
    measured_s: float
    q1_s: float
    q3_s: float
    off: float | None
    chosen: bool


def run(collective: str, options: argparse.Namespace) -> None:
    for grid in options.grids.split(","):
        for mpi in options.mpis.split(","):
            folder, dilation = results_folder(options.dilation), options.dilation
            rows = folder / f"candidates-{collective}-{grid}-{mpi}.json"
            how = ["--sizes", options.sizes, "--repeats", str(options.repeats)]
            how += ["--algorithm", options.algorithm]
            models = options.models
            bench_on(grid, mpi, collective, rows, *how, models=models, dilation=dilation)


def by_call(rows: Iterable[Row], collective: str = "") -> list[list[Measured]]:
    """Return the candidates of each call, natives included, fastest first.

    Algorithms have their current names, also in old rows.
    """
    calls: dict[tuple[str, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        calls[row["grid"], row["mpi"], row["bytes"]].append(row)
    return [_candidates(of_call, collective) for of_call in calls.values()]


def _candidates(rows: list[Row], collective: str) -> list[Measured]:
    chosen = next(row for row in rows if row["variant"] == "gridcoll")
    name, _, label = chosen["algorithm"].partition(": ")
    found = []
    for row in rows:
        said = row["variant"].removeprefix("gridcoll:")
        candidate = canonical_name(collective, said)
        predicted_s, measured_s = row["predicted_s"], row["median_s"]
        if candidate == "gridcoll" or (candidate == "native-nonblocking" and predicted_s is None):
            continue
        algorithm_label = row["algorithm"].removeprefix(f"{said}: ")
        found.append(
            Measured(
                row["grid"],
                row["mpi"],
                row["bytes"],
                candidate,
                algorithm_label,
                predicted_s,
                measured_s,
                row["q1_s"],
                row["q3_s"],
                None if predicted_s is None else predicted_s / measured_s - 1,
                candidate == name if candidate.startswith("native") else algorithm_label == label,
            )
        )
    return sorted(found, key=lambda one: one.measured_s)


def behind_best(call: list[Measured]) -> float | None:
    """Return how much longer the chosen candidate took than the best, as a fraction.

    Returns None if it was not timed.
    """
    chosen = [one for one in call if one.chosen]
    return chosen[0].measured_s / call[0].measured_s - 1 if chosen else None


def print_tables(calls: list[list[Measured]]) -> None:
    console = Console(width=max(Console().width, 140))
    for call in calls:
        first = call[0]
        table = Table(title=f"{first.grid}, {first.mpi}, {format_size(first.bytes)}: ms")
        for column in ("", "candidate", "predicted", "measured", "quartiles", "off", "how"):
            table.add_column(column, justify="left" if column in ("candidate", "how") else "right")
        for one in call:
            table.add_row(
                "*" if one.chosen else "",
                one.candidate,
                milliseconds(one.predicted_s),
                milliseconds(one.measured_s),
                f"{milliseconds(one.q1_s)}–{milliseconds(one.q3_s)}",
                "-" if one.off is None else f"{one.off:+.0%}",
                one.label,
            )
        console.print(table)
        behind = behind_best(call)
        said = "was not timed" if behind is None else f"took {behind:+.1%} of the best measured"
        console.print(f"the chosen (*) {said}\n")
    _print_summary(console, calls)


def _print_summary(console: Console, calls: list[list[Measured]]) -> None:
    behind = [found for call in calls if (found := behind_best(call)) is not None]
    off = [
        abs(one.off)
        for call in calls
        for one in call
        if one.off is not None and one.candidate != "native"
    ]
    if behind and off:
        good = sum(found <= TOLERANCE for found in behind)
        console.print(
            f"{good} of {len(behind)} choices within {TOLERANCE:.0%} of the best measured; "
            f"median |predicted - measured| / measured of {len(off)} plans "
            f"{statistics.median(off):.1%}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("run", "table", "json"))
    parser.add_argument("collective")
    parser.add_argument("--grids", default=",".join(GRIDS))
    parser.add_argument("--mpis", default=",".join(MPIS))
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--algorithm", default="candidates", help="'candidates', 'all' or names")
    add_models_option(parser)
    add_dilation_option(parser)
    options = parser.parse_args()
    if options.what == "run":
        run(options.collective, options)
    kept = read_rows(f"candidates-{options.collective}", results_folder(options.dilation))
    calls = by_call(kept, options.collective)
    if options.what == "json":
        for call in calls:
            for one in call:
                print(json.dumps(asdict(one), ensure_ascii=False))
    else:
        print_tables(calls)


if __name__ == "__main__":
    main()
