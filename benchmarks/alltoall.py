"""Compare LG with the standard direct exchange between two clusters, as in paper 001.

    python benchmarks/alltoall.py model          # figures 4 to 6 at the paper's numbers of ranks
    python benchmarks/alltoall.py run [--base …] [--mpis …]    # measure those that fit here
    python benchmarks/alltoall.py plot           # both, and predicted against measured, into docs/
    python benchmarks/alltoall.py wins           # where LG beats every other plan, simulated
    python benchmarks/alltoall.py run --base nancy-rennes --pairs 30x30 --sizes 64K --longest 1s

``run`` needs root (an emulated grid) and one virtual environment per MPI, as `make venv-all` makes
them. The grid is a file in hostfiles with two clusters, whose numbers of hosts are replaced.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from on_grids import GRIDS, RESULTS, ROOT, Row, bench_on, milliseconds, read_rows

from gridcoll.cli.models import load_model
from gridcoll.model import GridModel, read_model
from gridcoll.plan import choose
from gridcoll.plan.alltoall.cost import price_messages_s
from gridcoll.plan.alltoall.direct import direct_messages
from gridcoll.plan.cost import price_plan
from gridcoll.topology.units import format_size

SIZES = [1 << k for k in range(25)]
"""The message sizes of Figure 4: ``2^k`` bytes up to 16 MiB."""

FIXED_SIZES = [1 << 16, 1 << 19]
"""The message sizes of Figures 5 and 6: 64 kB and 512 kB."""

PAPER_PAIRS = {
    "n1 = n2": [(n, n) for n in range(2, 31, 2)],
    "n2 = 2 n1": [(n, 2 * n) for n in range(2, 21)],
}
MEASURED_PAIRS = {
    "n1 = n2": [(2, 2), (3, 3), (4, 4), (6, 6)],
    "n2 = 2 n1": [(1, 2), (2, 4), (3, 6), (4, 8)],
}
SWEEP_SIZES = "1,8,64,512,1K,4K,16K,64K,256K,512K,1M"
LARGEST_PAIR = {"n1 = n2": (30, 30), "n2 = 2 n1": (20, 40)}
SWEEP_PAIR = {"n1 = n2": (4, 4), "n2 = 2 n1": (3, 6)}
"""Pairs measured at all sizes, with a model measured before. The others only have two sizes."""

NAMES = ("direct", "lg")
Pair = tuple[int, int]
COLOURS = {"native": "tab:green", "direct": "tab:red", "lg": "tab:blue"}
LABELS = {"native": "standard (the MPI's)", "direct": "standard (ours, direct)", "lg": "LG"}
VARIANTS = {"native": "native", "direct": "gridcoll:direct", "lg": "gridcoll:lg"}


def grid_text(base: str, n1: int, n2: int) -> str:
    """Return the text of grid file ``base`` with ``n1`` and ``n2`` hosts in its two clusters."""
    text = (ROOT / "hostfiles" / f"{base}.toml").read_text()
    counts = iter((n1, n2))
    return re.sub(r"^hosts = \d+", lambda _: f"hosts = {next(counts)}", text, flags=re.M)


def declared(base: str, n1: int, n2: int) -> GridModel:
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(grid_text(base, n1, n2))
        file.flush()
        return load_model(file.name)


def predicted_s(model: GridModel, n_bytes: int) -> dict[str, float]:
    """Return the predicted seconds of an all-to-all, by algorithm."""
    found = choose("alltoall", model, n_bytes, 0, grid_only=True).candidates
    return {c.name: c.predicted_s for c in found if c.predicted_s is not None}


def print_model(base: str) -> None:
    for shape, (n1, n2) in LARGEST_PAIR.items():
        print(f"figure 4, {shape}: {n1} + {n2} ranks of {base}, predicted ms")
        model = declared(base, n1, n2)
        for n_bytes in SIZES:
            _print_times(format_size(n_bytes), predicted_s(model, n_bytes))
    for n_bytes in FIXED_SIZES:
        for number, (shape, pairs) in enumerate(PAPER_PAIRS.items(), start=5):
            print(f"figure {number}, {shape}: {format_size(n_bytes)}, by ranks, predicted ms")
            for n1, n2 in pairs:
                _print_times(f"{n1} + {n2}", predicted_s(declared(base, n1, n2), n_bytes))


def _print_times(what: str, times: dict[str, float]) -> None:
    fastest = min(times, key=lambda name: times[name])
    both = "  ".join(f"{LABELS[name]} {milliseconds(times.get(name))}" for name in NAMES)
    print(f"  {what:>10}  {both}  fastest {fastest} {milliseconds(times[fastest])}")


def run(
    base: str, mpis: Iterable[str], repeats: int, sizes: str, longest: str, pairs: Iterable[Pair]
) -> None:
    """Measure every pair of clusters at ``sizes``.

    Without sizes, those shown in Figure 4 are measured at all sizes, the others at 64K and 512K.
    """
    for n1, n2 in pairs:
        with tempfile.TemporaryDirectory() as folder:
            grid = Path(folder) / f"{base}.toml"
            grid.write_text(grid_text(base, n1, n2))
            for mpi in mpis:
                name = f"{base}-{n1}x{n2}-{mpi}"
                swept = (n1, n2) in SWEEP_PAIR.values()
                model = RESULTS / f"model-lg-{name}.json" if swept else grid
                usual = SWEEP_SIZES if swept else "64K,512K"
                how = ["--sizes", sizes or usual, "--repeats", str(repeats), "--longest", longest]
                how += ["--algorithm", "direct,farthest-first,lg", "--model", str(model)]
                bench_on(str(grid), mpi, "alltoall", RESULTS / f"lg-{name}.json", *how)


def measured_rows(base: str) -> list[Row]:
    """Return the rows of `run`, with the two numbers of ranks as ``pair``."""
    rows = []
    for row in read_rows(f"lg-{base}"):
        n1, n2 = map(int, row["grid"].split("x"))
        rows.append({**row, "pair": (n1, n2)})
    return rows


def plot(base: str, folder: Path) -> None:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(exist_ok=True)
    rows = measured_rows(base)
    figures = {"figure-4": _figure_4, "figures-5-6": _figures_5_6, "predicted": _predicted}
    for name, draw in figures.items():
        figure = draw(plt, base, rows)
        path = folder / f"alltoall-{base}-{name}.svg"
        figure.savefig(path)
        plt.close(figure)
        print(path)


def _figure_4(plt: Any, base: str, rows: list[Row]) -> Any:
    """Plot time against size: predicted for the paper's clusters, measured for smaller ones."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for ax, (shape, (n1, n2)) in zip(axes, LARGEST_PAIR.items(), strict=True):
        model = declared(base, n1, n2)
        times = [predicted_s(model, n) for n in SIZES]
        for name in NAMES:
            _line(ax, SIZES, [t[name] for t in times], name, f"{n1} + {n2}, predicted", "-")
        pair = SWEEP_PAIR[shape]
        _measured(ax, [r for r in rows if r["pair"] == pair], "bytes", f"{pair[0]} + {pair[1]}")
        _dress(ax, f"{shape}, {base}", "message, bytes")
        ax.set_xscale("log", base=2)
    return figure


def _figures_5_6(plt: Any, base: str, rows: list[Row]) -> Any:
    """Plot time against ranks for two sizes."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True, layout="constrained")
    for ax, (shape, pairs) in zip(axes, PAPER_PAIRS.items(), strict=True):
        for n_bytes, style in zip(FIXED_SIZES, ("-", "--"), strict=True):
            times = [predicted_s(declared(base, *pair), n_bytes) for pair in pairs]
            ranks = [sum(pair) for pair in pairs]
            for name in NAMES:
                what = f"{format_size(n_bytes)}, predicted"
                _line(ax, ranks, [t[name] for t in times], name, what, style)
            here = [
                {**row, "ranks": sum(row["pair"])}
                for row in rows
                if row["pair"] in MEASURED_PAIRS[shape] and row["bytes"] == n_bytes
            ]
            _measured(ax, here, "ranks", format_size(n_bytes))
        _dress(ax, f"{shape}, {base}", "processes")
    return figure


def _predicted(plt: Any, base: str, rows: list[Row]) -> Any:
    """Plot the bounds, the prediction with γ and measured times (paper 003, Figures 10 and 11)."""
    mpis = sorted({row["mpi"] for row in rows}) or ["none measured"]
    figure, axes = plt.subplots(
        1, len(mpis), figsize=(5.5 * len(mpis), 4.5), squeeze=False, layout="constrained"
    )
    for ax, mpi in zip(axes[0], mpis, strict=True):
        here = [r for r in rows if r["mpi"] == mpi and r["pair"] == (4, 4)]
        kept = RESULTS / f"model-lg-{base}-4x4-{mpi}.json"
        if kept.exists():
            model = read_model(kept)
            sizes = sorted({row["bytes"] for row in here})
            for gamma, label in ((0.0, "lower bound"), (1.0, "upper bound"), (None, "with γ")):
                some = model if gamma is None else replace(model, contention=(gamma, gamma))
                messages = direct_messages(model.grid)
                times = [price_messages_s(some, messages, n) * 1e3 for n in sizes]
                ax.plot(sizes, times, ":" if gamma is not None else "-", color="gray", label=label)
        _measured(ax, here, "bytes", "4 + 4")
        _dress(ax, f"{base}, {mpi}", "message, bytes")
        ax.set_xscale("log", base=2)
    return figure


def _line(
    ax: Any, x: Sequence[int], seconds: Sequence[float], name: str, what: str, style: str
) -> None:
    label = f"{LABELS[name]}, {what}"
    ax.plot(x, [s * 1e3 for s in seconds], style, color=COLOURS[name], label=label)


def _measured(ax: Any, rows: list[Row], against: str, what: str) -> None:
    """Plot measured times, with one marker per MPI and one colour per algorithm."""
    marks = dict(zip(sorted({row["mpi"] for row in rows}), "os^", strict=False))
    for mpi, mark in marks.items():
        for name, variant in VARIANTS.items():
            here = [r for r in rows if r["mpi"] == mpi and r["variant"] == variant]
            points = sorted((r[against], r["median_s"] * 1e3) for r in here)
            if points:
                label = f"{LABELS[name]}, {what}, {mpi}"
                ax.plot(*zip(*points, strict=True), mark, color=COLOURS[name], label=label)


def _dress(ax: Any, title: str, x_label: str) -> None:
    ax.set(yscale="log", xlabel=x_label, ylabel="all-to-all, ms", title=title)
    ax.grid(alpha=0.3)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize="x-small")


def print_wins(grids: Sequence[str], sizes: Sequence[int]) -> None:
    """Simulate every plan message by message, and print LG beside the fastest other plan.

    Also print how much more a message between clusters must cost before LG is ahead. This cost is
    the paper's reason for LG; a declared grid does not include it.
    """
    for grid in grids:
        model = load_model(str(ROOT / "hostfiles" / f"{grid}.toml"))
        for n_bytes in sizes:
            found = choose("alltoall", model, n_bytes, 0, grid_only=True).candidates
            plans = {c.name: c.build(n_bytes) for c in found if c.build}
            times = {name: price_plan(plan, model).makespan_s for name, plan in plans.items()}
            lg_s = times.pop("lg")
            other = min(times, key=lambda name: times[name])
            print(
                f"{grid:18} {format_size(n_bytes):>8}  LG {milliseconds(lg_s):>7} ms, {other} "
                f"{milliseconds(times[other]):>7} ms; LG ahead {_ahead_from(model, n_bytes)}"
            )


def _ahead_from(model: GridModel, n_bytes: int) -> str:
    for extra_s in [0.0, *(10e-6 * 2**k for k in range(11))]:
        times = predicted_s(costlier(model, extra_s), n_bytes)
        if min(times, key=lambda name: times[name]) == "lg":
            return f"from {extra_s * 1e6:.0f} us a message on"
    return "at no cost of a message"


def costlier(model: GridModel, extra_s: float) -> GridModel:
    """Return ``model`` with ``extra_s`` added to the gap of messages between clusters."""
    links = tuple(
        tuple(
            link
            if i == j or link is None
            else replace(link, gap_s=tuple(gap + extra_s for gap in link.gap_s))
            for j, link in enumerate(row)
        )
        for i, row in enumerate(model.links)
    )
    return replace(model, links=links)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("model", "run", "plot", "wins"))
    parser.add_argument("--base", default="two-sites", help="a grid of two clusters")
    parser.add_argument("--grids", default=",".join(("two-sites", *GRIDS)), help="for wins")
    parser.add_argument("--pairs", default="", help="for run, as 4x4,3x6; default: all that fit")
    parser.add_argument("--mpis", default="mpich,openmpi,impi")
    parser.add_argument("--sizes", default="", help="for run; default: figure 4's, or 64K,512K")
    parser.add_argument("--longest", default="8s", help="calls that take this long are timed once")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.what == "model":
        print_model(options.base)
    elif options.what == "run":
        named = [tuple(map(int, pair.split("x"))) for pair in options.pairs.split(",") if pair]
        pairs = named or [pair for shape in MEASURED_PAIRS.values() for pair in shape]
        how = options.repeats, options.sizes, options.longest
        run(options.base, options.mpis.split(","), *how, pairs)
    elif options.what == "plot":
        plot(options.base, ROOT / "docs")
    else:
        print_wins(options.grids.split(","), [1, 64, 1024, 8192])


if __name__ == "__main__":
    main()
