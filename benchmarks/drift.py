"""How soon calls are fast again when a link or a host changes while they run, and changes back.

    python benchmarks/drift.py {rate,latency,host} [--grid three-sites] [--mpi mpich] [--at NAME…]
        [--models FOLDER] [--ways WAY…] [--output FOLDER]

1 MiB broadcasts and allreduces and 64 KiB all-to-alls in a loop (`apps/calls.py loop`), while what
the first argument names changes (a link to a tenth of an interface's rate, a link to five times
its latency, a host to a third of its rate) and changes back: by a model that stays
(``GRIDCOLL_LEARN=off``), and by one that follows. ``declared``, if asked for, follows from the grid
file. ``fresh`` are two frozen runs, before the change and after it, each by a full discovery in
just that state: what can be had. Runs that ``--ways`` leaves out are read from the output folder.
The plot has the time per call over time.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from learning import on_grid
from on_grids import MPIS, RESULTS, ROOT, model_on, path_of_grid

from gridcoll.topology.gridfile import GridSpec, read_gridfile

FALL_S, RISE_S, END_S, FRESH_S = 25.0, 55.0, 80.0, 15.0

WAYS = ("frozen", "following", "fresh")
CHANGING = {"frozen": "off", "following": "on", "declared": "on"}
"""Ways that the change meets, and whether they learn."""

ENOUGH_CALLS, ENOUGH_S = 20, 3.0
"""Within so many calls, or seconds, whichever is more, calls should be fast again."""


def change_of(spec: GridSpec, what: str, at: list[str]) -> tuple[str, str, str]:
    """What changes, to what, and back, as lines of an event.

    The link between the clusters ``at``, by default the first two, or the host ``at``, by default
    the last one.
    """

    def rate(bytes_per_s: float) -> str:
        return f'rate = "{8e-6 * bytes_per_s:g} Mbit/s"'

    if what == "host":
        host = at[0] if at else spec.hosts[-1][-1]
        nic = spec.nic_bytes_per_s[spec.cluster_of_host[host]]
        return f'host = "{host}"', rate(nic / 3), rate(nic)
    names = [cluster.name for cluster in spec.clusters]
    a, b = (names.index(name) for name in at or names[:2])
    target = f'link = ["{names[a]}", "{names[b]}"]'
    if what == "latency":
        once, often = (f'latency = "{k * spec.latency_s[a, b]:g} s"' for k in (1, 5))
        return target, often, once
    nic = min(spec.nic_bytes_per_s[[a, b]])
    return target, rate(nic / 10), rate(spec.rate_bytes_per_s[a, b])


def grid_file(path: Path, grid: Path, change: tuple[str, str, str], at_s: list[float]) -> Path:
    """``grid`` with the change, and back if there are two times."""
    target, *states = change
    events = "".join(
        f'\n[[events]]\nat = "{when:g} s"\n{target}\n{state}\n'
        for when, state in zip(at_s, states, strict=False)
    )
    path.write_text(grid.read_text() + events)
    return path


def run(grid: Path, mpi: str, model: Path, rows: Path, seconds: float, learn: str) -> None:
    app = str(ROOT / "benchmarks" / "apps" / "calls.py")
    command = ["python", "-m", "gridcoll", "run", app, "loop", str(rows), f"{seconds:g}"]
    settings = {"GRIDCOLL_GRID": str(model), "GRIDCOLL_LEARN": learn}
    on_grid(grid, mpi, *command, settings={**settings, "GRIDCOLL_LOG": "decisions"})


def medians(rows: list[dict[str, Any]], from_s: float, until_s: float) -> dict[str, float]:
    """Median seconds of each call that began in that part, counted from the first one."""
    first_s = rows[0]["entry_s"]
    by_call: dict[str, list[float]] = {}
    for row in rows:
        if from_s <= row["entry_s"] - first_s < until_s:
            by_call.setdefault(row["call"], []).append(row["exit_s"] - row["entry_s"])
    return {call: statistics.median(took) for call, took in by_call.items()}


def settled_s(rows: list[dict[str, Any]], from_s: float) -> float:
    """When it should be fast again, if the network changes at ``from_s``."""
    first_s = rows[0]["entry_s"]
    after = [row["exit_s"] - first_s for row in rows if row["entry_s"] - first_s >= from_s]
    return max(from_s + ENOUGH_S, after[min(ENOUGH_CALLS, len(after)) - 1])


def fall_s(rows: list[dict[str, Any]]) -> float:
    """When the change shows, counted from the first call: events count from before the start.

    The first of three calls in a row that take much longer than before.
    """
    before, first_s = medians(rows, 0.0, 10.0), rows[0]["entry_s"]
    slow = [row["exit_s"] - row["entry_s"] > 1.5 * before[row["call"]] for row in rows]
    for k, row in enumerate(rows[:-2]):
        if row["entry_s"] - first_s > 10 and all(slow[k : k + 3]):
            return float(row["entry_s"] - first_s)
    return FALL_S


def draw(results: dict[str, list[dict[str, Any]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 1, figsize=(7, 8), sharex=True)
    calls = dict.fromkeys(row["call"] for row in next(iter(results.values())))
    for axis, call in zip(axes, calls, strict=True):
        for way, rows in results.items():
            first_s = rows[0]["entry_s"]
            mine = [row for row in rows if row["call"] == call]
            axis.plot(
                [row["entry_s"] - first_s for row in mine],
                [row["exit_s"] - row["entry_s"] for row in mine],
                label=way,
            )
        axis.set_title(f"{call} B")
        axis.set_ylabel("seconds")
        axis.set_yscale("log")
    axes[0].legend()
    axes[-1].set_xlabel("seconds from the first call")
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("rate", "latency", "host"))
    parser.add_argument("--grid", default="three-sites", help="a file in hostfiles, or a path")
    parser.add_argument("--mpi", default="mpich", choices=MPIS)
    parser.add_argument(
        "--at", nargs="+", default=[], metavar="NAME", help="two clusters or a host"
    )
    parser.add_argument("--models", type=Path, help="full discoveries are kept there, and reused")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=(*WAYS, "declared"))
    parser.add_argument("--output", type=Path, default=RESULTS / "drift")
    options = parser.parse_args()
    folder = options.output.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    grid = path_of_grid(options.grid)
    change = change_of(read_gridfile(grid), options.what, options.at)
    name = "-".join([grid.stem, options.what, *options.at, options.mpi])
    changed = grid_file(folder / f"{name}-changed.toml", grid, change, [0.0])
    changing = grid_file(folder / f"{name}-changing.toml", grid, change, [FALL_S, RISE_S])
    models = options.models or folder
    model = model_on(grid, options.mpi, models)
    kept = {way: folder / f"{name}-{way}.json" for way in (*CHANGING, "fresh", "before")}
    if "fresh" in options.ways:
        run(grid, options.mpi, model, kept["before"], FRESH_S, "off")
        fresh = model_on(changed, options.mpi, models)
        run(changed, options.mpi, fresh, kept["fresh"], FRESH_S, "off")
    for way, learn in CHANGING.items():
        if way in options.ways:
            known = grid if way == "declared" else model
            run(changing, options.mpi, known, kept[way], END_S, learn)
    found = {way: json.loads(path.read_text()) for way, path in kept.items() if path.exists()}
    best = {
        when: medians(found[way], 3.0, FRESH_S)
        for when, way in (("after the fall", "fresh"), ("after the recovery", "before"))
    }
    rows_of = {way: found[way] for way in CHANGING if way in found}
    for way, rows in rows_of.items():
        fell_s = fall_s(rows)
        rose_s = fell_s + RISE_S - FALL_S
        for when, from_s, until_s in (
            ("after the fall", fell_s, rose_s),
            ("after the recovery", rose_s, END_S),
        ):
            print(f"{name}, {way}, {when}:")
            for call, took_s in medians(rows, settled_s(rows, from_s), until_s).items():
                fresh_s = best[when].get(call)
                over = f"  {took_s / fresh_s:.2f} times fresh" if fresh_s else ""
                print(f"  {call:>18} B  {1e3 * took_s:8.1f} ms{over}")
    draw(rows_of, folder / f"{name}.svg")


if __name__ == "__main__":
    main()
