r"""Benchmark collectives on named grids under every MPI, and print tables of the results.

    python benchmarks/collectives.py run [--collectives …] [--grids …] [--mpis …] [--sizes …]
    python benchmarks/collectives.py table      # from the rows kept in benchmarks/results
    python benchmarks/collectives.py markdown   # the tables of READMEs; also --grids, --mpis
    python benchmarks/collectives.py brief      # one table for the README: --mpis, --sizes
    python benchmarks/collectives.py plot       # a figure per collective and grid, into docs/
    python benchmarks/collectives.py run --natives tuned       # natives tuned by hand
    python benchmarks/collectives.py markdown --natives tuned

With `--dilation 4`, all grids run in slow motion. A dozen hosts need a dozen times the processor
time of one; where two processors emulate them, this affects every figure. All times in the rows,
limits included, are those in slow motion; only ratios can be compared.

A grid is measured once per MPI for all collectives of a run, which are timed in one job. For a grid
of dozens of hosts (`grid5000-88`) a quick discovery is enough. Put its model in the folder that
`--models` names:

    gridcoll testbed run grid5000-88 --mpi mpich -- \
        gridcoll discover --budget 1s -o DIR/grid5000-88-mpich.json
    python benchmarks/collectives.py run --models DIR --grids grid5000-88 --mpis mpich --repeats 3 \
        --calls "bcast:64K,1M,4M allreduce:8,64K,1M alltoall:8,1K"

Needs root (an emulated grid) and one virtual environment per MPI, as `make venv-all` makes them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby, product
from pathlib import Path

from on_grids import (
    GRIDS,
    MPIS,
    ROOT,
    Row,
    add_dilation_option,
    add_models_option,
    bench_on,
    keep_rows,
    model_on,
    read_rows,
    results_folder,
    slowed,
)
from rich.console import Console
from rich.table import Table
from tuned import print_markdown as print_tuned
from tuned import sweep

from gridcoll.model.bounds import plain_limit_s
from gridcoll.model.wires import Wires, wires_from_spec
from gridcoll.topology.gridfile import read_gridfile
from gridcoll.topology.units import format_size, parse_size_bytes

SIZES = {
    **dict.fromkeys(("bcast", "allreduce", "reduce"), "8,64K,1M,4M"),
    "alltoall": "8,1K,64K",
    **dict.fromkeys(("scatter", "gather", "allgather", "reduce_scatter"), "8,1K,64K"),
    "barrier": "8",
}
TITLES = {
    "bcast": "Broadcast",
    "allreduce": "Allreduce",
    "reduce": "Reduce",
    "alltoall": "All-to-all, per pair",
    "scatter": "Scatter, per rank",
    "gather": "Gather, per rank",
    "allgather": "Allgather, per rank",
    "reduce_scatter": "Reduce-scatter, per rank",
    "barrier": "Barrier",
}
README_COLLECTIVES = ("bcast", "allreduce", "alltoall")
"""The collectives in the README's tables. These run by default."""
NATIVES = ("native", "native-nonblocking")


def run(
    calls: str,
    grids: Iterable[str],
    mpis: Iterable[str],
    *extra: str,
    models: str = "",
    dilation: float = 1.0,
) -> None:
    """Benchmark all ``calls``, as ``bcast:8,64K alltoall:8``, in one job per grid and MPI."""
    with tempfile.TemporaryDirectory() as passing:
        for grid, mpi in product(grids, mpis):
            new, known = Path(passing, "rows.json"), models or passing
            try:
                bench_on(grid, mpi, calls, new, *extra, models=known, dilation=dilation)
            finally:  # keep the rows that were measured before a failure
                rows: list[Row] = json.loads(new.read_text()) if new.exists() else []
                new.unlink(missing_ok=True)
                for collective in dict.fromkeys(row["collective"] for row in rows):
                    kept = results_folder(dilation) / f"{collective}-{grid}-{mpi}.json"
                    kept.parent.mkdir(exist_ok=True)
                    keep_rows(kept, [row for row in rows if row["collective"] == collective])


def run_tuned(
    collectives: Iterable[str],
    grids: Iterable[str],
    mpis: Iterable[str],
    sizes: str,
    models: str,
    budget_s: float,
) -> None:
    """Do the same as `run` for all documented settings of the MPI libraries."""
    with tempfile.TemporaryDirectory() as passing:
        for grid, mpi, collective in product(grids, mpis, collectives):
            declared = ROOT / "hostfiles" / f"{grid}.toml"
            model = model_on(declared, mpi, models or passing)
            rows = sweep(declared, mpi, collective, sizes or SIZES[collective], model, budget_s)
            keep_rows(results_folder(1.0) / f"tuned-{collective}-{grid}-{mpi}.json", rows)


def by_case(rows: Iterable[Row]) -> dict[tuple[str, str, int], dict[str, Row]]:
    cases: dict[tuple[str, str, int], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        cases[row["grid"], row["mpi"], row["bytes"]][row["variant"]] = row
    return cases


def best_native_s(variants: dict[str, Row]) -> float:
    return min(variants[name]["median_s"] for name in NATIVES)


@cache
def _wires(grid: str, dilation: float) -> Wires:
    with slowed(ROOT / "hostfiles" / f"{grid}.toml", dilation) as declared:
        spec = read_gridfile(declared)
    return wires_from_spec(spec, spec.rank_hosts())


def of_plain_limit(collective: str, row: Row, dilation: float) -> str:
    """Return the measured time of ``row`` over the plain limit (`plain_limit_s`)."""
    plain_s = plain_limit_s(collective, _wires(row["grid"], dilation), row["bytes"])
    return f"{row['median_s'] / plain_s:.2f}"


def print_tables(collective: str, rows: list[Row], dilation: float) -> None:
    console = Console(width=max(Console().width, 150))
    cases = by_case(rows)
    for grid in dict.fromkeys(row["grid"] for row in rows):
        table = Table(title=f"{TITLES[collective]} on {grid}: median ms")
        for column in ("bytes", "MPI", "native", "native non-blocking", "gridcoll", "quartiles"):
            table.add_column(column, justify="right")
        for column in (
            "limit",
            "x limit",
            "x plain",
            "best native / gridcoll",
            "predicted",
            "chosen",
        ):
            table.add_column(column, justify="right")
        for (case_grid, mpi, n_bytes), variants in sorted(cases.items(), key=lambda c: c[0][1:]):
            if case_grid == grid:
                of_plain = of_plain_limit(collective, variants["gridcoll"], dilation)
                table.add_row(*_cells(n_bytes, mpi, variants, of_plain))
        console.print(table)
    _print_model_error(console, rows)


def _cells(n_bytes: int, mpi: str, variants: dict[str, Row], of_plain: str) -> list[str]:
    ours = variants["gridcoll"]
    predicted = ours["predicted_s"]
    return [
        format_size(n_bytes),
        mpi,
        *(f"{variants[name]['median_s'] * 1e3:.1f}" for name in (*NATIVES, "gridcoll")),
        f"{ours['q1_s'] * 1e3:.1f}–{ours['q3_s'] * 1e3:.1f}",
        f"{ours['limit_s'] * 1e3:.1f}",
        f"{ours['median_s'] / ours['limit_s']:.2f}",
        of_plain,
        f"{best_native_s(variants) / ours['median_s']:.2f}",
        f"{predicted * 1e3:.1f}" if predicted is not None else "-",
        ours["algorithm"].split(":")[0],
    ]


def _print_model_error(console: Console, rows: list[Row]) -> None:
    errors = [
        abs(row["predicted_s"] - row["median_s"]) / row["median_s"]
        for row in rows
        if row["variant"] == "gridcoll" and row["predicted_s"] is not None
    ]
    if errors:
        console.print(
            f"model: median |predicted - measured| / measured {statistics.median(errors):.1%} "
            f"over {len(errors)} cases"
        )


def print_markdown(collective: str, rows: list[Row], dilation: float) -> None:
    """Print a Markdown table as in the READMEs, with one line per grid, MPI and size."""
    print(f"\n{TITLES[collective]}:\n")
    print(
        "| grid | MPI | message | best native | gridcoll | faster | limit | of limit | of plain |"
    )
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    for (grid, mpi, n_bytes), variants in by_case(rows).items():
        ours, native_s = variants["gridcoll"], best_native_s(variants)
        print(
            f"| {grid} | {mpi} | {format_size(n_bytes)} | {native_s * 1e3:.1f} ms "
            f"| {ours['median_s'] * 1e3:.1f} ms | {native_s / ours['median_s']:.2f} x "
            f"| {ours['limit_s'] * 1e3:.1f} ms | {ours['median_s'] / ours['limit_s']:.2f} x "
            f"| {of_plain_limit(collective, ours, dilation)} x |"
        )


def print_brief(rows: Iterable[Row], tuned: Iterable[Row]) -> None:
    """Print one table for the README, with a line per collective, MPI and size.

    ``tuned`` has the rows of natives tuned by hand at full speed. They get a column if there is one
    for any line.
    """
    by_hand = {
        (each["collective"], each["grid"], each["mpi"], each["bytes"]): each["tuned_s"]
        for each in tuned
    }
    lines = []
    for collective, mine in groupby(rows, key=lambda row: str(row["collective"])):
        for (grid, mpi, n_bytes), variants in by_case(mine).items():
            hand_s = by_hand.get((collective, grid, mpi, n_bytes))
            lines.append((collective, n_bytes, mpi, variants, hand_s))
    has_tuned = any(hand_s is not None for *_, hand_s in lines)
    columns = ["best native", *["by hand"] * has_tuned, "gridcoll", "faster"]
    print(f"\n| call | message | MPI | {' | '.join(columns)} |")
    print("|---|--:|---|" + "--:|" * len(columns))
    for collective, n_bytes, mpi, variants, hand_s in lines:
        ours, native_s = variants["gridcoll"], best_native_s(variants)
        hand = "–" if hand_s is None else f"{hand_s * 1e3:.0f} ms"
        cells = [
            f"{native_s * 1e3:.0f} ms",
            *[hand] * has_tuned,
            f"{ours['median_s'] * 1e3:.0f} ms",
            f"{native_s / ours['median_s']:.1f} x",
        ]
        print(f"| {TITLES[collective]} | {format_size(n_bytes)} | {mpi} | {' | '.join(cells)} |")


def plot(collective: str, rows: list[Row], folder: Path, dilation: float) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(exist_ok=True)
    colours = {"mpich": "tab:blue", "openmpi": "tab:orange", "impi": "tab:green"}
    for grid in dict.fromkeys(row["grid"] for row in rows):
        figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
        cases = by_case(row for row in rows if row["grid"] == grid)
        for mpi in dict.fromkeys(mpi for _, mpi, _ in cases):
            mine = sorted((n, v) for (_, m, n), v in cases.items() if m == mpi)
            sizes = [n for n, _ in mine]
            axes.plot(
                sizes,
                [best_native_s(v) * 1e3 for _, v in mine],
                "--",
                color=colours.get(mpi),
                label=f"{mpi}, best native",
            )
            axes.plot(
                sizes,
                [v["gridcoll"]["median_s"] * 1e3 for _, v in mine],
                "o-",
                color=colours.get(mpi),
                label=f"{mpi}, gridcoll",
            )
        limits = sorted((n, v["gridcoll"]["limit_s"] * 1e3) for (_, _, n), v in cases.items())
        axes.plot(*zip(*limits, strict=True), color="black", lw=1, label="physical limit")
        axes.set(xscale="log", yscale="log", xlabel="message, bytes", ylabel="ms")
        slow = "" if dilation == 1 else f"-x{dilation:g}"
        axes.set_title(f"{TITLES[collective]} on {grid}{slow}")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        path = folder / f"{collective}-{grid}{slow}.svg"
        figure.savefig(path)
        plt.close(figure)
        print(path)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("run", "table", "markdown", "brief", "plot"))
    parser.add_argument(
        "--collectives", default=",".join(README_COLLECTIVES), help=", ".join(SIZES)
    )
    parser.add_argument("--grids", default=",".join(GRIDS))
    parser.add_argument("--mpis", default=",".join(MPIS))
    parser.add_argument("--sizes", default="")
    parser.add_argument("--calls", default="", help="for run, as 'bcast:8,64K alltoall:8'")
    parser.add_argument("--repeats", default="7")
    parser.add_argument("--longest", default="8s", help="calls that take this long are timed once")
    parser.add_argument("--algorithm", default="", help="time these algorithms as well")
    parser.add_argument(
        "--natives", choices=("default", "tuned"), default="default", help="tuned: set by hand"
    )
    parser.add_argument(
        "--budget", type=float, default=math.inf, help="for tuned: seconds for trying settings"
    )
    add_models_option(parser)
    add_dilation_option(parser)
    options = parser.parse_args(arguments)
    collectives = options.collectives.split(",")
    grids, mpis = options.grids.split(","), options.mpis.split(",")
    if options.natives == "tuned":
        if options.what == "run":
            run_tuned(collectives, grids, mpis, options.sizes, options.models, options.budget)
        kept = [row for collective in collectives for row in read_rows(f"tuned-{collective}")]
        print_tuned([row for row in kept if row["grid"] in grids and row["mpi"] in mpis])
        return
    if options.what == "run":
        extra = ["--algorithm", options.algorithm] if options.algorithm else []
        extra += ["--repeats", options.repeats, "--longest", options.longest]
        models, dilation = options.models, options.dilation
        each = (f"{name}:{options.sizes or SIZES[name]}" for name in collectives)
        calls = options.calls or " ".join(each)
        run(calls, grids, mpis, *extra, models=models, dilation=dilation)
    sizes = [parse_size_bytes(text) for text in options.sizes.split(",") if text]
    brief: list[Row] = []
    for collective in collectives:
        kept = read_rows(collective, results_folder(options.dilation))
        rows = [row for row in kept if row["grid"] in grids and row["mpi"] in mpis]
        if options.what == "brief":
            brief += [row for row in rows if row["bytes"] in sizes]
            continue
        if options.what == "plot":
            plot(collective, rows, ROOT / "docs", options.dilation)
        elif options.what == "markdown":
            print_markdown(collective, rows, options.dilation)
        else:
            print_tables(collective, rows, options.dilation)
    if brief:
        at_speed = options.dilation == 1
        tuned = [row for name in collectives for row in read_rows(f"tuned-{name}") if at_speed]
        print_brief(brief, tuned)


if __name__ == "__main__":
    main()
