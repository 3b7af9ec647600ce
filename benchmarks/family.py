"""Show predicted and measured times over message sizes, as in Figures 7 to 9 of paper 003.

    python benchmarks/family.py run [--collectives …] [--grid three-sites] [--mpi mpich]
    python benchmarks/family.py plot [--collectives …]     # figures into docs/
    python benchmarks/family.py table [--collectives …]    # how far predictions are off

There is one curve per algorithm for scatter, gather or allreduce. Lines are predictions; points are
measured medians with quartiles. Needs root (an emulated grid) and one virtual environment per MPI,
as `make venv-all` makes them.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from on_grids import (
    MPIS,
    ROOT,
    Row,
    add_dilation_option,
    add_models_option,
    bench_on,
    read_rows,
    results_folder,
)
from rich.console import Console
from rich.table import Table

SIZES = {
    "scatter": "8,1K,4K,16K,64K,256K",
    "gather": "8,1K,4K,16K,64K,256K",
    "allreduce": "8,1K,8K,64K,256K,1M",
}
ALGORITHMS = {
    **dict.fromkeys(("scatter", "gather"), "candidates"),
    "allreduce": "leaders,lanes,shares,ring",
}
PREFIX = "gridcoll:"

Series = dict[str, list[Row]]
"""Rows by algorithm, or ``native``, by ascending size."""


def run(collective: str, options: argparse.Namespace) -> None:
    grid, mpi, dilation = options.grid, options.mpi, options.dilation
    rows = results_folder(dilation) / f"family-{collective}-{grid}-{mpi}.json"
    how = ["--sizes", SIZES[collective], "--algorithm", ALGORITHMS[collective], "--repeats", "5"]
    bench_on(grid, mpi, collective, rows, *how, models=options.models, dilation=dilation)


def by_algorithm(rows: Iterable[Row]) -> Series:
    """Return plans and native by name. Rows of an algorithm are left out where native ran instead,
    as the algorithm had no plan for the size.
    """
    found: Series = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["bytes"]):
        variant, planned = row["variant"], row["algorithm"] != "the MPI library's own"
        if variant == "native" or (variant.startswith(PREFIX) and planned):
            found[variant.removeprefix(PREFIX)].append(row)
    return found


def relative_error(row: Row) -> float:
    """Return the error of the prediction, relative to the measured time."""
    return float((row["predicted_s"] - row["median_s"]) / row["median_s"])


def plot(collective: str, grid: str, mpi: str, series: Series, folder: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for number, (algorithm, rows) in enumerate(sorted(series.items())):
        sizes = [row["bytes"] for row in rows]
        medians = [row["median_s"] * 1e3 for row in rows]
        spread = [
            [(row["median_s"] - row["q1_s"]) * 1e3 for row in rows],
            [(row["q3_s"] - row["median_s"]) * 1e3 for row in rows],
        ]
        colour = "black" if algorithm == "native" else f"C{number}"
        axes.errorbar(sizes, medians, spread, fmt="o", ms=4, color=colour)
        if algorithm == "native":  # measured at discovery, not predicted
            axes.plot(sizes, medians, ":", color=colour, lw=1, label="native, measured")
        else:
            predicted = [row["predicted_s"] * 1e3 for row in rows]
            axes.plot(sizes, predicted, "-", color=colour, lw=1, label=algorithm)
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="ms")
    axes.set_title(f"{collective} on {grid}, {mpi}: lines predicted, points measured")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    folder.mkdir(exist_ok=True)
    path = folder / f"model-{collective}-{grid}-{mpi}.svg"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path)


def print_table(collective: str, grid: str, mpi: str, series: Series) -> None:
    table = Table(title=f"{collective} on {grid}, {mpi}: (predicted - measured) / measured")
    table.add_column("way")
    planned = {algorithm: rows for algorithm, rows in series.items() if algorithm != "native"}
    sizes = sorted({row["bytes"] for rows in planned.values() for row in rows})
    for size in sizes:
        table.add_column(str(size), justify="right")
    for algorithm, rows in planned.items():
        of_size = {row["bytes"]: f"{relative_error(row):+.0%}" for row in rows}
        table.add_row(algorithm, *(of_size.get(size, "") for size in sizes))
    console = Console(width=max(Console().width, 100))
    console.print(table)
    errors = [abs(relative_error(row)) for rows in planned.values() for row in rows]
    console.print(f"median {statistics.median(errors):.1%} over {len(errors)} cases")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("run", "plot", "table"))
    parser.add_argument("--collectives", default=",".join(SIZES))
    parser.add_argument("--grid", default="three-sites")
    parser.add_argument("--mpi", default="mpich", choices=MPIS)
    add_models_option(parser)
    add_dilation_option(parser)
    options = parser.parse_args()
    for collective in options.collectives.split(","):
        if options.what == "run":
            run(collective, options)
        groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for row in read_rows(f"family-{collective}", results_folder(options.dilation)):
            groups[row["grid"], row["mpi"]].append(row)
        for (grid, mpi), rows in groups.items():
            if options.what == "plot":
                slow = "" if options.dilation == 1 else f"-x{options.dilation:g}"
                plot(collective, grid + slow, mpi, by_algorithm(rows), ROOT / "docs")
            else:
                print_table(collective, grid, mpi, by_algorithm(rows))


if __name__ == "__main__":
    main()
