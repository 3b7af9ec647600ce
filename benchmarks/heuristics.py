"""Broadcast by every heuristic, predicted and measured, as in the papers' Figures 5 and 6.

    python benchmarks/heuristics.py run [--mpis …] [--sizes …] [--repeats …]
    python benchmarks/heuristics.py table     # from the rows kept in benchmarks/results
    python benchmarks/heuristics.py plot      # one figure per MPI, into docs/

Runs on the emulated `grid5000` (Barchet-Steffenel & Mounié 2006, Table 3, hosts scaled down).
Beside the heuristics are the grid-unaware binomial tree in rank order, the MPI library's own
broadcast and, for every heuristic, the papers' store-and-forward time of its schedule. The
difference from this time shows the gain from pipelining segments across levels.

Needs root (an emulated grid) and one virtual environment per MPI, as `make venv-all` makes them.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from on_grids import MPIS, RESULTS, ROOT, Row, add_models_option, bench_on, milliseconds, read_rows
from rich.console import Console
from rich.table import Table

from gridcoll.schedule import HEURISTICS
from gridcoll.topology.units import format_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GRID = "grid5000"
SIZES = "1K,4K,16K,64K,256K,512K,1M,2M,4M"
GRID_UNAWARE = "plain-binomial"

Seconds = Callable[[Row], "float | None"]


def run(mpis: Iterable[str], sizes: str, repeats: int, models: str) -> None:
    names = ",".join([*HEURISTICS, GRID_UNAWARE])
    for mpi in mpis:
        rows = RESULTS / f"heuristics-{GRID}-{mpi}.json"
        how = ("--sizes", sizes, "--repeats", str(repeats), "--algorithm", names)
        bench_on(GRID, mpi, "bcast", rows, *how, models=models)


def by_mpi(rows: Iterable[Row]) -> dict[str, dict[str, list[Row]]]:
    """Return rows by MPI, then by algorithm (or ``native``), by ascending size."""
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in sorted(rows, key=lambda row: int(row["bytes"])):
        name = row["variant"].removeprefix("gridcoll:")
        if name not in ("gridcoll", "native-nonblocking"):
            found[row["mpi"]][name].append(row)
    return found


def label_of(name: str) -> str:
    """Return the name of a heuristic as the papers spell it."""
    special = {GRID_UNAWARE: "binomial, grid-unaware", "native": "MPI's own"}
    return HEURISTICS[name].label if name in HEURISTICS else special.get(name, name)


def print_tables(rows: list[Row]) -> None:
    console = Console(width=max(Console().width, 120))
    for mpi, lines in by_mpi(rows).items():
        table = Table(title=f"Broadcast on {GRID}, {mpi}: ms")
        for column in ("bytes", "heuristic", "store and forward", "pipelined", "measured"):
            table.add_column(column, justify="left" if column == "heuristic" else "right")
        for n_bytes in dict.fromkeys(row["bytes"] for line in lines.values() for row in line):
            for name, line in lines.items():
                for row in line:
                    if row["bytes"] == n_bytes:
                        seconds = (
                            row.get("store_and_forward_s"),
                            row["predicted_s"],
                            row["median_s"],
                        )
                        cells = map(milliseconds, seconds)
                        table.add_row(format_size(n_bytes), label_of(name), *cells)
            table.add_section()
        console.print(table)


def plot(rows: list[Row], folder: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(exist_ok=True)
    panels: tuple[tuple[str, Seconds], ...] = (
        ("predicted, store and forward", lambda row: row.get("store_and_forward_s")),
        ("predicted, in segments", lambda row: row["predicted_s"]),
        ("measured", lambda row: row["median_s"]),
    )
    for mpi, lines in by_mpi(rows).items():
        figure, all_axes = plt.subplots(
            1, len(panels), figsize=(14, 5), sharey=True, layout="constrained"
        )
        for axes, (title, seconds) in zip(all_axes, panels, strict=True):
            _draw(axes, lines, seconds)
            axes.set(title=title, xlabel="message, bytes", xscale="log", yscale="log")
        all_axes[0].set_ylabel("broadcast, ms")
        figure.legend(*all_axes[-1].get_legend_handles_labels(), loc="outside right upper")
        figure.suptitle(f"Broadcast on {GRID}, {mpi}")
        path = folder / f"heuristics-{GRID}-{mpi}.svg"
        figure.savefig(path)
        plt.close(figure)
        print(path)


def _draw(axes: Axes, lines: dict[str, list[Row]], seconds: Seconds) -> None:
    for index, (name, line) in enumerate(lines.items()):
        points = [(row["bytes"], s * 1e3) for row in line if (s := seconds(row)) is not None]
        if points:
            style: dict[str, Any] = {
                "color": f"C{index % 10}",
                "marker": "ovs^"[index // 10],
                "ms": 4,
            }
            if name not in HEURISTICS:
                style |= {"color": "black", "ls": "--" if name == GRID_UNAWARE else ":"}
            axes.plot(*zip(*points, strict=True), label=label_of(name), **style)
    axes.grid(alpha=0.3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("run", "table", "plot"))
    parser.add_argument("--mpis", default=",".join(MPIS))
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--repeats", type=int, default=7)
    add_models_option(parser)
    options = parser.parse_args()
    if options.what == "run":
        run(options.mpis.split(","), options.sizes, options.repeats, options.models)
    rows = read_rows("heuristics")
    if options.what == "plot":
        plot(rows, ROOT / "docs")
    else:
        print_tables(rows)


if __name__ == "__main__":
    main()
